"""`mixlab maps`: activation maps and principal components of several backbones on the same images."""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from mixlab.analysis.figures import save_figure
from mixlab.analysis.map_pictures import map_pictures, part_pictures, pca_pictures
from mixlab.analysis.maps import MAPS, default_map, find_map
from mixlab.analysis.pca import PCAMaps, pca_maps
from mixlab.commands.output import check_json, console, emit, open_run, progress_bar, table
from mixlab.data.reading import read_images
from mixlab.errors import check_counts
from mixlab.evaluation.target import Target, load_targets
from mixlab.run import provenance
from mixlab.run.directory import file_name


def maps(
    targets: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="TARGET ...")],
    *,
    data: str = "shapes",
    map: str | None = None,
    layer: int = -1,
    image: int | None = None,
    num_images: int = 6,
    pca_fit: Literal["image", "set"] = "image",
    pca_threshold: float = 0.0,
    weights: str | None = None,
    device: str | None = "auto",
    seed: int = 0,
    run: Path | None = None,
    json: str | None = None,
) -> dict[str, Any]:
    """Draw activation maps and principal components, models side by side on the same images.

    Args:
        targets: runs, exported files, names of the zoo, or timm/NAME; TARGET=LABEL gives it another name in pictures.
        data: shapes, a folder of images, wds:PATTERN, or a set with masks (which are then drawn too).
        map: which map; without it each backbone's default, cosine (pooled_cosine without a class token or registers).
            Also: dot, register_cosine, register_dot, pooled_cosine, norm, pca, mixing_rows, mixing_mean,
            direction_rows, register_rows.
        layer: after which layer; negative ones count from the end.
        image: the side of the images in pixels; without it, what the first backbone was made for.
        num_images: how many images to draw.
        pca_fit: fit principal components to each image, or to all images together.
        pca_threshold: the first component above this, in standard deviations, is foreground, for all models alike.
        weights: a weight file for a single name.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        seed: of untrained targets.
        run: the directory for pictures and arrays; the target's own if it is one run, else runs/look.
        json: also write the result as JSON to this file, or to stdout for "-".
    """
    if map is not None:
        find_map(map)
    check_counts(image=image, num_images=num_images)
    check_json(json)
    subjects = load_targets(targets, weights=weights, device=device, seed=seed)
    directory = open_run(run, targets)
    pixels, masks, names = read_images(data, size=image or subjects[0].backbone.image, num_images=num_images)
    found: dict[str, Tensor] = {}
    components: dict[str, PCAMaps] = {}
    with progress_bar("maps", len(subjects)) as step:
        for subject in subjects:
            found[subject.label] = _maps_of(subject, pixels, map, layer)
            components[subject.label] = _components_of(subject, pixels, layer, pca_fit, pca_threshold)
            step()
    pictures = {"maps": map_pictures(pixels, {label: _one(stack) for label, stack in found.items()}, masks)}
    parts = {label: stack[0] for label, stack in found.items() if stack.ndim == 4}
    if parts:
        pictures["maps_by_part"] = part_pictures(pixels[0], parts, "register" if "register" in (map or "") else "head")
    pictures["pca"] = pca_pictures(pixels, components)
    paths = [save_figure(figure, directory.figure_path(f"{name}.png")) for name, figure in pictures.items()]
    rows = [
        (s.label, map or default_map(s.backbone), "x".join(str(n) for n in found[s.label].shape[1:])) for s in subjects
    ]
    result = {
        "kind": "maps",
        "data": data,
        "images": names,
        "layer": layer,
        "subjects": [subject.describe() for subject in subjects],
        "maps": {label: name for label, name, _ in rows},
        "pca": {
            "fit": pca_fit,
            "threshold": pca_threshold,
            "explained": {label: part.explained.tolist() for label, part in components.items()},
        },
        "figures": [path.name for path in paths],
        "provenance": provenance(seed=seed, device=str(next(subjects[0].backbone.parameters()).device)),
    }
    arrays = {f"map_{file_name(label)}": stack.numpy() for label, stack in found.items()}
    arrays |= {"images": pixels.numpy()} | ({} if masks is None else {"masks": masks.numpy()})
    for label, part in components.items():
        arrays[f"pca_first_{file_name(label)}"] = part.first.float().numpy()
        arrays[f"pca_colours_{file_name(label)}"] = (255 * part.colours).round().byte().numpy()
    directory.write_result("maps", result, arrays)
    table(f"Maps of {len(names)} images after layer {layer}", ("model", "map", "size"), rows)
    console.print(f"pictures: {', '.join(str(path) for path in paths)}")
    return emit(result, json)


def _maps_of(subject: Target, pixels: Tensor, name: str | None, layer: int) -> Tensor:
    kind = MAPS[name or default_map(subject.backbone)]
    return kind(subject.backbone, subject.backbone.preprocess(pixels), layer).float().cpu()


@torch.no_grad()
def _components_of(
    subject: Target, pixels: Tensor, layer: int, fit: Literal["image", "set"], threshold: float
) -> PCAMaps:
    _, features = next(subject.backbone.features(subject.backbone.preprocess(pixels), layers=[layer]))
    return pca_maps(features.patches.float().cpu(), fit=fit, threshold=threshold)


def _one(stack: Tensor) -> Tensor:
    """Maps of heads or registers (B, K, h, w) as their mean."""
    return stack.mean(1) if stack.ndim == 4 else stack
