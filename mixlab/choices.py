"""Choices and defaults that options share with settings and protocols.

They are here and not beside the code that acts on them, because that code imports torch and `--help` does not.
"""

from typing import Literal

# What is seen of an image: all of it in its own shape, the middle square, the part of that one that kNN and probes see,
# or all of it as a square, aspect ratio not kept (`analysis.views`).
Fit = Literal["whole", "square", "crop", "squash"]
SquareFit = Literal["square", "crop", "squash"]
PrecisionChoice = Literal["auto", "bf16", "fp32"]
InferenceMode = Literal["single", "multi", "slide"]  # of a segmenter
HeadKind = Literal["mask", "cascade"]  # of a detector
Scale = Literal["full", "tiny"]  # of `mixlab reproduce`

KS = (10, 20, 100, 200)  # DINO's numbers of neighbours
TEMPERATURE = 0.07  # of their votes, DINO
OUTPUT = "output"  # a probe or kNN reads what the backbone itself returns
SCORED_FIT: Fit = "squash"  # of `mixlab auc`: all of an image and of its mask, as in every published score
NUM_DRAWN = 6  # images of `mixlab maps`
SHOWN_FIT: Fit = "whole"  # of `mixlab maps`, `matrices` and the page: the map isolation needs the background
SHOWN_MAP = "isolation"  # of `mixlab maps` and the page: of networks without labels it shows most
NUM_RANKED = 4  # images of `mixlab rank`
NO_TARGET = "no target given; name a run, a zoo model (see `mixlab models`), shipped/NAME or timm/NAME"
PAGE_DATA = ("photo:all", "shapes:size=256,n=2")  # samples of `mixlab app`: six photographs, two scenes with masks
