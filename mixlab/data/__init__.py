"""Data sources (images, masks, label maps, objects), crops and batches; independent of models."""

# ruff: noqa: F401 - what people import from here

from .crops import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    CropKind,
    CropParameters,
    MultiCrop,
    dino_crops,
    draw_parameters,
    make_crops,
    normalise,
)
from .dataset_source import DatasetSource
from .decode import UnreadableImage, decode
from .given import GivenData, as_data
from .images import ImageFolder, parse_source
from .labelled import LabelledSplits, labelled_splits
from .loader import Batch, BatchLoader, ImageReader, SampleReader
from .mask_formats import mask_format, parse_label_maps, parse_masks
from .masks import MaskedImage, MaskSource
from .objects import AnnotatedImage, ObjectSource, parse_objects
from .packed import PackedBatch, PackedImages, PackedLoader, PackedReader, pack_images
from .sample_order import SampleOrder
from .shapes import SHAPE_CLASSES, DrawnScene, Shapes
from .shards import TarShards
from .skipped import SkippedImages, TooManyUnreadableError
from .source import ImageSource, Source, Subset, at_most, evenly_spaced, split
