"""`mixlab demo`: one drawn scene through every kind of backbone, and a look at what mixes its tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import mixlab
from mixlab.analysis.blocks import Span, rank_bound
from mixlab.analysis.cost import count_macs, count_parameters, on_meta
from mixlab.analysis.figures import save_figure
from mixlab.analysis.maps import activation_map, default_map
from mixlab.analysis.spectrum import numerical_rank
from mixlab.analysis.subjects import normalise
from mixlab.backbones.isotropic import Isotropic
from mixlab.commands.output import console, emit, table
from mixlab.data import Shapes
from mixlab.report.page import write_report
from mixlab.run import RunDirectory, provenance

IMAGE = 128
STACK = {"dim": 128, "depth": 4, "patch": 8, "image": IMAGE}
# Heads and states of 32, so that the bounds on rank lie well below the side of a block.
FAMILIES: dict[str, dict[str, Any]] = {
    "vit_tiny": {**STACK, "head_dim": 32},
    "linearvit_tiny": {**STACK, "head_dim": 32},
    "dinovim_tiny": {**STACK, "head_dim": 32, "state": 32},
    "dinomambareg_tiny": {**STACK, "head_dim": 32, "state": 32},
    "gatedconv_tiny": STACK,
}
CHUNK = 96  # tokens per side of the block whose rank is shown
DECADES = 4  # matrices are drawn on a logarithmic scale of so many powers of ten
TOLERANCE = 1e-6  # singular values below this share of the largest count as zero
COLUMNS = ("model", "mixer", "parameters", "MMACs", "heads", "run and look differ by", "rank of a far block", "bound")


def demo(*, run: Path = Path("demo"), seed: int = 0, json: str | None = None) -> dict[str, Any]:
    """Send one image through every kind of backbone, untrained, and draw the matrices that mix its tokens.

    Args:
        run: the directory for results, figures and the report.
        seed: chooses the scene and the weights.
        json: also write the table as JSON to this file, or to stdout for "-".
    """
    directory = RunDirectory.create(run)
    scene = Shapes(size=IMAGE, seed=seed).scene(3)
    console.print("One drawn scene, five kinds of backbone, untrained. Each mixing is run, and looked at as a matrix.")
    looks = [_look(name, scene.image, seed) for name in FAMILIES]
    rows = [look["row"] for look in looks]
    table("Every mixing is one linear map over tokens", COLUMNS, rows)
    figure = save_figure(_picture(scene.image, looks), directory.figure_path("matrices.png"))
    result = {
        "title": "Run it or look at it",
        "text": (
            "A backbone is token-wise layers around one step that moves information between tokens. That step is a "
            "linear map: it can be run fast, or written out as a matrix. The table shows that both are the same map, "
            f"and the rank of one {CHUNK} x {CHUNK} block far from the diagonal, beside the bound that theory gives. "
            "All weights are random: this page shows the instruments, not yet anything they found."
        ),
        "columns": COLUMNS,
        "rows": rows,
        "figures": [
            {
                "file": figure.name,
                "alt": "One scene, its activation map and the mixing matrices of each backbone, side by side",
                "caption": "Rows: backbones. Columns: how like the summary each patch is, then |matrix| of three heads "
                f"in the third layer, a row per reading token, bright is strong, over {DECADES} powers of ten; the "
                "last head of a two-way scan reads from the right.",
            }
        ],
        "provenance": provenance(seed=seed),
    }
    directory.write_config({"command": "demo", "seed": seed, "models": FAMILIES})
    directory.write_result("demo", result)
    page = write_report([directory], directory.path / "report.html")
    console.print(f"The report: open {page}")
    return emit(result, json)


@torch.no_grad()
def _look(name: str, image: Tensor, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = mixlab.create_model(name, **FAMILIES[name]).eval()
    assert isinstance(model, Isotropic)
    pixels = normalise(image.unsqueeze(0), model)
    [(_, mixing)] = model.mixings(pixels, layers=[2])
    ran, looked = mixing.apply(), mixing.matrix() @ mixing.values
    error = ((ran - looked).norm() / looked.norm()).item()
    chosen = [0, mixing.num_heads // 2, mixing.num_heads - 1]
    matrices = [mixing.matrix(slice(head, head + 1))[0, 0].abs().numpy() for head in chosen]
    block = mixing.matrix(slice(0, 1))[0, 0, -CHUNK:, :CHUNK].double()  # what the last tokens take from the first
    length = mixing.values.shape[2]
    flat = on_meta(name, **FAMILIES[name])
    row = [
        name,
        model.config.mixer.kind,
        count_parameters(flat),
        round(count_macs(flat, IMAGE) / 1e6, 1),
        mixing.num_heads,
        f"{error:.1e}",
        numerical_rank(block, TOLERANCE) if block.any() else 0,
        rank_bound(mixing, Span(length - CHUNK, length), Span(0, CHUNK)),
    ]
    activation = activation_map(model, pixels, default_map(model))[0].numpy()
    return {"name": name, "row": row, "heads": chosen, "matrices": matrices, "map": activation}


def _picture(image: Tensor, looks: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(9.2, 2.0 * len(looks)), layout="constrained")
    axes = figure.subplots(len(looks), 5)
    for row, look in zip(axes, looks, strict=True):
        row[0].imshow(image.permute(1, 2, 0).numpy())
        row[0].set_ylabel(look["name"], fontsize=9)
        row[1].imshow(look["map"], cmap="viridis")
        for ax, head, matrix in zip(row[2:], look["heads"], look["matrices"], strict=True):
            shown = np.log10(np.maximum(matrix / matrix.max(), 10.0**-DECADES))
            ax.imshow(shown, cmap="magma", vmin=-DECADES, vmax=0, interpolation="antialiased")
            ax.set_xlabel(f"head {head + 1}", fontsize=8)
        for ax in row:
            ax.set_xticks([])
            ax.set_yticks([])
    for ax, title in zip(axes[0], ("scene", "map of the summary", "mixing matrix", "", ""), strict=True):
        ax.set_title(title, fontsize=9, loc="left")
    return figure
