"""Backbones: ours and timm's behind one contract. Importing any of them registers ours with timm."""

import mixlab.backbones.timm_registry  # noqa: F401
