"""Features and labels of images in memory, for one's own loop."""

from __future__ import annotations

from mixlab.backbones.backbone import Backbone
from mixlab.choices import OUTPUT
from mixlab.data.given import AnyData, as_data
from mixlab.data.images import parse_source
from mixlab.evaluation.feature_cache import Extraction, extract_features
from mixlab.evaluation.features import FeaturePlan, head_inputs
from mixlab.evaluation.machine import CentreView, Machine, precision_in_use
from mixlab.training.knn import LabelledFeatures


def labelled_features(
    model: Backbone,
    data: AnyData,
    *,
    strategy: str = OUTPUT,
    blocks: int = 1,
    image: int | None = None,
    machine: Machine | None = None,
) -> LabelledFeatures:
    """Features of every image that can be read, for `knn_accuracy` and `linear_probe`; labels are -1 where none are.

    By default what the model returns; `strategy` and `blocks` as in `KnnSettings`. Images are centre crops of `image`
    px, the model's own size by default. The model is left in the mode in which it came.
    """
    machine, was_training = machine or Machine.of(model), model.training
    view = CentreView(image or model.image, model.crop_share)
    given = as_data(data)
    model.eval()
    try:
        plan = FeaturePlan.build(model, head_inputs(model, (blocks,), (strategy,)), source="stream", image=view.size)
        extraction = Extraction(plan, view, precision_in_use("auto", machine.world.device), stored="float32")
        table = extract_features(model, parse_source(given), extraction, name=str(given), machine=machine)
    finally:
        model.train(was_training)
    return LabelledFeatures(table.all().to(machine.world.device), table.labels)
