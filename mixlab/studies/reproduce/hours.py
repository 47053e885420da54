"""GPU-hours, estimated: images x epochs / (images per second) / 3600, on one NVIDIA H200 in bf16.

Speeds are those of EXPERIMENTS.md, measured on whole steps. A model that was not measured gets the speed of the
measured one of its kind, divided by the ratio of their multiply-accumulates: too fast for small models, which are bound
by kernel launches, and a guess for models of another kind.
"""

from dataclasses import dataclass

SHIFTED_IMAGES = 3 * 10_000 + 50_889 + 7_500 + 30_000 + 46_837  # V2 three times, Sketch, A, R, ReaL
FORWARD = 3.0  # a forward pass is about a third of forward and backward


@dataclass(frozen=True)
class Speed:
    images_per_s: float
    source: str  # a heading of EXPERIMENTS.md, and what was measured


_STEPS = "whole DINO steps on one NVIDIA H200: `mixlab bench dino`, batch 64"
_KERNELS = "kernels on one NVIDIA H200: `mixlab bench backbone`, forward and backward at 224 px, batch 128"
_DENSE = "where attention falls behind, on one NVIDIA H200: `mixlab bench dense`"
_PROBES = "probes and neighbours on one NVIDIA H200: `mixlab bench probe`, dinovim_small, batch 256, all 320 heads"

# By kind of work and model. MambaOut-B was measured at 512 px (148 images/s); its cost grows with the pixels.
MEASURED: dict[tuple[str, str], Speed] = {
    ("dino", "dinovim_base"): Speed(447.7, _STEPS),
    ("dino", "vit_base"): Speed(618.6, _STEPS),
    ("supervised", "dinovim_base"): Speed(1795.0, _KERNELS),
    ("supervised", "vit_base"): Speed(2825.0, _KERNELS),
    ("supervised", "linearvit_base"): Speed(2899.0, _KERNELS),
    ("supervised", "mambaout_base"): Speed(148.0 * (512 / 224) ** 2, f"{_DENSE}, at 512 px, scaled to 224 px"),
    ("segment", "vit_base"): Speed(58.4, f"{_DENSE}, UperNet at 512 px, batch 16"),
    ("segment", "linearvit_base"): Speed(59.6, f"{_DENSE}, UperNet at 512 px, batch 16"),
    ("segment", "dinovim_base"): Speed(55.7, f"{_DENSE}, UperNet at 512 px, batch 16"),
    ("segment", "mambaout_base"): Speed(47.6, f"{_DENSE}, UperNet at 512 px, batch 16"),
    ("detect", "vit_base"): Speed(30.1, f"{_DENSE}, Cascade Mask R-CNN at 1333 x 800, batch 16"),
    ("detect", "dinovim_base"): Speed(30.2, f"{_DENSE}, Cascade Mask R-CNN at 1333 x 800, batch 16"),
    ("probe", "dinovim_small"): Speed(256 / 0.0354, _PROBES),
}

# Multiply-accumulates of one image at 224 px, counted: `mixlab models`.
GMACS = {
    "vit_tiny": 1.25, "vit_small": 4.6, "vit_base": 17.6,
    "vit_causal_tiny": 1.25, "vit_causal_small": 4.6, "linearvit_base": 17.1,
    "dinovim_tiny": 3.1, "dinovim_small": 9.9, "dinovim_base": 20.4,
    "dinomambareg_tiny": 3.2, "dinomambareg_small": 10.2, "dinomambareg_base": 21.2,
    "mambaout_femto": 1.2, "mambaout_tiny": 4.5, "mambaout_small": 8.9, "mambaout_base": 15.8,
    "vim_tiny": 1.8, "vim_small": 5.9, "vim_base": 20.9,
    "mambareg_tiny": 1.9, "mambareg_small": 6.2, "mambareg_base": 22.0,
    "localvim_tiny": 2.1, "localvim_small": 6.3,
    "efficientvmamba_tiny": 0.8, "efficientvmamba_small": 1.3, "efficientvmamba_base": 4.0,
    "vmamba_tiny": 5.6, "vmamba_small": 11.2, "vmamba_base": 18.0,
    "vmamba_tiny_s2l5": 4.8, "vmamba_small_s2l15": 8.7, "vmamba_base_s2l15": 15.3,
    "localvmamba_tiny": 5.6, "localvmamba_small": 11.2,
    "plainmamba_l1": 3.0, "plainmamba_l2": 8.1, "plainmamba_l3": 14.4,
    "timm/convnext_tiny": 4.5, "timm/convnext_small": 8.7, "timm/convnext_base": 15.4,
    "timm/swin_tiny_patch4_window7_224": 4.5, "timm/swin_small_patch4_window7_224": 8.7,
    "timm/swin_base_patch4_window7_224": 15.4,
    "timm/pvt_v2_b0": 0.6, "timm/pvt_v2_b2": 4.0, "timm/pvt_v2_b3": 6.9, "timm/pvt_v2_b5": 11.7,
    "timm/convformer_s18": 3.9, "timm/convformer_s36": 7.6, "timm/convformer_m36": 12.8,
    "timm/caformer_s18": 4.1, "timm/caformer_s36": 8.0, "timm/caformer_m36": 13.2,
}  # fmt: skip
ALIKE = {"vit": "vit_base", "linearvit": "linearvit_base", "mambaout": "mambaout_base"}
HEADS_GMACS = {"segment": 220.0, "detect": 250.0}  # what UperNet and Mask R-CNN cost around any backbone, about


@dataclass(frozen=True)
class HoursEstimate:
    hours: float
    basis: str


def speed_of(kind: str, model: str) -> Speed | None:
    """Measured, or scaled by multiply-accumulates; None where neither is possible."""
    if (kind, model) in MEASURED:
        return MEASURED[kind, model]
    other = "mambaout_base" if model.startswith("timm/") else "dinovim_base"  # stages of convolutions, or scans
    like = "dinovim_small" if kind == "probe" else ALIKE.get(model.partition("_")[0], other)
    like = like if (kind, like) in MEASURED else "vit_base" if model.startswith("linearvit") else "dinovim_base"
    if model not in GMACS:
        return None
    heads = HEADS_GMACS.get(kind, 0.0)
    ratio = (GMACS[like] + heads) / (GMACS[model] + heads)
    known = MEASURED[kind, like]
    return Speed(known.images_per_s * ratio, f"{like} by multiply-accumulates; {known.source}")


def estimate_hours(kind: str, model: str, images: float) -> HoursEstimate | None:
    """GPU-hours of so many images through one kind of work; `forward` is a third of `supervised`."""
    speed = speed_of("supervised" if kind == "forward" else kind, model)
    if speed is None:
        return None
    rate = speed.images_per_s * (FORWARD if kind == "forward" else 1.0)
    source = f"a third of {speed.source}" if kind == "forward" else speed.source
    return HoursEstimate(images / rate / 3600, f"{images:,.0f} images at {rate:,.0f} images/s ({source})")
