"""`mixlab maps`: activation maps and principal components of several backbones on the same images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from mixlab.choices import NUM_DRAWN, SHOWN_FIT, SHOWN_MAP, Fit
from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat, SeveralTargets
from mixlab.commands.output import evaluation_machine, print_left_out, progress_bar
from mixlab.console import console
from mixlab.errors import check_counts, few
from mixlab.run import provenance

COARSE = 12  # patches on the side of a square: fewer show little of a photograph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mixlab.analysis.activation_maps import MapsResult


def maps(
    on: Flat[SeveralTargets],
    answer: Flat[Answer] = Answer(),
    *,
    map: str = SHOWN_MAP,
    layer: int = -1,
    num_images: int = NUM_DRAWN,
    pca_fit: Literal["image", "set"] = "image",
    pca_threshold: float | None = None,
    fit: Fit | None = None,
) -> dict[str, Any]:
    """Draw activation maps and principal components, models side by side on the same images.

    Args:
        map: which map: isolation (from the border of the image, along similar patches); cut (normalised cut into two
            parts of similar patches); cosine (of the summary, which is class token, registers or mean patch, to each
            patch; as in Dino-Mamba); pooled_cosine (of the mean patch to each patch); dot (dot product instead of
            cosine); norm (of each patch's feature); pca (first component); register_cosine, register_dot (one map per
            register); front_cosine (of the class token's copy in front); mixing_rows (how strongly the summary reads
            each patch, by head); mixing_mean (mean over heads); direction_rows (by scan direction); register_rows (by
            register); or several maps of features, such as cosine+front_cosine.
        layer: read the map after this layer, counted from 0; negative numbers count from the end.
        num_images: number of images to draw, evenly spaced.
        fit: whole (the whole image in its own shape, at most 4:1), square (the largest square in the middle), crop
            (centre crop of it, as in kNN and probes) or squash (the whole image as a square); also for masks; default:
            whole, or square for networks that take no other shape.
        pca_fit: fit principal components to each image, or to all images together.
        pca_threshold: colour components where the first one exceeds this, in standard deviations, such as 0; by default
            they are coloured where the map isolation exceeds its mean.
    """
    from mixlab.analysis.activation_maps import activation_maps
    from mixlab.analysis.figures import save_figure
    from mixlab.analysis.maps import compares_patches, find_map
    from mixlab.analysis.viewed_images import ViewedImages, shown_size
    from mixlab.analysis.views import common_view
    from mixlab.data.source_names import is_drawn

    answer.check()
    find_map(map)
    check_counts(num_images=num_images)
    with evaluation_machine(on.device, workers=on.workers) as machine:
        if not machine.world.is_first:  # a few images: the first rank draws them alone
            return {}
        loaded = on.load(machine.world.device)
        made_for = loaded[0].backbone.image
        size = on.image or (made_for if is_drawn(on.data) else shown_size(made_for))
        view = common_view(loaded, size, fit, SHOWN_FIT, pairs=[layer] if compares_patches(map) else ())
        images = ViewedImages(on.data, **view, num_images=num_images, workers=machine.workers)
        directory = on.open_run()
        with progress_bar("maps", len(loaded)) as step:
            result = activation_maps(
                loaded, images, map_name=map, layer=layer, pca_fit=pca_fit, pca_threshold=pca_threshold, progress=step
            )
    content = result.to_json()
    content["provenance"] = provenance(seed=on.seed, device=str(next(loaded[0].backbone.parameters()).device))
    with directory.named("maps", content) as name:
        paths = [save_figure(chart, directory.figure_path(file)) for file, chart in _pictures(result, name).items()]
        content["figures"] = [path.name for path in paths]
        directory.write_result(name, content, result.arrays)
    shapes = {
        label: dict.fromkeys("x".join(str(side) for side in one.shape) for one in found)
        for label, found in result.maps.items()
    }
    rows = [(label, result.names[label], few([*found], most=2)) for label, found in shapes.items()]
    count = len(result.seen.names)
    where = "the last layer" if layer == -1 else f"layer {layer}"
    total = f" of {len(images.source)}" if len(images.source) > images.num_wanted else ""
    title = f"Maps of {count}{total} image{'s' * (count != 1 or bool(total))} after {where}"
    answer.table(title, ("model", "map", "size"), rows)
    print_left_out(images)
    for path in paths:
        console.print(f"picture: {path}")
    high, wide = max((one.shape[-2:] for found in result.maps.values() for one in found), key=math.prod)
    if on.image is None and high * wide < COARSE**2 and not is_drawn(on.data):
        finer = f"--image {3 * size}, if the network takes it, makes them 3 times as fine"
        console.print(f"maps of {high} x {wide} patches are coarse; {finer}")
    return answer.emit(content)


def _pictures(result: MapsResult, name: str) -> dict[str, Figure]:
    """By file name. Pictures of maps_2.json are called maps_2.png and so on, so that none is overwritten."""
    from mixlab.analysis.figures import map_pictures, part_pictures, pca_pictures

    seen, number = result.seen, name.removeprefix("maps")
    kinds = (result.protocol.map or "").split("+")
    if len(kinds) > 1:  # several kinds of map are several pictures
        shown = {
            f"{label}\n{kind}": [one[index] for one in found]
            for label, found in result.maps.items()
            for index, kind in enumerate(kinds)
        }
    else:
        shown = {
            label: [one.mean(0) if one.ndim == 3 else one for one in found] for label, found in result.maps.items()
        }
    pictures = {f"maps{number}.png": map_pictures(seen.images, shown, seen.masks)}
    parts = {label: found[0] for label, found in result.maps.items() if found[0].ndim == 3 and len(kinds) == 1}
    if parts:
        part = "register" if "register" in (result.protocol.map or "") else "head"
        pictures[f"maps_by_part{number}.png"] = part_pictures(seen.images[0], parts, part)
    return pictures | {f"pca{number}.png": pca_pictures(seen.images, result.components)}
