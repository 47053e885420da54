"""The local page: look inside models, side by side."""

from mixlab.errors import naming_extras

with naming_extras():
    from mixlab.app.server import create_app

__all__ = ["create_app"]
