"""Images, masks, crops and batches; knows no models."""

from .crop_parameters import CropKind, CropParameters, dino_crops, draw_parameters
from .crops import IMAGENET_MEAN, IMAGENET_STD, MultiCrop, make_crops, normalise, stack_images
from .decode import decode
from .images import ImageFolder, parse_source
from .loader import Batch, Loader
from .mask_formats import parse_masks
from .masks import MaskedImage, MaskSource
from .sample_order import SampleOrder
from .shapes import SHAPE_CLASSES, DrawnScene, Shapes
from .shards import TarShards
from .source import ImageSource, Source, Subset, at_most, evenly_spaced, split
from .unreadable import SkippedImages, TooManyUnreadableError, UnreadableImage

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "SHAPE_CLASSES",
    "Batch",
    "CropKind",
    "CropParameters",
    "DrawnScene",
    "ImageFolder",
    "ImageSource",
    "Loader",
    "MaskSource",
    "MaskedImage",
    "MultiCrop",
    "SampleOrder",
    "Shapes",
    "SkippedImages",
    "Source",
    "Subset",
    "TarShards",
    "TooManyUnreadableError",
    "UnreadableImage",
    "at_most",
    "decode",
    "dino_crops",
    "draw_parameters",
    "evenly_spaced",
    "make_crops",
    "normalise",
    "parse_masks",
    "parse_source",
    "split",
    "stack_images",
]
