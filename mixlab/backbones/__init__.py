"""Backbones: ours and timm's behind one contract. Importing this package registers ours with timm."""

import mixlab.backbones.timm_registry  # noqa: F401
