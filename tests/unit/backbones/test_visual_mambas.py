"""Released checkpoints of the visual Mambas give the released features; sizes are those of the papers' tables."""

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from released_mamba2d import mamba2d_features, mamba2d_state
from released_mambas import isotropic_features, isotropic_state
from released_stages import plain_features, plain_state, staged_features, staged_state
from torch import Tensor

import mixlab
from mixlab.analysis.cost import count_macs, count_with_classifier, on_meta
from mixlab.backbones.isotropic import IsotropicConfig
from mixlab.backbones.visual_mambas import LOCALVIM_TINY, LOCALVMAMBA_SMALL, LOCALVMAMBA_TINY
from mixlab.backbones.weights import WeightsError

SMALL = {"dim": 16, "depth": 2, "image": 64}
DIMS, DEPTHS = (16, 32, 64, 128), (1, 1, 2, 1)
STAGES = {"dims": DIMS, "depths": DEPTHS, "image": 64}
WINDOWS = (("h", "h_flip", "w7", "w2_flip"), ("v", "v_flip", "w2", "w7_flip"), ("h_flip", "w2", "v", "w7"))
CHECKPOINTS = {  # how each project writes its files
    "model": lambda state: {"model": state, "model_ema": {key: value + 1 for key, value in state.items()}, "epoch": 3},
    "module": lambda state: {"state_dict": {f"module.module.{key}": value for key, value in state.items()}},
    "mmcls": lambda state: {"state_dict": {f"backbone.{key}": value for key, value in state.items()} | BESIDE},
}
BESIDE = {"head.fc.weight": torch.zeros(5, 3), "ema_ln1_weight": torch.zeros(3)}


def images_of(height: int, width: int) -> Tensor:
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(height + width))


def check(name: str, state: dict[str, Tensor], path: Path, form: str, features, sizes, **fields) -> mixlab.Backbone:
    torch.save(CHECKPOINTS[form](state), path / "released.pth")
    model = mixlab.create_model(name, weights=path / "released.pth", **fields).eval()
    for size in sizes:
        images = images_of(*size)
        with torch.no_grad():
            torch.testing.assert_close(model(images).double(), features(state, images), rtol=0, atol=1e-4)
    return model


@pytest.mark.parametrize("side", [4, 3], ids=["even", "odd"])  # the class token stands before the middle of an odd grid
def test_vim(side: int, tmp_path: Path) -> None:
    state = isotropic_state("vim", dim=16, depth=2, side=side)
    check("vim_tiny", state, tmp_path, "model", lambda s, x: isotropic_features("vim", s, x), [(side * 16,) * 2],
          dim=16, depth=2, image=side * 16)  # fmt: skip


def test_vim_with_patches_that_overlap_has_a_position_for_each(tmp_path: Path) -> None:
    state = isotropic_state("vim", dim=16, depth=1, side=7)
    torch.save({"model": state}, tmp_path / "plus.pth")
    model = mixlab.create_model("vim_tiny_stride8", dim=16, depth=1, image=64, weights=tmp_path / "plus.pth").eval()
    with pytest.warns(
        UserWarning, match="7 x 7 positions.*vim_tiny_stride8.*stride=8"
    ):  # on the coarse grid it is another network
        mixlab.create_model("vim_tiny", dim=16, depth=1, image=64, weights=tmp_path / "plus.pth")
    [(_, features)] = model.features(images_of(64, 64))
    assert features.grid == (7, 7)
    with pytest.raises(ValueError, match="68px is not covered by patches of 16 in steps of 8; try 64"):
        model(images_of(68, 64))


def test_mamba_reg_reads_all_its_registers(tmp_path: Path) -> None:
    state = isotropic_state("mambareg", dim=16, depth=2, side=4, registers=12, neck=2)
    model = check("mambareg_small", state, tmp_path, "model", lambda s, x: isotropic_features("mambareg", s, x),
                  [(64, 64)], **SMALL)  # fmt: skip
    assert model.dim == 12 * 16 // 2
    [(_, features)] = model.features(images_of(64, 64))
    assert features.registers.shape == (1, 12, 16) and features.summary.shape == (1, model.dim)


@pytest.mark.parametrize(("form", "name"), [("localvim", "localvim_tiny"), ("localvim_cls", "localvim_tiny_midclstok")])
def test_localvim_pads_its_windows_before_the_convolution(form: str, name: str, tmp_path: Path) -> None:
    state, scans = isotropic_state(form, dim=16, depth=2, side=4), [list(kinds) for kinds in WINDOWS]
    sizes = [(64, 64), (57, 50)] if form == "localvim" else [(64, 64)]  # the other takes images of one size
    check(name, state, tmp_path, "module", lambda s, x: isotropic_features(form, s, x, scans), sizes,
          **SMALL, layer_scans=WINDOWS)  # fmt: skip


@pytest.mark.parametrize(("name", "convs", "local"), [("plainmamba_l1", 1, True), ("plainmamba_l2", 2, False)])
def test_plainmamba(name: str, convs: int, local: bool, tmp_path: Path) -> None:
    state = plain_state(dim=16, depth=2, side=4, stem_convs=convs, local=local)
    check(name, state, tmp_path, "mmcls", plain_features, [(64, 64), (48, 80), (53, 41)], **SMALL)


def test_mamba2d_scans_in_one_order_a_layer_and_merges_its_patches_once(tmp_path: Path) -> None:
    state = mamba2d_state(dim=16, depth=5, side=8, merge_after=2)
    model = check("mamba2d_small", state, tmp_path, "mmcls", mamba2d_features, [(64, 64), (72, 48), (60, 52)],
                  dims=(16, 16), depths=(3, 2), image=64)  # fmt: skip
    with torch.no_grad():
        found = [(mixing.scans, mixing.grid) for _, mixing in model.mixings(images_of(64, 64))]
    kinds = ("h", "h_flip", "v", "v_flip", "h")
    assert found == [((kind,), (8, 8) if layer < 3 else (4, 4)) for layer, kind in enumerate(kinds)]
    smaller = mixlab.create_model("mamba2d_small", dims=(16, 16), depths=(3, 2), image=32)
    report = mixlab.load_weights(smaller, tmp_path / "released.pth")
    assert report.resized == ("stem.positions.table: 8 x 8 to 4 x 4",)


class HistoryBuffer:  # as mmengine's: arrays, and methods that are pickled by name
    def __init__(self) -> None:
        self.losses, self.methods = np.ones(3), {"mean": self.mean}

    def mean(self) -> float:
        raise AssertionError("nothing in a file is run")


def test_a_checkpoint_of_mmengine_is_read_without_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mmengine.logging.history_buffer")
    module.HistoryBuffer = HistoryBuffer  # type: ignore[attr-defined]
    monkeypatch.setattr(HistoryBuffer, "__module__", module.__name__)
    for name in ("mmengine", "mmengine.logging", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    state = mamba2d_state(dim=16, depth=3, side=8, merge_after=1)
    averages = {f"module.{key}": value + 1 for key, value in state.items()}
    hub = {"message_hub": {"log_scalars": {"loss": HistoryBuffer()}}, "ema_state_dict": averages}
    torch.save({"state_dict": state} | hub, tmp_path / "epoch.pth")
    model = mixlab.create_model("mamba2d_small", dims=(16, 16), depths=(2, 1), image=64)
    assert mixlab.load_weights(model, tmp_path / "epoch.pth").part == "state_dict"
    torch.testing.assert_close(model.summary_norm.weight.data, state["ln2.weight"])


@pytest.mark.parametrize("expand", [1, 2])
def test_vmamba_in_its_current_form(expand: int, tmp_path: Path) -> None:
    state = staged_state("vmamba", [*DIMS], [*DEPTHS], expand=expand)
    sizes = [(64, 64), (44, 76)]
    check("vmamba_tiny_s1l8", state, tmp_path, "model", lambda s, x: staged_features("vmamba", s, x), sizes,
          **STAGES, expand=expand)  # fmt: skip
    one_file = {  # the names of the version in one file, and linear layers as convolutions
        key.replace("x_proj_weight", "x_proj.weight").replace("dt_projs_weight", "dt_projs.weight"): (
            value.flatten(0, 1) if key.endswith(("x_proj_weight", "dt_projs_weight")) else value
        )
        for key, value in state.items()
    }
    one_file |= {key: value[..., None, None] for key, value in one_file.items() if key.endswith("in_proj.weight")}
    check("vmamba_tiny_s1l8", one_file, tmp_path, "model", lambda _, x: staged_features("vmamba", state, x), sizes[:1],
          **STAGES, expand=expand)  # fmt: skip


def test_vmamba_in_its_first_form_and_under_its_first_names(tmp_path: Path) -> None:
    state = staged_state("vmamba0", [*DIMS], [*DEPTHS])
    released = lambda _, x: staged_features("vmamba0", state, x)  # noqa: E731
    check("vmamba_tiny", state, tmp_path, "model", released, [(64, 64), (44, 76)], **STAGES)
    renames = {"patch_embed.0.": "patch_embed.proj.", "patch_embed.2.": "patch_embed.norm.", ".op.": ".self_attention.",
               "classifier.norm": "norm", "classifier.head": "head"}  # fmt: skip
    old = {}
    for key, value in state.items():
        for now, then in renames.items():
            key = key.replace(now, then)
        key = key.replace(".norm.", ".ln_1.") if ".blocks." in key and "self_attention" not in key else key
        old[key] = value
    check("vmamba_tiny", old, tmp_path, "model", released, [(64, 64)], **STAGES)
    one_file = {
        key.replace("downsample.norm", "downsample.1").replace("downsample.reduction", "downsample.2"): value
        for key, value in state.items()
    }
    check("vmamba_tiny", one_file, tmp_path, "model", released, [(64, 64)], **STAGES)


def test_localvmamba_scans_windows_that_pad_the_grid(tmp_path: Path) -> None:
    state = staged_state("localvmamba", [*DIMS], [*DEPTHS])
    scans = [list(WINDOWS[number % 3]) for number in range(5)]
    check("localvmamba_tiny", state, tmp_path, "module", lambda s, x: staged_features("localvmamba", s, x, scans),
          [(64, 64), (44, 76)], **STAGES, scans=WINDOWS)  # fmt: skip


def test_efficientvmamba_skips_rows_and_columns(tmp_path: Path) -> None:
    state = staged_state("efficientvmamba", [*DIMS], [*DEPTHS])
    check("efficientvmamba_tiny", state, tmp_path, "module", lambda s, x: staged_features("efficientvmamba", s, x),
          [(64, 64), (44, 76)], **STAGES)  # fmt: skip


def test_searched_scans_are_as_long_as_their_models_and_four_for_each_layer() -> None:
    for scans, depth in ((LOCALVIM_TINY, 20), (LOCALVMAMBA_TINY, 15), (LOCALVMAMBA_SMALL, 33)):
        assert len(scans) == depth and {len(kinds) for kinds in scans} == {4}
    assert LOCALVIM_TINY[7] == ("h_flip", "v", "v_flip", "w2_flip")
    assert LOCALVMAMBA_SMALL[-1] == ("h", "v", "w7", "w7_flip")


def test_files_that_do_not_belong_are_answered_with_what_they_hold(tmp_path: Path) -> None:
    vim, staged = isotropic_state("vim", dim=16, depth=2, side=4), staged_state("vmamba", [*DIMS], [*DEPTHS], expand=1)
    torch.save({"model": vim}, tmp_path / "vim.pth")
    torch.save({"model": staged}, tmp_path / "vmamba.pth")
    torch.save({"model": mamba2d_state(dim=16, depth=3, side=4, merge_after=1)}, tmp_path / "mamba2d.pth")
    cases = {
        ("vim_tiny", "mamba2d.pth"): "Mamba-2D weights, trained with mamba1 in stages behind a stem of kind positions",
        ("mamba2d_small", "mamba2d.pth"): r"depths=\(2, 1\), dims=\(16, 16\)",
        ("localvim_tiny", "vim.pth"): "localvim_tiny has mamba1 and no extra tokens",
        ("vim_tiny", "vmamba.pth"): "VMamba, current form weights, trained with cross_scan in stages",
        (
            "vmamba_tiny_s1l8",
            "vim.pth",
        ): "holds Vim weights, trained with mamba1 and a class token in the middle; vmamba",
        ("dinovim_tiny", "vim.pth"): "holds Vim weights, trained with mamba1",
        ("vmamba_tiny", "vmamba.pth"): "vmamba_tiny has cross_scan in stages behind a stem of kind patch",
        ("vmamba_tiny_s1l8", "vmamba.pth"): r"depths=\(1, 1, 2, 1\), dims=\(16, 32, 64, 128\)\)",
        ("vim_tiny", "vim.pth"): r"create_model\('vim_tiny', dim=16, depth=2\)",
    }
    for (name, file), sentence in cases.items():
        with pytest.raises(WeightsError, match=sentence):
            mixlab.create_model(name, weights=tmp_path / file)
    half = {key: value for key, value in vim.items() if "layers.1.mixer.x_proj_b" not in key}
    torch.save({"model": half}, tmp_path / "half.pth")
    with pytest.raises(WeightsError, match=r"of another shape \(layers.1.mixer.selection.x_proj is \(1, 33, 32\)"):
        mixlab.create_model("vim_tiny", **SMALL, weights=tmp_path / "half.pth")
    first = {key: value for key, value in vim.items() if not key.startswith(("layers.1.", "norm_f", "head"))}
    torch.save({"model": first}, tmp_path / "first.pth")
    with pytest.raises(WeightsError, match=r"\(Vim, model, .*, depth 1\) does not fit .*: \d+ missing \(layers.1"):
        mixlab.create_model("vim_tiny", **SMALL, weights=tmp_path / "first.pth")
    one_way = {key: value for key, value in vim.items() if "_b" not in key}
    torch.save({"model": one_way}, tmp_path / "one_way.pth")
    with pytest.raises(WeightsError, match="which no known format has"):  # it was taken for a DinoVim
        mixlab.create_model("vim_tiny", **SMALL, weights=tmp_path / "one_way.pth")
    other = {key.replace("conv1d_b", "conv1d_c"): value for key, value in vim.items()}
    torch.save({"model": other}, tmp_path / "variant.pth")
    with pytest.raises(WeightsError, match="layers.0.mixer.conv1d_c.weight"):
        mixlab.create_model("vim_tiny", **SMALL, weights=tmp_path / "variant.pth")


# With a head for 1000 classes: parameters of the released classes; GMACs and millions as in MambaOut, Table 1, or in
# the model's own table. Scans count as in VMamba's: 9 L E N, the skip, beside multiply-accumulates.
SIZES: dict[str, tuple[int, float | None]] = {
    "vim_tiny": (7_148_008, None), "vim_small": (25_796_584, None), "vim_base": (97_598_440, None),
    "vim_tiny_stride8": (7_250_344, None), "vim_small_stride8": (26_001_256, None),
    "mambareg_tiny": (9_264_232, None), "mambareg_small": (27_801_064, None),
    "mambareg_base": (99_301_096, None), "mambareg_large": (341_222_376, None),
    "plainmamba_l1": (7_551_656, 3.0), "plainmamba_l2": (26_145_832, 8.1), "plainmamba_l3": (50_956_456, 14.4),
    "mamba2d_small": (24_505_192, None), "mamba2d_base": (94_425_832, None),
    "localvim_tiny": (7_994_152, None), "localvim_tiny_midclstok": (7_994_536, None),
    "localvim_small": (27_783_784, None),
    "vmamba_tiny": (22_893_448, 5.6), "vmamba_small": (44_417_416, 11.2), "vmamba_base": (76_254_056, 18.0),
    "vmamba_tiny_s2l5": (30_705_832, 4.9), "vmamba_small_s2l15": (50_147_752, 8.7),
    "vmamba_base_s2l15": (88_557_800, 15.4),
    "vmamba_tiny_s1l8": (30_249_064, 4.9), "vmamba_small_s1l20": (49_012_840, 8.6),
    "vmamba_base_s1l20": (86_614_504, 15.2),
    "localvmamba_tiny": (25_527_160, 5.7), "localvmamba_small": (49_748_536, 11.4),
    "efficientvmamba_tiny": (6_493_660, 0.8), "efficientvmamba_small": (11_273_688, 1.3),
    "efficientvmamba_base": (33_717_136, 4.0),
}  # fmt: skip
# Tables that count a scan less than VMamba does, or not at all: theirs lies between products alone and our count.
BRACKETED = {"vim_tiny": 1.5, "vim_small": 5.1, "localvim_tiny": 1.5, "localvim_small": 4.8}


COUNT_ALL = bool(os.environ.get("MIXLAB_COMPILE_ALL"))


def test_parameters_and_macs_are_those_of_the_released_sizes() -> None:
    for name, (parameters, gmacs) in SIZES.items():
        model = on_meta(name)
        assert count_with_classifier(model) == parameters, name
        if not COUNT_ALL and not {"tiny", "l1"} & {*name.split("_")}:
            continue  # the same blocks, more or wider: their parameters say so
        if gmacs is not None:  # norms, activations and gates are not counted here
            assert macs(model) / 1e9 == pytest.approx(gmacs, rel=0.02, abs=0.05), name
        if name in BRACKETED:
            total, scans = (
                macs(model),
                model.num_layers * model.config.mixer.mixing_macs(197, model.config.dim) * 9 // 2,
            )
            assert (total - scans) / 1e9 < BRACKETED[name] < total / 1e9, name


def macs(model: mixlab.Backbone) -> int:
    """By the cost of one block of the depth that sizes differ in: the rest is the same."""
    if isinstance(model.config, IsotropicConfig):
        one, two = (count_macs(on_meta(model.name, depth=depth), 224) for depth in (1, 2))
        return one + (model.num_layers - 1) * (two - one)
    if model.config.scans:  # whose padding differs from block to block
        return count_macs(model, 224)
    first, second, third, last = model.config.depths
    one, two = (count_macs(on_meta(model.name, depths=(first, second, depth, last)), 224) for depth in (1, 2))
    return one + (third - 1) * (two - one)
