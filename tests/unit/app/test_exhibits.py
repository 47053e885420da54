"""What analyses found in the runs of a page: asked of a real server."""

from pathlib import Path

import pytest

from mixlab.app.exhibits import run_exhibits
from mixlab.app.laboratory import Laboratory
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from tests.unit.app.live_page import request, serve, tiny_subjects

SHOWN: dict[str, object] = {"title": "<b>Norms</b>", "about": "How long.", "columns": ["model", "share"]}
SHOWN["rows"] = [["vit", 0.25], ["x", None]]


def make_run(folder: Path) -> RunDirectory:
    run = RunDirectory.create(folder / "run")
    run.figure_path("norms.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "secret.png").write_bytes(b"a secret")
    figures = [{"file": "norms.svg", "caption": "By layer."}, {"file": "../../secret.png", "caption": "no"}]
    run.write_result("norms", {"kind": "unheard of", "exhibit": SHOWN | {"figures": figures}})
    run.write_result("knn", {"kind": "knn", "measurements": []})
    return run


def test_a_result_of_an_unknown_kind_is_shown_with_its_table_and_pictures(tmp_path: Path) -> None:
    exhibits = run_exhibits({"mine": make_run(tmp_path)})
    with serve(Laboratory(tiny_subjects()[:1], [], cache_bytes=2**20, exhibits=exhibits)) as host:
        (found,) = request(host, "GET", "/api/exhibits").body["exhibits"]
        assert found["title"] == "<b>Norms</b>" and found["run"] == "mine" and found["captions"] == ["By layer."]
        assert found["rows"] == [["vit", "0.25"], ["x", "–"]]
        picture = request(host, "GET", "/api/exhibits/0/0")
        assert picture.status == 200 and picture.headers["content-type"] == "image/svg+xml"
        assert request(host, "GET", "/api/exhibits/0/1").status == 404, "no file outside of figures/"
        assert request(host, "GET", "/api/exhibits/7/0").status == 404


def test_an_exhibit_of_another_form_is_named_with_its_file(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "odd")
    run.write_result("norms", {"exhibit": {"title": "x"}})
    with pytest.raises(InputError, match=r"norms.json: its exhibit cannot be shown .*about"):
        run_exhibits({"odd": run})
