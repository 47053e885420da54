"""Every numbered set of samples (images, masks, label maps, objects), crops and batches; knows no models."""

from .crop_parameters import CropKind, CropParameters, dino_crops, draw_parameters
from .crops import IMAGENET_MEAN, IMAGENET_STD, MultiCrop, make_crops, normalise, stack_images
from .decode import decode
from .images import ImageFolder, parse_source
from .label_maps import parse_label_maps
from .labelled import LabelledSplits, labelled_splits
from .loader import Batch, Loader
from .mask_formats import mask_format, parse_masks
from .masks import MaskedImage, MaskSource
from .objects import AnnotatedImage, ObjectSource, parse_objects
from .sample_order import SampleOrder
from .shapes import SHAPE_CLASSES, DrawnScene, Shapes
from .shards import TarShards
from .source import ImageSource, Source, Subset, at_most, evenly_spaced, split
from .unreadable import SkippedImages, TooManyUnreadableError, UnreadableImage

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "SHAPE_CLASSES",
    "AnnotatedImage",
    "Batch",
    "CropKind",
    "CropParameters",
    "DrawnScene",
    "ImageFolder",
    "ImageSource",
    "LabelledSplits",
    "Loader",
    "MaskSource",
    "MaskedImage",
    "MultiCrop",
    "ObjectSource",
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
    "labelled_splits",
    "make_crops",
    "mask_format",
    "normalise",
    "parse_label_maps",
    "parse_masks",
    "parse_objects",
    "parse_source",
    "split",
    "stack_images",
]
