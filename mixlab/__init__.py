"""A laboratory for vision token mixers: pretrain them, probe them, look inside them.

Every public name is here, and is imported on first use.
"""

import sys
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names once more, for editors and type checkers
    from mixlab.analysis.activation_maps import activation_maps as activation_maps
    from mixlab.analysis.auc import score_maps as score_maps
    from mixlab.analysis.binary_auc import binary_auc as binary_auc
    from mixlab.analysis.binary_auc_metric import BinaryAUC as BinaryAUC
    from mixlab.analysis.exhibit import Exhibit as Exhibit
    from mixlab.analysis.exhibit import Picture as Picture
    from mixlab.analysis.maps import activation_map as activation_map
    from mixlab.analysis.norms import measure_norms as measure_norms
    from mixlab.analysis.pca import pca_maps as pca_maps
    from mixlab.analysis.rank import measure_ranks as measure_ranks
    from mixlab.analysis.registered_maps import register_map as register_map
    from mixlab.analysis.registry import register_analysis as register_analysis
    from mixlab.analysis.viewed_images import ViewedImages as ViewedImages
    from mixlab.backbones.backbone import Backbone as Backbone
    from mixlab.backbones.preprocess import preprocess as preprocess
    from mixlab.backbones.tokens import Features as Features
    from mixlab.backbones.tokens import TokenLayout as TokenLayout
    from mixlab.backbones.transformers_registry import register_with_transformers as register_with_transformers
    from mixlab.backbones.weights import LoadReport as LoadReport
    from mixlab.backbones.weights import WeightsError as WeightsError
    from mixlab.backbones.weights import load_weights as load_weights
    from mixlab.backbones.weights import model_from_file as model_from_file
    from mixlab.backbones.weights import save_weights as save_weights
    from mixlab.backbones.wrapped import wrap as wrap
    from mixlab.backbones.zoo import create_model as create_model
    from mixlab.backbones.zoo import list_models as list_models
    from mixlab.backbones.zoo import register_backbone as register_backbone
    from mixlab.backbones.zoo import register_family as register_family
    from mixlab.data.crops import MultiCrop as MultiCrop
    from mixlab.data.crops import dino_crops as dino_crops
    from mixlab.data.dataset_source import DatasetSource as DatasetSource
    from mixlab.data.decode import UnreadableImage as UnreadableImage
    from mixlab.data.labelled import labelled_splits as labelled_splits
    from mixlab.data.masks import MaskedImage as MaskedImage
    from mixlab.data.packed import pack_images as pack_images
    from mixlab.data.registered import register_source as register_source
    from mixlab.data.source import Source as Source
    from mixlab.errors import InputError as InputError
    from mixlab.errors import WorkError as WorkError
    from mixlab.evaluation.detection.task import evaluate_detection as evaluate_detection
    from mixlab.evaluation.detection.task import fit_detection as fit_detection
    from mixlab.evaluation.detection.task import plan_detection as plan_detection
    from mixlab.evaluation.in_memory import labelled_features as labelled_features
    from mixlab.evaluation.in_memory import linear_probe as linear_probe
    from mixlab.evaluation.knn import evaluate_knn as evaluate_knn
    from mixlab.evaluation.methods import register_method as register_method
    from mixlab.evaluation.own_classifier import load_classifier as load_classifier
    from mixlab.evaluation.probe.evaluate import evaluate_linear_probe as evaluate_linear_probe
    from mixlab.evaluation.robustness import evaluate_robustness as evaluate_robustness
    from mixlab.evaluation.segmentation.task import evaluate_segmentation as evaluate_segmentation
    from mixlab.evaluation.segmentation.task import fit_segmentation as fit_segmentation
    from mixlab.evaluation.segmentation.task import plan_segmentation as plan_segmentation
    from mixlab.evaluation.settings import KnnSettings as KnnSettings
    from mixlab.evaluation.settings import ProbeSettings as ProbeSettings
    from mixlab.evaluation.shifts import evaluate_shifts as evaluate_shifts
    from mixlab.evaluation.target import Target as Target
    from mixlab.evaluation.target import load_target as load_target
    from mixlab.mixers import register_mixer as register_mixer
    from mixlab.recipes import find_recipe as find_recipe
    from mixlab.recipes import register_recipe as register_recipe
    from mixlab.run.measurement import Measurement as Measurement
    from mixlab.training.dino_parts import DinoCentre as DinoCentre
    from mixlab.training.dino_parts import DinoHead as DinoHead
    from mixlab.training.dino_parts import balanced_targets as balanced_targets
    from mixlab.training.dino_parts import dino_loss as dino_loss
    from mixlab.training.dino_parts import koleo_loss as koleo_loss
    from mixlab.training.dino_parts import teacher_targets as teacher_targets
    from mixlab.training.knn import LabelledFeatures as LabelledFeatures
    from mixlab.training.knn import knn_accuracy as knn_accuracy
    from mixlab.training.loop import train as train
    from mixlab.training.optim import move_towards_ as move_towards_
    from mixlab.training.optim import register_optimizer as register_optimizer
    from mixlab.training.schedules import register_schedule as register_schedule

__version__ = "0.1.0"
_NAMES = {
    "analysis.auc": ["score_maps"],
    "analysis.binary_auc": ["binary_auc"],
    "analysis.binary_auc_metric": ["BinaryAUC"],
    "analysis.exhibit": ["Exhibit", "Picture"],
    "analysis.activation_maps": ["activation_maps"],
    "analysis.maps": ["activation_map"],
    "analysis.norms": ["measure_norms"],
    "analysis.pca": ["pca_maps"],
    "analysis.rank": ["measure_ranks"],
    "analysis.registered_maps": ["register_map"],
    "analysis.registry": ["register_analysis"],
    "analysis.viewed_images": ["ViewedImages"],
    "backbones.backbone": ["Backbone"],
    "backbones.preprocess": ["preprocess"],
    "backbones.tokens": ["Features", "TokenLayout"],
    "backbones.transformers_registry": ["register_with_transformers"],
    "backbones.weights": ["LoadReport", "WeightsError", "load_weights", "model_from_file", "save_weights"],
    "backbones.wrapped": ["wrap"],
    "backbones.zoo": ["create_model", "list_models", "register_backbone", "register_family"],
    "data.crops": ["MultiCrop", "dino_crops"],
    "data.dataset_source": ["DatasetSource"],
    "data.decode": ["UnreadableImage"],
    "data.labelled": ["labelled_splits"],
    "data.masks": ["MaskedImage"],
    "data.packed": ["pack_images"],
    "data.source": ["Source"],
    "data.registered": ["register_source"],
    "errors": ["InputError", "WorkError"],
    "evaluation.detection.task": ["evaluate_detection", "fit_detection", "plan_detection"],
    "evaluation.in_memory": ["labelled_features", "linear_probe"],
    "evaluation.knn": ["evaluate_knn"],
    "evaluation.methods": ["register_method"],
    "evaluation.own_classifier": ["load_classifier"],
    "evaluation.probe.evaluate": ["evaluate_linear_probe"],
    "evaluation.robustness": ["evaluate_robustness"],
    "evaluation.segmentation.task": ["evaluate_segmentation", "fit_segmentation", "plan_segmentation"],
    "evaluation.settings": ["KnnSettings", "ProbeSettings"],
    "evaluation.shifts": ["evaluate_shifts"],
    "evaluation.target": ["Target", "load_target"],
    "mixers": ["register_mixer"],
    "recipes": ["find_recipe", "register_recipe"],
    "run.measurement": ["Measurement"],
    "training.dino_parts": ["DinoCentre", "DinoHead", "balanced_targets", "dino_loss", "koleo_loss", "teacher_targets"],
    "training.knn": ["LabelledFeatures", "knn_accuracy"],
    "training.loop": ["train"],
    "training.optim": ["move_towards_", "register_optimizer"],
    "training.schedules": ["register_schedule"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    if not name.startswith("_") and util.find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")  # a part, such as mixlab.mixers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _RegisterWithTimm:
    """Registers our backbones with timm once timm is imported, so that `import mixlab` need not import it."""

    asking = False  # the other finders, for timm

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != "timm" or self.asking:
            return None
        self.asking = True
        try:
            spec = util.find_spec(fullname)
        finally:
            self.asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: Any) -> None:
                load(module)
                import_module("mixlab.backbones")

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if "timm" in sys.modules:
    import_module("mixlab.backbones")
else:
    sys.meta_path.insert(0, _RegisterWithTimm())
import_module("mixlab.plugins").load_at_start()
