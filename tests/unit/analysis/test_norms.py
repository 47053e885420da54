"""High-norm tokens: a network that has some, put there by hand, is found out; and a result brings its own pictures."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import mixlab
from mixlab.analysis.exhibit import Exhibit, Picture
from mixlab.analysis.norms import measure_norms, norms_by_layer
from mixlab.analysis.registry import ANALYSES, register_analysis
from mixlab.backbones.backbone import LayerShape
from mixlab.cli import find_command, main
from mixlab.errors import InputError
from mixlab.evaluation.target import Target
from mixlab.report import write_report
from mixlab.run import METRICS, RunDirectory

SIDE, PATCH, LOUD = 64, 8, 40.0


class Loud(mixlab.Backbone):
    """Two layers; in the second, the patches of the first column are so many times as long as all others."""

    name, dim, num_layers, channels, image, family = "loud", 4, 2, 3, SIDE, "other"
    layout = mixlab.TokenLayout(place="none")

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def features(self, images: Any, layers: Any = 1, source: Any = "stream", *, norm: bool = True) -> Any:
        assert not norm, "norms are read before any norm layer"
        side = images.shape[-1] // PATCH
        tokens = torch.ones(len(images), side, side, self.dim)
        for layer in range(2):
            if layer:
                tokens[:, :, 0] *= LOUD
            yield layer, self.layout.split(tokens.flatten(1, 2).clone(), (side, side))

    def layer_shapes(self) -> list[LayerShape]:
        return 2 * [LayerShape(self.dim, PATCH)]

    forward = None


def test_loud_patches_are_found_with_their_share_and_their_place() -> None:
    images = mixlab.ViewedImages("shapes:n=5", size=SIDE, batch=2)
    quiet, loud = norms_by_layer(Loud(), images, factor=3.0)
    assert not quiet.share.any() and quiet.at_border is None and np.allclose(quiet.largest, 1)
    assert np.allclose(loud.share, 1 / 8) and np.allclose(loud.largest, LOUD) and len(loud.share) == 5
    assert loud.at_border == 1 and loud.frequency[:, 0].all() and not loud.frequency[:, 1:].any()
    assert loud.class_token is None and loud.registers is None and loud.median == pytest.approx(2.0)  # of (1, 1, 1, 1)


def test_a_share_of_zero_has_an_interval_with_a_width() -> None:
    model = mixlab.create_model("vit_tiny", dim=32, depth=1, patch=8, image=32, head_dim=16).eval()
    target = Target(label="vit", backbone=model, training="dino")
    found = measure_norms([target], mixlab.ViewedImages("shapes:n=4", size=32), factor=100.0).measurements
    ends = {m.metric: (m.value, m.low, m.high) for m in found}
    bound = stats.binomtest(0, 4).proportion_ci(method="wilson").high
    assert ends["high_norm_share"] == ends["untrained_high_norm_share"] == pytest.approx((0, 0, bound))
    assert ends["high_norm_above_untrained"] == pytest.approx((0, -bound, bound))


@pytest.mark.parametrize("name", ["vit_tiny", "dinomambareg_tiny", "dinovim_tiny", "gatedconv_tiny"])
@torch.no_grad()
def test_norms_are_those_of_the_raw_stream(name: str) -> None:
    small = {} if name == "gatedconv_tiny" else {"head_dim": 16}
    model = mixlab.create_model(name, dim=32, depth=2, patch=8, image=SIDE, **small).eval()
    images = mixlab.ViewedImages("shapes:n=2", size=SIDE)
    found = norms_by_layer(model, images, factor=1.5)
    pixels = model.preprocess(images.together().images)
    branch, stream, grid = model.start(pixels)
    for layer, got in zip(model.layers, found, strict=True):
        branch, stream = layer(branch, stream, grid)
        lengths = model.layout.patches(branch + stream).norm(dim=-1)
        ratios = lengths / lengths.median(1, keepdim=True).values
        assert np.allclose(got.largest, ratios.amax(1).numpy(), rtol=1e-5)
        assert np.allclose(got.share, (ratios > 1.5).double().mean(1).numpy())
        assert (got.registers is not None) == (model.layout.num_registers > 0)
        assert (got.class_token is not None) == (name in ("vit_tiny", "dinovim_tiny"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("norms") / "run"
    model = mixlab.create_model("vit_tiny", dim=32, depth=2, patch=8, image=32, head_dim=16)
    mixlab.save_weights(model, folder.parent / "vit.safetensors")
    options = ["--data", "shapes:n=3", "--num-images", "2", "--run", str(folder), "--device", "cpu"]
    assert main(["norms", str(folder.parent / "vit.safetensors"), *options, "--factor", "1.2"]) == 0
    return folder


def test_the_command_keeps_numbers_pictures_and_captions(run: Path) -> None:
    content = json.loads((run / "results" / "norms.json").read_text())
    assert [figure["file"] for figure in content["exhibit"]["figures"]] == ["norms_maps.png", "norms_by_layer.svg"]
    assert all((run / "figures" / figure["file"]).stat().st_size > 5000 for figure in content["exhibit"]["figures"])
    measured = RunDirectory(run).measurements()
    assert {m.metric for m in measured} >= {"high_norm_share", "untrained_high_norm_share", "largest_norm"}
    assert {m["layer"] for m in measured} == {0, 1} and {m["factor"] for m in measured} == {1.2}
    by_layer = {m["layer"]: m.value for m in measured if m.metric == "high_norm_share"}
    assert max(by_layer.values()) == pytest.approx(content["exhibit"]["rows"][0][2] / 100, abs=1e-4)
    assert [len(layers) for layers in content["layers"].values()] == [2, 2]  # the network and its twin


def test_the_report_shows_a_kind_that_it_does_not_know(run: Path, tmp_path: Path) -> None:
    other = RunDirectory.create(tmp_path / "other")
    content = RunDirectory(run).results()["norms"] | {"kind": "<b>unheard of</b>", "measurements": []}
    content["exhibit"] |= {"title": "<b>bold</b>", "figures": [{"file": "../../x.png", "caption": "a secret"}]}
    content["exhibit"]["rows"] = [["<i>vit</i>", 3]]  # fewer cells than columns
    other.write_result("odd", content)
    (tmp_path / "x.png").write_bytes(b"a secret")
    page = write_report([run, other.path], tmp_path / "page.html").read_text()
    assert "A ring marks a high-norm patch" in page and page.count("data:image/svg+xml;base64") == 1
    assert "&lt;b&gt;bold&lt;/b&gt;" in page and "<b>" not in page and "<i>" not in page
    assert "YSBzZWNyZXQ" not in page and "a secret" not in page.split('id="records"')[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"title": 7}, "has exhibit.title 7, not text"),
        ({"rows": [[[]]]}, r"has exhibit.rows\[0\]\[0\] \[\], not text, a number or null"),
        ({"figures": [{"file": "x.png"}]}, r"has no field exhibit.figures\[0\].caption"),
    ],
)
def test_an_exhibit_of_another_form_is_named(change: dict[str, Any], said: str, run: Path, tmp_path: Path) -> None:
    odd = RunDirectory.create(tmp_path / "odd")
    content = RunDirectory(run).results()["norms"]
    odd.write_result("norms", content | {"exhibit": content["exhibit"] | change})
    with pytest.raises(InputError, match=said):
        write_report([odd.path], tmp_path / "page.html")


PLUGIN = """
from mixlab import Exhibit, Measurement, register_analysis
from mixlab.run.protocols import AnalysisProtocol, Metric
from mixlab.statistics import bootstrap_mean

@register_analysis(num_images=2, metrics={"brightness": Metric("mean pixel", AnalysisProtocol)})
def brightness(targets, images, *, scale: float = 1.0):
    "How bright the images are."
    mean = bootstrap_mean(images.together().images.double().mean((1, 2, 3)) / 255 * scale)
    how = AnalysisProtocol(**images.choices, settings=f"scale {scale}")
    found = [Measurement.of("brightness", mean, subject=t.subject, protocol=how, seed=t.seed) for t in targets]
    return Exhibit(title="Brightness", columns=("model", "mean"), rows=[(t.label, mean.value) for t in targets],
                   measurements=found)
"""


def test_an_analysis_of_a_file_is_a_command_and_its_run_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = tmp_path / "bright_plugin.py", tmp_path / "run"
    file.write_text(PLUGIN)
    monkeypatch.setenv("MIXLAB_IMPORT", "")
    options = ["shipped/vit", "--image", "32", "--run", str(run), "--scale", "0.5", "--device", "cpu"]
    try:
        assert main(["--import", str(file), "brightness", *options]) == 0
        capsys.readouterr()
        main(["--help"])
        assert "how bright the images are" in capsys.readouterr().out
        (measured,) = RunDirectory(run).measurements()
        assert measured["settings"] == "scale 0.5" and 0 < measured.value < 0.5
        assert json.loads((run / "results" / "brightness.json").read_text())["plugins"][0]["module"] == "bright_plugin"
    finally:
        ANALYSES.pop("brightness", None)
        METRICS.pop("brightness", None)
        sys.modules.pop("bright_plugin", None)
    with pytest.warns(UserWarning, match="needs the plugin bright_plugin .*left out"):
        page = write_report([run], tmp_path / "page.html").read_text()
    assert "<h2>Brightness</h2>" in page, "the result shows itself, with or without the plugin"


def test_what_cannot_be_an_analysis_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ANALYSES, "data", dict(ANALYSES.data))
    with pytest.raises(InputError, match=r"must take \(targets, images, \*, options"):
        register_analysis("short")(lambda targets: Exhibit(title="x"))
    with pytest.raises(InputError, match="must take"):
        register_analysis("positional")(lambda targets, images, more: Exhibit(title="x"))
    with pytest.raises(InputError, match="'a b'"):
        register_analysis("a b")(lambda targets, images: Exhibit(title="x"))
    none = register_analysis("nothing")(lambda targets, images: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="returned a NoneType; return an Exhibit"):
        none(Target(label="loud", backbone=Loud()), "shapes:n=1")
    with pytest.raises(InputError, match="3 cells"):
        Exhibit(title="x", columns=("a", "b"), rows=[(1, 2, 3)])
    with pytest.raises(InputError, match="share a name"):
        Exhibit(title="x", pictures=[Picture("a b", "", lambda: None), Picture("a_b", "", lambda: None)])
    register_analysis("knn")(lambda targets, images: Exhibit(title="x"))
    with pytest.raises(InputError, match="'knn', which is a command already"):
        find_command("knn")


def test_a_factor_that_means_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="factor is 0.5; it must lie between 1 and 1e6: try 3"):
        mixlab.measure_norms(replace(Target(label="loud", backbone=Loud())), "shapes:n=1", factor=0.5)
