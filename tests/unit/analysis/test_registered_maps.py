"""Kinds of activation map from outside: offered wherever maps are, and refused where they are wrong."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import mixlab
from mixlab.analysis.maps import MAPS, activation_map, find_map
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import read_samples
from mixlab.cli import main
from mixlab.evaluation.target import as_target
from mixlab.plugins import VARIABLE
from tests.unit.app.live_page import ask, request, serve

IMAGES = torch.rand(2, 3, 32, 24)
PLUGIN = """
import mixlab

@mixlab.register_map
def first_channel(features):
    "The first channel of each patch.\\n\\nNot part of the caption."
    return features.patches[..., 0]

@mixlab.register_map("strongest_row")
def strongest(rows, mixing):
    "The largest weight of each patch over heads."
    return rows.amax((1, 2))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "channel_maps.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delitem(mixlab.plugins.sys.modules, file.stem, raising=False)
    return file


def tiny(name: str = "vit_tiny") -> mixlab.Backbone:
    return mixlab.create_model(name, dim=32, depth=2, patch=8, image=32, head_dim=16)


def test_a_map_of_ones_own_is_a_map_like_any_other(plugin: Path) -> None:
    mixlab.plugins.load_plugin(str(plugin))
    model = tiny()
    _, features = next(model.features(IMAGES))
    torch.testing.assert_close(activation_map(model, IMAGES, "first_channel"), features.patches[..., 0])
    assert find_map("norm+first_channel")(model, IMAGES).shape == (2, 2, 4, 3)
    rows = MAPS["mixing_rows"](model, IMAGES)
    torch.testing.assert_close(activation_map(model, IMAGES, "strongest_row"), rows.amax(1))
    assert MAPS["first_channel"].about == "the first channel of each patch"
    scored = mixlab.score_maps([model], "shapes:n=4,size=64", study="map")
    assert {"first_channel", "strongest_row", "cosine"} <= {row.protocol.map for row in scored.rows}


def test_commands_offer_it_and_results_name_its_plugin(
    plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on = ["shipped/vit", "--data", "shapes:n=4", "--run", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["maps", *on, "--map", "first_channel"]) == 1
    assert "or load the plugin that adds it (mixlab --import)" in " ".join(capsys.readouterr().err.split())
    assert main(["--import", str(plugin), "maps", *on, "--map", "first_channel+norm"]) == 0
    assert main(["auc", *on, "--map", "strongest_row"]) == 0
    capsys.readouterr()
    for name in ("maps", "auc_model"):
        (needed,) = json.loads((tmp_path / "out" / "results" / f"{name}.json").read_text())["plugins"]
        assert needed["module"] == "channel_maps" and needed["file"] == str(plugin)
    with pytest.raises(SystemExit):
        main(["maps", "--help"])
    assert "of plugins: first_channel, strongest_row." in " ".join(capsys.readouterr().out.split())
    for name in ("first_channel", "strongest_row"):
        del MAPS[name]
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    assert "left out" not in capsys.readouterr().err, "its numbers and pictures need no code of the plugin"
    assert "first_channel" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_offers_it_and_says_what_is_wrong(plugin: Path, tmp_path: Path) -> None:
    mixlab.plugins.load_plugin(str(plugin))

    @mixlab.register_map
    def broken(features: mixlab.Features) -> torch.Tensor:
        return features.summary

    Image.new("RGB", (32, 32), (9, 90, 200)).save(tmp_path / "blue.png")
    samples = read_samples([str(tmp_path / "blue.png")], 1)
    models = [as_target(tiny()), as_target(mixlab.create_model("gatedconv_tiny", dim=32, depth=1, patch=8, image=32))]
    with serve(Laboratory(models, samples, cache_bytes=2**22)) as address:
        about = request(address, "GET", "/api/about").body
        cards, (vit, conv) = {card["id"]: card for card in about["maps"]}, about["models"]
        assert cards["first_channel"]["needs"] == "nothing" and "matrix" in cards["strongest_row"]["needs"]
        assert {"first_channel", "strongest_row"} <= {*vit["maps"]} and "strongest_row" not in conv["maps"]
        question = {"kind": "map", "picture": about["samples"][0]["id"], "model": "vit_tiny", "layer": 0}
        assert ask(address, {**question, "map": "first_channel"}).status == 200
        reply = ask(address, {**question, "map": "broken"})
        assert reply.status == 422 and "the map 'broken' of the plugin" in json.dumps(reply.body)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda f: f.patches[..., 0].numpy(), r"gives a ndarray; return a tensor \(2, 4, 3\), or \(2, K, 4, 3\)"),
        (lambda f: f.summary, r"gives a tensor of shape \(2, 32\); return"),
        (lambda f: f.patches, r"shape \(2, 4, 3, 32\)"),
        (lambda f: f.patches[..., 0].mT, r"shape \(2, 3, 4\)"),
        (lambda f: f.patches[:1, ..., 0], r"shape \(1, 4, 3\)"),
        (lambda f: f.patches[:, None, ..., 0][:, :0], r"shape \(2, 0, 4, 3\)"),
        (lambda f: f.patches[..., 0] / 0, "gives NaN or infinity where the network does not"),
        (lambda f: f.patches[..., 0] * 1j, "complex values"),
    ],
)
def test_what_is_no_map_is_refused_with_its_plugin(read, said) -> None:
    mixlab.register_map("wrong")(read)
    with pytest.raises(mixlab.WorkError, match=rf"the map 'wrong' of the plugin {__name__} .*{said}"):
        activation_map(tiny(), IMAGES, "wrong")


def test_a_wrong_map_is_not_left_out_in_silence_where_all_are_scored() -> None:
    mixlab.register_map("wrong")(lambda features: features.summary)
    with pytest.raises(mixlab.WorkError, match="the map 'wrong'"):
        mixlab.score_maps([tiny()], "shapes:n=2", study="map")


def test_a_mistake_in_a_map_is_not_taken_for_a_network_without_one() -> None:
    mixlab.register_map("wrong")(lambda features: features.patches.reshape(int("seven")))
    with pytest.raises(ValueError, match="invalid literal"):
        mixlab.score_maps([tiny()], "shapes:n=2", study="map")


def test_a_map_of_several_parts_does_not_go_together_with_others() -> None:
    model = mixlab.create_model("dinomambareg_tiny", dim=32, depth=1, patch=8, image=32, num_registers=2)
    with pytest.raises(mixlab.InputError, match="'cosine\\+register_cosine' includes a map with several parts"):
        activation_map(model, IMAGES, "cosine+register_cosine")


def test_a_network_without_such_a_map_is_left_out_and_its_own_nan_is_not_the_plugins() -> None:
    @mixlab.register_map
    def needs_registers(features):
        if not features.registers.shape[1]:
            raise mixlab.InputError("no registers")
        return features.patches[..., 0]

    @mixlab.register_map
    def plain(features):
        return features.patches[..., 0]

    model = tiny()
    names = {row.protocol.map for row in mixlab.score_maps([model], "shapes:n=2", study="map").rows}
    assert "needs_registers" not in names and "plain" in names
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    assert activation_map(model, IMAGES, "plain").isnan().any()


def test_what_cannot_be_registered_says_why() -> None:
    for given, said in (
        (lambda: mixlab.register_map("a+b")(lambda f: f), r"cannot be called 'a\+b'"),
        (lambda: mixlab.register_map("default")(lambda f: f), "cannot be called 'default', which on the page"),
        (lambda: mixlab.register_map(lambda f: f), "cannot be called '<lambda>'"),
        (lambda: mixlab.register_map("cut")(lambda f: f), "registers the map 'cut', already registered by mixlab"),
        (lambda: mixlab.register_map("three")(lambda a, b, c: a), r"three\(features\), or .* three\(rows, mixing\)"),
    ):
        with pytest.raises(mixlab.InputError, match=said):
            given()
