"""Networks that come with the package: small, sound, not untrained, each with its card."""

import re
from importlib.resources import files

import pytest
import torch
import torch.nn.functional as F

import mixlab
from mixlab.backbones.zoo import SHIPPED
from mixlab.data.images import parse_source
from mixlab.evaluation.target import as_target, distinct_targets, load_target
from mixlab.studies.speedrun import page
from mixlab.studies.speedrun.record import listed

NUM_SCENES = 20


def test_all_of_them_are_small_and_come_as_targets_with_their_training() -> None:
    folder = files("mixlab") / "shipped"
    names = {
        f"shipped/{file.name.removesuffix('.safetensors')}": file for file in folder.iterdir() if ".safe" in file.name
    }
    assert set(names) == set(SHIPPED)
    assert sum(len(file.read_bytes()) for file in names.values()) < 25e6
    for name in SHIPPED:
        card = (folder / f"{name.removeprefix('shipped/')}.md").read_text(encoding="utf-8")
        assert f"# {name}" in card and "| seed, commit | 0, " in card and "not measured" not in card
        target = load_target(name)
        assert (target.label, target.training) == (name, "dino")
    assert load_target("shipped/vit=mine").label == "mine"


def test_one_that_was_created_in_python_is_known_until_it_is_trained_further() -> None:
    for name in SHIPPED:
        found, loaded = as_target(mixlab.create_model(name)), load_target(name, device="cpu")
        assert (found.subject, found.weights, found.seed) == (loaded.subject, loaded.weights, loaded.seed)
    changed = mixlab.create_model("shipped/vit")
    with torch.no_grad():
        next(changed.parameters()).mul_(1.01)
    assert (as_target(changed).label, as_target(changed).training) == ("vit_tiny", "")
    other = mixlab.create_model("vit_tiny", dim=64, depth=1)
    assert [target.label for target in distinct_targets([mixlab.create_model("shipped/vit"), other])] == [
        "shipped/vit", "vit_tiny"
    ]  # fmt: skip


def test_networks_of_one_label_are_refused_with_advice_that_works() -> None:
    alike = [mixlab.create_model("vit_tiny", dim=64, depth=1) for _ in range(2)]
    with pytest.raises(
        ValueError, match=r"different labels, got .*; give mixlab\.Target\(label=NAME, backbone=model\)"
    ):
        distinct_targets(alike)
    named = [mixlab.Target(label=name, backbone=model) for name, model in zip("ab", alike, strict=True)]
    assert distinct_targets(named) == named


def test_cards_name_the_settings_that_their_published_records_name() -> None:
    records = page.read_records(page.DOCS)
    for name in SHIPPED:
        card = (files("mixlab") / f"{name}.md").read_text(encoding="utf-8")
        recipe, commit = re.findall(r"\| dino, `(\w+)`", card)[0], re.findall(r"\| seed, commit \| 0, (\w+)", card)[0]
        made = (recipe, commit, 0, False)
        (changed,) = (
            record["changed"]
            for record in records
            if (record["recipe"], record["provenance"]["commit"], record["seed"], record["held_out"]) == made
        )
        assert ", ".join(filter(None, (f"`{recipe}`", listed(changed), "4,500 steps"))) in card


@pytest.mark.parametrize("name", SHIPPED)
def test_they_know_a_scene_again_that_is_mirrored_shifted_and_relit(name: str) -> None:
    source = parse_source(f"shapes:n={NUM_SCENES},size=96")
    scenes = torch.stack([source.load(index) for index in range(NUM_SCENES)]).float()
    light = 0.85 + 0.3 * torch.rand(NUM_SCENES, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    views = scenes[..., :64, :64], scenes[..., 8:72, 8:72].flip(-1) * light

    @torch.no_grad()
    def known_again(model: mixlab.Backbone) -> float:
        seen, again = (F.normalize(model(model.preprocess(view.clamp(0, 255).byte())), dim=-1) for view in views)
        return float(((seen @ again.T).argmax(1) == torch.arange(NUM_SCENES)).float().mean())

    model = mixlab.create_model(name).eval()
    assert known_again(model) > max(0.5, 2 * known_again(model.twin(0).eval()))


def test_wrong_names_and_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean shipped/vit"):
        mixlab.create_model("shipped/vim")
    with pytest.raises(ValueError, match="comes with its weights"):
        mixlab.create_model("shipped/vit", depth=3)
