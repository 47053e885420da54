"""Draw `gallery/scans.png`, the scan orders of the visual Mambas and their matrices: `python docs/draw_scans.py`."""

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from mixlab.analysis.figures.scans import ScanPicture, scan_pictures
from mixlab.backbones.staged import StagedConfig
from mixlab.backbones.visual_mambas import VISUAL_MAMBAS
from mixlab.mixers import MixerConfig, SelectiveMixing
from mixlab.mixers.scan_orders import CROSS

GRID, DIM, SEED, PATCH = (8, 8), 32, 0, 3 * 8 + 4
# Of each model the mixer of one block that shows what is its own.
MODELS = {
    "Vim, Mamba-Reg: two scans in every layer": ("vim_tiny", 0),
    "PlainMamba: four snaking scans in every layer": ("plainmamba_l1", 0),
    "LocalVim, LocalVMamba: four scans in every layer, chosen by a search": ("localvmamba_small", 27),
    "VMamba: four scans in every layer.  Mamba-2D: one of these in each layer, by turns": ("vmamba_tiny", 0),
    "EfficientVMamba: four scans, each over a quarter of the patches": ("efficientvmamba_tiny", 0),
}


@torch.no_grad()
def picture(name: str, block: int) -> ScanPicture:
    """Of a freshly initialised mixer on noise."""
    torch.manual_seed(SEED)
    config = VISUAL_MAMBAS[name][1]
    mixer: MixerConfig = config.mixer_of(0, block) if isinstance(config, StagedConfig) else config.mixer_of(block)
    mixing, _ = mixer.build(DIM, 1).prepare(torch.randn(1, GRID[0] * GRID[1], DIM), GRID)
    assert isinstance(mixing, SelectiveMixing)
    mixing = replace(mixing, skip=torch.zeros_like(mixing.skip))  # it would outshine everything else
    scans = ("h", "h_flip", "v", "v_flip") if mixing.scans == CROSS else mixing.scans
    return ScanPicture(scans, GRID, mixing.matrix()[0].abs().mean(0), PATCH)


if __name__ == "__main__":
    figure = scan_pictures({title: picture(*block) for title, block in MODELS.items()})
    place = Path(__file__).parent / "gallery" / "scans.png"
    figure.savefig(place, dpi=110)
    with Image.open(place) as drawn:  # a palette: a third of the size
        drawn.convert("RGB").quantize(128).save(place, optimize=True)
