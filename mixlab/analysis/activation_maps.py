"""The maps of some networks on the same images, and their principal components."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from mixlab.analysis.maps import MapOfFeatures, default_map, find_map, plugins_of_maps
from mixlab.analysis.pca import PCAMaps, pca_of_each
from mixlab.analysis.viewed_images import ImageList, ViewedImages
from mixlab.analysis.views import common_view
from mixlab.backbones.backbone import Backbone
from mixlab.choices import NUM_DRAWN, SHOWN_FIT
from mixlab.data.given import AnyData
from mixlab.errors import InputError
from mixlab.evaluation.target import Target, distinct_targets
from mixlab.run.arrays import to_arrays
from mixlab.run.directory import file_name
from mixlab.run.protocols import MapProtocol


@dataclass(frozen=True, kw_only=True)
class MapsResult:
    """The maps and principal components of some networks on the same images, by the labels of the networks."""

    subjects: tuple[dict[str, Any], ...]  # their descriptions
    protocol: MapProtocol
    pca_fit: str
    pca_threshold: float | None
    seen: ImageList
    names: dict[str, str]  # which map
    maps: dict[str, list[Tensor]]  # ([K,] h, w) of each image
    components: dict[str, list[PCAMaps]]  # of each image
    skipped: dict[str, str]  # images that could not be read, and why
    unpaired: tuple[str, ...]  # images without a mask, and masks without an image

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        found = {f"map_{file_name(label)}": maps for label, maps in self.maps.items()}
        found |= {"images": self.seen.images}
        found |= {} if self.seen.masks is None else {"masks": self.seen.masks}
        for label, parts in self.components.items():
            found[f"pca_first_{file_name(label)}"] = [part.first[0].float() for part in parts]
            found[f"pca_colours_{file_name(label)}"] = [(255 * part.colours[0]).round().byte() for part in parts]
        return {
            key: array
            for name, each in found.items()
            for key, array in to_arrays(name, [one.numpy() for one in each]).items()
        }

    def to_json(self) -> dict[str, Any]:
        pca = {"fit": self.pca_fit, "threshold": self.pca_threshold}
        rows = len(self.seen.names) if self.pca_fit == "image" else 1
        explained = {
            label: [part.explained[0].tolist() for part in parts[:rows]] for label, parts in self.components.items()
        }
        return {
            "kind": "maps",
            "data": self.protocol.data,
            "image": self.protocol.image,
            "images": self.seen.names,
            "layer": self.protocol.layer,
            "subjects": list(self.subjects),
            "protocol": self.protocol.to_json() | {"pca": pca},
            "maps": self.names,
            "pca": pca | {"explained": explained},
            "skipped": self.skipped,
            "unpaired": list(self.unpaired),
            **plugins_of_maps(self.names.values()),
        }


@torch.no_grad()
def activation_maps(
    targets: Target | Backbone | Sequence[Target | Backbone],
    images: ViewedImages | AnyData,
    *,
    map_name: str | None = None,
    layer: int = -1,
    pca_fit: Literal["image", "set"] = "image",
    pca_threshold: float | None = None,
    progress: Callable[[], None] | None = None,
) -> MapsResult:
    """Compute one map of each network, by name or its default, and its principal components after the same layer.

    If `images` is a name as for `--data`, a source or a data set, NUM_DRAWN images are used at the first network's
    size, in their own shapes if the networks take these. `progress` is called after each network. See `pca_maps` for
    the fit and the threshold.
    """
    targets = distinct_targets(targets)
    if not isinstance(images, ViewedImages):
        view = common_view(targets, targets[0].backbone.image, None, SHOWN_FIT)
        images = ViewedImages(images, **view, num_images=NUM_DRAWN)
    batches, seen = list(images), images.one_by_one()
    names: dict[str, str] = {}
    maps: dict[str, list[Tensor]] = {}
    components: dict[str, list[PCAMaps]] = {}
    for target in targets:
        backbone, label = target.backbone, target.label
        names[label] = default_map(backbone) if map_name in (None, "cosine") else map_name
        kind = find_map(names[label])
        found: list[Tensor] = []
        patches: list[Tensor] = []
        try:
            for batch in batches:
                pixels = backbone.preprocess(batch.images)
                _, features = next(backbone.features(pixels, layers=[layer]))
                drawn = kind.read(features) if isinstance(kind, MapOfFeatures) else kind(backbone, pixels, layer)
                found += drawn.float().cpu()
                patches += features.patches.float().cpu().split(1)
        except InputError as error:
            named = str(error) if str(error).startswith(label) else f"{label}: {error}"  # of several, which
            raise InputError(named) from error
        maps[label], components[label] = found, pca_of_each(patches, fit=pca_fit, threshold=pca_threshold)
        if progress is not None:
            progress()
    return MapsResult(
        subjects=tuple(target.describe() for target in targets),
        protocol=MapProtocol(**images.choices, map=map_name, layer=layer),
        pca_fit=pca_fit,
        pca_threshold=pca_threshold,
        seen=seen,
        names=names,
        maps=maps,
        components=components,
        skipped=dict(images.skipped.reasons),
        unpaired=images.source.unpaired,
    )
