"""Draw `gallery/scans.png`, the scan orders of the visual Mambas and their matrices: `python docs/draw_scans.py`."""

from dataclasses import replace
from pathlib import Path

import torch

from mixlab.analysis.figures.scans import ScanPicture, scan_pictures
from mixlab.backbones.visual_mambas import VISUAL_MAMBAS
from mixlab.mixers import MixerConfig, SelectiveMixing

GRID, DIM, SEED = (14, 14), 32, 0
MODELS = {
    "Vim, Mamba-Reg": "vim_tiny",
    "PlainMamba": "plainmamba_l1",
    "LocalVim, LocalVMamba (one block)": "localvmamba_tiny",
    "VMamba": "vmamba_tiny",
    "EfficientVMamba": "efficientvmamba_tiny",
}


@torch.no_grad()
def picture(name: str) -> ScanPicture:
    """Of the mixer of a model's first layer, freshly initialised, on noise."""
    torch.manual_seed(SEED)
    config = VISUAL_MAMBAS[name][1]
    mixer: MixerConfig = config.mixer_of(0) if name in ("vim_tiny", "plainmamba_l1") else config.mixer_of(0, 0)  # type: ignore[call-arg]
    mixing, _ = mixer.build(DIM, 1).prepare(torch.randn(1, GRID[0] * GRID[1], DIM), GRID)
    assert isinstance(mixing, SelectiveMixing)
    mixing = replace(mixing, skip=torch.zeros_like(mixing.skip))  # it would outshine everything else
    mean = torch.zeros(GRID[0] * GRID[1], GRID[0] * GRID[1])
    for head in range(0, mixing.num_heads, 4):
        mean += mixing.matrix(slice(head, head + 1))[0, 0].abs()
    return ScanPicture(mixing.scans, GRID, mean / len(range(0, mixing.num_heads, 4)))


if __name__ == "__main__":
    figure = scan_pictures({title: picture(name) for title, name in MODELS.items()})
    figure.savefig(Path(__file__).parent / "gallery" / "scans.png", dpi=110)
