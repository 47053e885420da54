"""The page of a run: whole, self-contained, safe, and every number beside its record."""

import json
import os
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from example_run import keep_results, make_example, subject, write_scores

from mixlab.errors import InputError
from mixlab.report import write_report
from mixlab.run import RunDirectory, find_runs


class Page(HTMLParser):
    """What is on a page: elements by tag with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def report(folder: Path) -> Page:
    out = write_report([folder], folder / "page.html")
    return Page(out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("example") / "run"
    make_example(folder)
    return folder


@pytest.fixture(scope="module")
def page(example: Path) -> Page:
    return report(example)


def test_a_page_fetches_nothing_and_names_every_picture(page: Page) -> None:
    addresses = [value for _, attrs in page.elements for key, value in attrs.items() if key in ("src", "href")]
    assert addresses and all(address and address.startswith(("data:", "#")) for address in addresses)
    assert all(image["alt"] for image in page.of("img")) and len(page.of("img")) >= 2 * (2 + 2 + 1 + 4)
    charts = [svg for svg in page.of("svg") if svg.get("class") == "chart"]
    assert len(charts) >= 12 and all(svg["aria-label"] for svg in charts)
    assert not page.of("script", "iframe", "object")


def test_every_link_leads_to_a_record_or_a_section_of_the_page(page: Page, example: Path) -> None:
    places = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(places) == len(set(places)), "two elements share an id"
    targets = {str(link["href"]).removeprefix("#") for link in page.of("a")}
    assert targets <= set(places)
    results = sorted(file.relative_to(example.parent).as_posix() for file in example.rglob("results/*.json"))
    assert len(results) == 2 * 3 + 4 + 2 + 3
    assert all(file in page.text for file in results), "a record is missing on the page"


def test_numbers_stand_with_their_intervals_and_gains_over_the_twin(page: Page) -> None:
    text = re.sub(r"\s+", " ", page.text)
    assert "50.0 %" in text and "45.0 to 55.0" in text  # the trained model's own
    # 0.5 - 0.2; each half of 0.05 is t(199) standard errors, their root sum of squares times t(398) is 0.0705
    assert "+30.0 [+22.9, +37.1]" in text or "+30.0 [+23.0, +37.0]" in text
    assert "+0.100 [+0.080, +0.120]" in text  # Binary-AUC over the twin, paired over images, as the result says
    assert "2.5 M" in text and "Chance level of kNN and probes: 10.0 %" in text
    assert "1 supported" in text and "1 not measured" in text


def test_the_page_says_which_models_learnt_and_which_did_not(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    keep_results(run, "claims")
    trained = RunDirectory(run.path / "vim")
    result = trained.results()["knn_vim"]
    result["measurements"][0] |= {"value": 0.22, "low": 0.17, "high": 0.27}  # 0.2 is the twin's
    trained.write_result("knn_vim", result)
    text = re.sub(r"\s+", " ", report(run.path).text)
    assert "Significantly better than untrained by kNN or linear probe: vit. Not significantly better: vim." in text
    assert "Verdicts that rest on vim" in text


def test_what_files_say_is_never_markup(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    run = make_example(tmp_path / "run")
    for result in run.results():
        content = json.loads((run.path / "results" / f"{result}.json").read_text(encoding="utf-8"))
        content["data"] = content["note"] = evil
        for row in content.get("claims", []):
            row["statement"] = row["measured"] = evil
        for gap in content.get("comparisons", []):
            gap["first"] = evil
        run.write_result(result, content, None if result not in ("maps", "matrices") else run.arrays(result))
    page = report(run.path)
    assert not [image for image in page.of("img") if not str(image["src"]).startswith("data:")]
    assert all(not key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert evil in page.text


def test_labels_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    labels = ("<b>vit</b>", 'a"b')
    run = RunDirectory.create(tmp_path / "run")
    run.write_config({})
    write_scores(run, [subject(labels[0], "attention"), subject(labels[1], "mamba2")])
    page = report(run.path)
    assert labels[0] in page.text and not page.of("b")
    assert any(labels[0] in str(svg["aria-label"]) for svg in page.of("svg") if svg.get("class") == "chart")


def test_parts_that_are_missing_are_left_out(page: Page, tmp_path: Path) -> None:
    make_example(tmp_path / "run")
    for name in ("claims", "maps", "auc_model", "auc_layer", "auc_map", "auc_head"):
        (tmp_path / "run" / "results" / f"{name}.json").unlink()
    whole, rest = ({attributes["id"] for attributes in one.of("section")} for one in (page, report(tmp_path / "run")))
    assert whole - rest == {"ledger", "maps", "auc"} and not rest - whole


def test_a_run_that_only_trained_shows_its_curves(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_config({"settings": {"method": {"kind": "dino"}}})
    for step in range(5):
        run.append_metrics({"step": step, "loss": 3.0 - step})
    page = report(run.path)
    assert [attributes["id"] for attributes in page.of("section")] == ["training", "made"]
    assert any("DINO: loss" in str(svg.get("aria-label")) for svg in page.of("svg"))


@pytest.mark.parametrize(
    ("kind", "titles"),
    [("lejepa", ["LeJEPA: loss", "LeJEPA: distance from a Gaussian"]), ("of_a_plugin", ["of_a_plugin: loss"])],
)
def test_curves_have_the_titles_of_their_own_method(tmp_path: Path, kind: str, titles: list[str]) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_config({"settings": {"method": {"kind": kind}}})
    for step in range(5):
        run.append_metrics({"step": step, "loss": 3.0 - step, "sigreg": 1.0})
    drawn = " ".join(str(svg.get("aria-label")) for svg in report(run.path).of("svg"))
    assert all(title in drawn for title in titles) and "DINO" not in drawn


def test_drawn_figures_stand_in_where_arrays_are_missing(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    content = run.results()["maps"] | {"figures": ["maps.png", "../../secret.png", "no.png"]}
    keep_results(run, "claims")
    run.write_result("maps", content)
    run.figure_path("maps.png").write_bytes(b"a picture")
    (tmp_path / "secret.png").write_bytes(b"a secret")
    sources = [image["src"] for image in report(run.path).of("img")]
    assert sources == ["data:image/png;base64,YSBwaWN0dXJl"]  # base64 of "a picture"; nothing outside of figures/


def test_a_run_without_results_says_what_to_do(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    run.write_config({})
    with pytest.raises(ValueError, match="nothing to report.*mixlab auc"):
        write_report([tmp_path], tmp_path / "page.html")


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("auc_model", {"kind": "auc", "study": "model", "comparisons": [], "rows": [{"label": "vit"}]}, "rows[0].map"),
        ("rank_vit", {"kind": "rank", "subject": {"family": "attention"}}, "subject.label"),
        ("claims", {"kind": "claims", "claims": "none"}, "claims[0]"),
    ],
)
def test_a_result_without_a_field_is_named_with_that_field(
    name: str, content: dict[str, Any], field: str, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_result(name, content)
    with pytest.raises(InputError, match=re.escape(f"run/results/{name}.json has no field {field}, ")):
        report(run.path)


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("auc_model", ("rows", 0, "auc", "mean"), "high", "has rows[0].auc.mean 'high', not a finite number"),
        ("auc_model", ("rows", 0, "label"), 7, "has rows[0].label 7, not text"),
        ("auc_model", ("comparisons",), {}, "has comparisons {}, not a list"),
        ("rank_vit", ("overall", "bound_holds"), "yes", "has overall.bound_holds 'yes', not true or false"),
        ("rank_vit", ("chunk",), 0, "has chunk 0, not a number above 0"),
        ("matrices", ("models", 1, "heads", 0), -1, "has models[1].heads[0] -1, not a whole number from 0 on"),
        ("claims", ("claims", 0, "measured"), None, "has claims[0].measured None, not text"),
        ("maps", ("provenance",), "me", "has provenance 'me', not an object"),
    ],
)
def test_a_field_of_another_type_is_named_with_its_file_and_value(
    name: str, path: tuple[Any, ...], value: Any, said: str, tmp_path: Path
) -> None:
    run = make_example(tmp_path / "run")
    content = run.results()[name]
    part: Any = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    run.write_result(name, content, run.arrays(name) if (run.path / "results" / f"{name}.npz").is_file() else None)
    with pytest.raises(InputError, match=re.escape(f"run/results/{name}.json {said}")):
        report(run.path)


def test_a_strange_config_is_named_and_is_not_to_be_removed(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    RunDirectory(run.path / "vit").write_config({"settings": {"method": {"kind": 7}}})
    with pytest.raises(InputError, match=r"run/vit/config.json has settings.method.kind 7, not text; restore it"):
        report(run.path)


def test_a_pipe_among_the_results_is_not_waited_for(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    os.mkfifo(run.path / "results" / "pipe.json")
    with pytest.raises(InputError, match=r"pipe.json is not a regular file"):
        report(run.path)


def test_an_array_that_is_missing_is_named_with_its_file(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    run.write_result("maps", run.results()["maps"], {"images": run.arrays("maps")["images"]})
    with pytest.raises(InputError, match=r"run/results/maps.npz has no array 'map_vit', it has images"):
        report(run.path)


def test_an_error_of_ours_is_no_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.write_result("note", {"kind": "note"})

    def breaks(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("mixlab.report.parts.model_table", breaks)
    with pytest.raises(KeyError, match="a bug"):
        report(run.path)


def test_a_page_for_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"nowhere of --out does not exist"):
        write_report([run.path], tmp_path / "nowhere" / "page.html")


def test_runs_below_a_run_belong_to_it_and_working_folders_do_not(tmp_path: Path) -> None:
    make_example(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "results").mkdir(parents=True)
    found = [
        run.path.relative_to(tmp_path).as_posix() for run in find_runs([tmp_path / "run", tmp_path / "run" / "vit"])
    ]
    assert found == ["run", "run/vim", "run/vim/untrained", "run/vit", "run/vit/untrained"]


def test_ranks_are_written_on_their_matrices(page: Page, example: Path) -> None:
    out = (example / "page.html").read_text(encoding="utf-8")
    pictures = re.findall(r'aria-label="Mixing matrix of vit, head 0.*?</svg>', out)
    (ranks,) = (re.findall(r">([\d.]+)</text>", picture) for picture in pictures)
    assert ranks == ["1.5", "12", "2.5"], "nothing is written on what is not read"


def test_the_tables_alone_are_written_as_markdown_with_the_same_numbers(tmp_path: Path) -> None:
    run = make_example(tmp_path / "run")
    claims = run.results()["claims"]
    claims["claims"][0]["measured"] = "a | b; <script>"
    run.write_result("claims", claims)
    lines = write_report([run.path], tmp_path / "x.md").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("| vit | 1 | softmax attention | dino |") and "50.0 % (45.0" in line for line in lines)
    assert any("], significantly more | 20.0 % (15.0 to 25.0) |" in line for line in lines)
    assert any("a \\| b;<br>\\<script\\>" in line for line in lines), "what files say is neither markup nor a cell"
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert not [line for line, after in pairwise(lines) if not line and not after], "no two empty lines"
