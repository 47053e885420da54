"""The first screen is the answer: sentences that follow from numbers, verdicts, one image through every model."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_run import keep_results, make_example
from PIL import Image
from test_models import KNN, measured, table_of

from mixlab.analysis.maps import MAPS
from mixlab.choices import SHOWN_MAP
from mixlab.report import write_report
from mixlab.report.conclusions import conclusions
from mixlab.report.findings import Findings, read_findings
from mixlab.report.models import model_table
from mixlab.report.parts import _num_models
from mixlab.report.photograph import through_models
from mixlab.report.pictures import picture_rows, said_of_maps
from mixlab.report.same_images import join_maps
from mixlab.run import UNTRAINED, Measurement, RunDirectory
from mixlab.run.protocols import MapProtocol, RankProtocol


def said(*measurements: Measurement, claims: tuple[dict[str, Any], ...] = ()) -> list[str]:
    table = table_of(*measurements)
    return ["".join(part.text for part in sentence) for sentence in conclusions(table, Findings(), claims)]


def with_twins(**values: float) -> list[Measurement]:
    """Networks by name, with kNN accuracies; untrained ones have 20 %."""
    found = []
    for label, value in values.items():
        model = f"{label}_model"
        found += [measured(label, value, model=model), measured(label, 0.2, training=UNTRAINED, model=model)]
    return found


def test_it_says_who_learnt_and_who_is_highest() -> None:
    (one,) = said(*with_twins(a=0.6, b=0.7))
    assert (
        one.startswith("All 2 networks have learnt")
        and "kNN on drawn scenes (shapes): b is highest with 70.0 %, a lowest" in one
    )
    (one,) = said(*with_twins(a=0.6, b=0.21))
    assert (
        one.startswith("a has learnt (significantly better than its untrained twin")
        and "; b has not. kNN on drawn scenes (shapes)" in one
    )
    (one,) = said(*with_twins(a=0.21, b=0.21))
    assert one.startswith("None of the 2 networks is significantly better than its untrained twin by kNN")
    assert "about architectures, not about training" in one
    (one,) = said(*with_twins(a=0.6, b=0.7), measured("c", 0.4))
    assert one.startswith("All 2 networks with untrained twins have learnt"), "nothing is said of the third"
    (one,) = said(*with_twins(a=0.6))
    assert one.startswith("a has learnt: it is significantly better than its untrained twin by kNN or linear probe.")
    assert said(measured("a", 0.4), measured("b", 0.4)) == ["kNN on drawn scenes (shapes): all have 40.0 %."]
    (one,) = said(measured("a", 0.4), measured("b", 0.3))
    assert one == "kNN on drawn scenes (shapes): a is highest with 40.0 %, b lowest with 30.0 %.", (
        "without twins, nothing of learning"
    )


def test_it_names_all_that_share_a_place_and_says_where_chance_may_have_ordered_them() -> None:
    values = {"a": (0.41, 0.3, 0.5), "b": (0.4, 0.35, 0.45), "c": (0.4, 0.3, 0.5)}
    found = [replace(measured(label, value), low=low, high=high) for label, (value, low, high) in values.items()]
    start = "kNN on drawn scenes (shapes): a is highest with 41.0 %, b and c lowest with 40.0 %"
    assert said(*found) == [f"{start}; their intervals overlap."]
    assert said(replace(found[0], low=0.46), *found[1:2]) == [start.replace("b and c", "b") + "."]


def test_the_order_is_of_networks_trained_in_one_way() -> None:
    found = [measured("a", 0.4), measured("b", 0.3), measured("c", 0.9, training="supervised")]
    assert said(*found) == ["kNN on drawn scenes (shapes) after dino: a is highest with 40.0 %, b lowest with 30.0 %."]


def test_the_usual_training_is_that_of_most_seeds() -> None:
    seeds = [measured(f"a-s{seed}", 0.4, seed=seed, model="a") for seed in (0, 1)]
    found = [*seeds, measured("b", 0.3, training="supervised", model="b")]
    assert said(*found) == ["kNN on drawn scenes (shapes) after dino: 40.0 % for a."]


def test_maps_stand_beside_their_baselines_on_the_same_images_alone() -> None:
    def auc(label: str, data: str, score: float, twin: float) -> list[Measurement]:
        how = MapProtocol(data=data, map="cosine", layer=2)
        values = {"binary_auc": score, "untrained": twin, "above_untrained": score - twin}
        values |= {"centre_prior": 0.8} if data == "masks" else {}
        return [measured(label, v, how, metric=m, model=f"{label}_model") for m, v in values.items()]

    (one,) = said(*auc("a", "masks", 0.7, 0.6), *auc("b", "masks", 0.65, 0.5), *auc("a", "voc", 0.9, 0.8))
    assert one == (
        "Maps of a score highest on masks: Binary-AUC 0.700, significantly above its untrained twin (0.600); a blob in "
        "the centre of the image scores 0.800."
    )


def test_the_map_that_pictures_show_goes_before_the_papers() -> None:
    def auc(label: str, name: str, score: float, data: str = "masks") -> list[Measurement]:
        how = MapProtocol(data=data, map=name, layer=2)
        values = {"binary_auc": score, "untrained": 0.6, "above_untrained": score - 0.6, "centre_prior": 0.8}
        return [measured(label, v, how, metric=m, model=f"{label}_model") for m, v in values.items()]

    scores = [*auc("a", "cosine", 0.95), *auc("a", SHOWN_MAP, 0.7), *auc("b", SHOWN_MAP, 0.75)]
    findings = Findings()
    for m in [*scores, *auc("a", SHOWN_MAP, 0.99, "voc")]:  # fewer networks
        findings.measurements[m.identity] = m
    (one,) = conclusions(table_of(*scores), findings, ())
    assert "".join(part.text for part in one) == (
        f"Maps of b score highest on masks: Binary-AUC of {SHOWN_MAP} 0.750, significantly above its untrained twin "
        "(0.600); a blob in the centre of the image scores 0.800."
    )


def test_no_single_seed_is_the_highest_where_another_network_has_the_higher_mean() -> None:
    how = MapProtocol(data="masks", map=SHOWN_MAP, layer=2)
    scores = {"a-s0": 0.99, "a-s1": 0.61, "b-s0": 0.9, "b-s1": 0.88}
    findings = Findings()
    for label, score in scores.items():
        m = measured(label, score, how, metric="binary_auc", model=label[0], seed=int(label[-1]))
        findings.measurements[m.identity] = m
    (one,) = conclusions(table_of(), findings, ())
    assert "".join(part.text for part in one).startswith("Maps of b (2 seeds) score highest on masks: Binary-AUC of")
    assert one[1].text == "0.890"


def test_where_images_have_two_sizes_the_highest_is_that_of_one() -> None:
    findings = Findings()
    for label, size, score in (("a", 80, 0.8), ("b", 80, 0.7), ("c", 160, 0.9)):
        how = MapProtocol(data="masks", map=SHOWN_MAP, layer=2, image=size)
        m = measured(label, score, how, metric="binary_auc", model=label)
        findings.measurements[m.identity] = m
    (one,) = conclusions(table_of(), findings, ())
    assert "".join(part.text for part in one).startswith("Maps of a score highest on masks at 80 px: Binary-AUC of")


def rank(family: str, value: float, chunk: int = 64) -> Measurement:
    how = RankProtocol(data="photos", definition="numerical", chunk=chunk)
    m = measured(family, value, how, metric="off_diagonal_rank", model=family)
    return replace(m, subject=replace(m.subject, family=family), low=None, high=None)


def test_ranks_that_do_not_differ_or_are_full_are_not_ordered() -> None:
    assert said(rank("attention", 50, 50), rank("mamba2", 51, 51)) == [], "a network with a token more"
    assert said(rank("attention", 50, 50), rank("linear_attention", 50, 50)) == []
    assert said(rank("attention", 31.6), rank("linear_attention", 32.4)) == []
    assert said(rank("attention", 40, 50), rank("mamba2", 40.7, 51)) == []
    (one,) = said(rank("attention", 50, 50), rank("mamba2", 31, 51))
    assert "rank 50 against 31" in one


def test_three_sentences_are_enough_and_ranks_name_their_mixers() -> None:
    ledger = {"claims": [1, 2, 3], "counts": {"supported": 2, "not measured": 1}}
    found = said(rank("attention", 64), rank("mamba2", 16), claims=(ledger,))
    assert found == [
        "Softmax attention can pass more information between distant patches than a Mamba-2 scan: the off-diagonal "
        "blocks of its matrices have rank 64 against 16.",
        "Of 3 claims of the papers: 2 supported, 1 not measured.",
    ]
    assert len(said(*with_twins(a=0.6, b=0.7), rank("attention", 64), rank("mamba2", 16), claims=(ledger, ledger))) == 3
    assert said(measured("a", 0.3, KNN)) == ["kNN on drawn scenes (shapes): 30.0 % for a."]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = make_example(tmp_path_factory.mktemp("first") / "run")
    Image.fromarray(np.full((8, 8, 3), 90, dtype=np.uint8)).save(run.figure_path("segmentation.png"))
    run.write_result("segmentation", {"kind": "segmentation", "data": "<ade>", "measurements": []})
    text = write_report([run.path], run.path / "page.html", title="My <i>title</i>").read_text()
    return re.sub(r"\s+", " ", text)


def test_the_first_screen_comes_before_all_else(page: str) -> None:
    header, rest = page.split("</header>")
    assert "<title>mixlab report: run: My &lt;i&gt;title&lt;/i&gt;</title>" in page and "<i>" not in page
    assert "1</b> supported" in header and "1</b> not measured" in header
    for what in (
        "What the framed patch reads in vit",
        "Activation map of vit",
        "Principal components of vim as colours",
        "Mixing matrix of vim",
    ):
        assert what in header
    assert rest.index('id="ledger"') < rest.index('id="models"') < rest.index('id="made"')


def test_results_without_a_reading_still_have_their_matrices(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    content, arrays = run.results()["matrices"], dict(run.arrays("matrices"))
    names = [name for name in arrays if name.startswith("reading_")]

    def shown(patch: list[int] | None, readings: dict[str, Any]) -> bool:
        models = [{k: v for k, v in (model | {"patch": patch}).items() if v is not None} for model in content["models"]]
        kept = {name: values for name, values in arrays.items() if name not in names}
        run.write_result("matrices", content | {"models": models}, kept | readings)
        findings = read_findings([run.path])
        through = through_models(findings.of("maps"), findings, {})
        assert through is not None and through["has_matrices"]
        return bool(through["has_readings"])

    whole = {name: arrays[name] for name in names}
    assert shown([1, 2], whole)
    assert not shown(None, whole) and not shown([1, 2], {}) and not shown([4, 0], whole) and not shown([1], whole)
    assert not shown([1, 2], {name: values[0] for name, values in whole.items()})


@pytest.mark.parametrize("other", [{"images": ["elsewhere"]}, {"protocol": {"fit": "crop"}}])
def test_the_first_screen_shows_one_image(tmp_path: Path, other: dict[str, Any]) -> None:
    run = make_example(tmp_path / "run")
    content, arrays = run.results()["matrices"], dict(run.arrays("matrices"))
    run.write_result("matrices", content | other, arrays)
    findings = read_findings([run.path])
    through = through_models(findings.of("maps"), findings, {})
    assert through is not None and not through["has_matrices"] and not through["has_readings"]


def test_networks_that_were_looked_at_one_by_one_are_shown_together(tmp_path: Path) -> None:
    places = [make_example(tmp_path / name) for name in ("vit-s0", "vit-s1", "vim-s0", "other")]
    for place in places:
        content, arrays = place.results()["maps"], dict(place.arrays("maps"))
        (old, *_), label = content["subjects"], place.path.name
        images = ["elsewhere"] * len(content["images"]) if label == "other" else content["images"]
        kept = {"images": arrays["images"], **{
            name.replace(old["label"], label): values for name, values in arrays.items() if name.endswith(old["label"])
        }}  # fmt: skip
        own = {"images": images, "subjects": [old | {"label": label}], "maps": {label: "cosine"}}
        place.write_result("maps", content | own, kept)
    alone, together = join_maps(read_findings([tmp_path]).of("maps"), {})
    assert [subject["label"] for subject in together.content["subjects"]] == ["vim-s0", "vit-s0"], "one of two seeds"
    assert len(picture_rows(together)["rows"]) == 1 + 2 and [part.run.path.name for part in together.parts] == [
        "vim-s0",
        "vit-s0",
    ]
    assert alone.run.path.name == "other" and not alone.parts
    shutil.copytree(places[0].path, tmp_path / "same_label")  # perhaps of another network
    assert len(join_maps(read_findings([tmp_path]).of("maps"), {})) == 3


def test_maps_are_called_what_they_are() -> None:
    assert said_of_maps({"maps": {"a": "cosine", "b": "pooled_cosine"}}) == "similarity of each patch to the summary"
    assert said_of_maps({"maps": {"a": "cut", "b": "norm+mine"}}) == f"{MAPS['cut'].about}; {MAPS['norm'].about}; mine"


def test_a_claim_is_one_sentence_and_its_numbers_are_folded(page: str) -> None:
    ledger = page.split('id="ledger"')[1].split("</section>")[0]
    first, *_ = re.findall(r'<details class="claim"><summary>(.*?)</summary>(.*?)</details>', ledger)
    assert re.sub("<[^>]*>", "", first[0]) == "supported1 statement 1"
    assert "what was found" in first[1] and "what was found" not in first[0] and "a paper, eq. 1" in first[1]
    folded = ledger.split('<details class="rest">')[1]
    assert "1 claims were not measured here" in folded and "statement 2" in folded


def test_pictures_of_dense_tasks_are_shown_and_records_are_folded_at_the_end(page: str) -> None:
    dense = page.split('id="dense"')[1].split("</section>")[0]
    assert "data:image/png;base64" in dense and "segmentation of &lt;ade&gt;" in dense
    end = page.split('id="made"')[1]
    assert end.count("<details") >= 4 and "<pre" in end and "<pre" not in page.split('id="made"')[0]


def test_without_a_title_the_page_is_called_by_its_mixers(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    keep_results(run, "maps")
    text = write_report([run.path], tmp_path / "page.html").read_text()
    assert "<h1>Softmax attention and Mamba-2 scan</h1>" in text
    alone = RunDirectory.create(tmp_path / "alone")
    alone.write_result("note", {"kind": "note"})
    assert "<h1>alone</h1>" in write_report([alone.path], tmp_path / "alone.html").read_text()
    alone.write_result("maps", run.results()["maps"], run.arrays("maps"))
    text = write_report([alone.path], tmp_path / "maps.html").read_text()
    assert "<h1>Softmax attention and Mamba-2 scan</h1>" in text and "Only pictures: nothing was measured" in text
    assert "alone · 2 models, 2 results" in text
    content = run.results()["maps"]
    content["subjects"].append(content["subjects"][0] | {"label": "its twin", "training": "untrained"})
    alone.write_result("maps", content | {"maps": {s["label"]: "cut" for s in content["subjects"]}}, run.arrays("maps"))
    assert _num_models(model_table(findings := read_findings([alone.path])), findings) == 2


def test_a_result_that_shows_itself_has_a_sentence_of_its_first_row(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    shown = {"title": "Norms", "about": "x", "columns": ["model", "layer", "share"], "figures": []}
    run.write_result("norms", {"kind": "norms", "exhibit": shown | {"rows": [["vit", 3, 0.5], ["vim", 1, 0.1]]}})
    text = re.sub(r"<[^>]*>|\s+", " ", write_report([run.path], tmp_path / "page.html").read_text())
    assert "Norms, vit: layer 3, share 0.5" in re.sub(r"\s+", " ", text)
