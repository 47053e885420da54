"""The local page: look inside models, side by side. It knows no torch: the command line hands it a laboratory."""

from mixlab.app.server import create_app

__all__ = ["create_app"]
