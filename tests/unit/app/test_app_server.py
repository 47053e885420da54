"""What the server lets in, what it refuses, and how it says so."""

import io
import json
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from mixlab.app import server
from mixlab.app.jobs import Progress
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import Picture, decode_mask, decode_picture
from mixlab.app.questions import Question
from tests.unit.app.live_page import ask, count_awaiting, request, serve, tiny_laboratory
from tests.waiting import wait_for

MAP = {"kind": "map", "picture": "sample-1", "model": "vit_tiny", "layer": 0}
FULL = [[0, 256 * 256]]


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, format="PNG")
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A whole PNG of one colour, written by hand so that nobody needs the memory to draw it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compressobj(9)
    line = bytes(1 + width // 8)
    data = b"".join(rows.compress(line) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_about_offers_models_maps_and_samples(address: str) -> None:
    about = request(address, "GET", "/api/about").body
    assert [model["id"] for model in about["models"]][:2] == ["vit_tiny", "dinovim_tiny"]
    assert all(model["training"] == "untrained" for model in about["models"])
    assert len(about["samples"]) == 4
    assert {"cosine", "mixing_rows"} <= {card["id"] for card in about["maps"]}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/nothing", None, 404, "Not Found"),
        ("GET", "/static/..%2Fserver.py", None, 404, ""),
        ("GET", "/static/../server.py", None, 404, ""),
        ("PUT", "/api/about", None, 405, "Not Allowed"),
        ("POST", "/api/questions", b"{", 422, "valid"),
        ("POST", "/api/questions", {"kind": "weights"}, 422, "kind"),
        ("POST", "/api/questions", {**MAP, "model": "../../etc/passwd"}, 404, "there is no model"),
        ("POST", "/api/questions", {**MAP, "picture": "/etc/passwd"}, 404, "upload it again"),
        ("POST", "/api/questions", {**MAP, "layer": 99}, 422, "choose 0 to 2"),
        ("POST", "/api/questions", {**MAP, "layer": -1}, 422, "layer"),
        ("POST", "/api/questions", {**MAP, "kind": "matrix", "head": 2}, 422, "no head 2; choose 0 to 1"),
        ("POST", "/api/questions", {**MAP, "map": "dream"}, 422, "there is no map 'dream'"),
        ("POST", "/api/questions", {**MAP, "map": "register_cosine"}, 422, "has no map"),
        ("POST", "/api/questions", {**MAP, "weights": "x.pth"}, 422, "Extra inputs"),
        ("POST", "/api/questions", {**MAP, "kind": "row", "x": 2, "y": 0}, 422, "x:"),
        ("POST", "/api/questions", {**MAP, "kind": "row", "x": float("nan"), "y": 0}, 422, "x:"),
        ("POST", "/api/questions", {**MAP, "kind": "score", "mask": [[3, 65536]]}, 422, "a mask holds 3"),
        ("GET", "/api/questions/none", None, 404, "ask again"),
        ("GET", "/api/pictures/none", None, 404, "upload it again"),
        ("GET", "/api/pictures/sample-1?size=100000", None, 422, "size"),
        ("GET", "/api/pictures/sample-1?fit=stretch", None, 422, "fit"),
        ("POST", "/api/pictures", b"", 400, "nothing was sent"),
        ("POST", "/api/pictures", b"not an image at all", 422, "not an image"),
        ("POST", "/api/pictures", png(64, 64)[:500], 422, "cannot be decoded"),
        ("POST", "/api/pictures", b"%!PS-Adobe-3.0 EPSF-3.0", 422, "not an image"),
        ("POST", "/api/pictures/sample-1/mask", png(64, 64), 422, "in colour"),
        ("POST", "/api/pictures/sample-1/mask", png(64, 20), 422, "another shape"),
    ],
)
def test_every_refusal_is_json_with_a_reason(
    address: str, method: str, path: str, body: Any, status: int, words: str
) -> None:
    reply = request(address, method, path, body)
    assert reply.status == status
    assert reply.body["error"]["status"] == status
    assert words in reply.body["error"]["message"]
    assert "Traceback" not in json.dumps(reply.body)


def test_a_bomb_of_a_hundred_megapixels_is_refused_from_its_header(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = png_header(10_000, 10_000)
    assert len(bomb) < 100_000
    monkeypatch.setattr(ImageFile.ImageFile, "load", pytest.fail)  # no pixel is decoded
    reply = request(address, "POST", "/api/pictures", bomb)
    assert reply.status == 422
    assert "100 million pixels" in reply.body["error"]["message"]
    mask = request(address, "POST", "/api/pictures/sample-1/mask", bomb)
    assert "100 million pixels" in mask.body["error"]["message"]


def test_a_file_beyond_the_limit_of_bytes_is_refused_with_and_without_a_length(address: str) -> None:
    declared = request(address, "POST", "/api/pictures", b"", {"content-length": str(30 * 2**20)})
    assert declared.status == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(22):
            yield bytes(2**20)

    reply = request(address, "POST", "/api/pictures", pieces())
    assert reply.status == 413
    assert "20 MB" in reply.body["error"]["message"]
    question = request(address, "POST", "/api/questions", {**MAP, "picture": "x" * 2**21})
    assert question.status == 413
    assert "1 MB" in question.body["error"]["message"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "[bad"])
def test_a_rebound_name_is_refused(address: str, host: str) -> None:
    reply = request(address, "GET", "/api/about", headers={"host": host})
    assert reply.status in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1:1", "[::1]:8765", "192.168.0.7"])
def test_localhost_and_addresses_are_answered(address: str, host: str) -> None:
    assert request(address, "GET", "/api/about", headers={"host": host}).status == 200


def test_pages_of_other_sites_cannot_send_anything(address: str) -> None:
    reply = request(address, "POST", "/api/pictures", png(8, 8), {"origin": "https://evil.example"})
    assert reply.status == 403
    assert request(address, "POST", "/api/pictures", png(8, 8), {"origin": f"http://{address}"}).status == 201
    assert request(address, "GET", "/api/about", headers={"origin": "null"}).status == 403


@pytest.mark.parametrize("origin", ["http://[", "http://a:99999999", "nonsense", "", "http://", "http://[::1", "//x"])
def test_a_malformed_origin_is_refused_as_such(address: str, origin: str) -> None:
    reply = request(address, "GET", "/api/about", headers={"origin": origin})
    assert reply.status == 400
    assert repr(origin) in reply.body["error"]["message"]


def test_every_answer_carries_the_security_headers(address: str) -> None:
    for path in ("/", "/static/main.js", "/api/about", "/nothing"):
        headers = request(address, "GET", path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_no_documentation_page_asks_outside(address: str) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert request(address, "GET", path).status == 404


def test_the_same_upload_has_the_same_name_and_can_be_seen(address: str) -> None:
    first, second = (request(address, "POST", "/api/pictures", png(112, 80)) for _ in range(2))
    assert first.status == 201
    assert first.body == second.body
    assert (first.body["width"], first.body["height"]) == (112, 80)
    shown = request(address, "GET", f"/api/pictures/{first.body['id']}?size=70&fit=crop")
    picture = np.asarray(Image.open(io.BytesIO(shown.body)))
    original = np.asarray(Image.open(io.BytesIO(png(112, 80))))
    np.testing.assert_array_equal(picture, original[5:75, 21:91])


ODD_IMAGES = {
    "one pixel": ("PNG", Image.new("RGB", (1, 1), "red")),
    "a line": ("PNG", Image.new("RGB", (1, 3000), "red")),
    "cmyk": ("JPEG", Image.new("CMYK", (40, 30), (10, 200, 30, 0))),
    "grey": ("JPEG", Image.linear_gradient("L")),
    "sixteen bits": ("PNG", Image.fromarray(np.arange(2500, dtype=np.uint16).reshape(50, 50) * 20)),
    "transparent": ("PNG", Image.new("RGBA", (30, 40), (0, 0, 0, 0))),
    "palette": ("GIF", Image.linear_gradient("L").convert("P")),
    "bitmap": ("PNG", Image.new("1", (64, 48), 1)),
    "webp": ("WEBP", Image.radial_gradient("L").convert("RGB")),
    "tiff": ("TIFF", Image.radial_gradient("L").convert("RGB")),
}


@pytest.mark.parametrize("name", ODD_IMAGES)
def test_images_of_every_kind_are_taken_and_looked_at(address: str, name: str) -> None:
    form, image = ODD_IMAGES[name]
    buffer = io.BytesIO()
    image.save(buffer, format=form)
    reply = request(address, "POST", "/api/pictures", buffer.getvalue())
    assert reply.status == 201, reply.body
    for fit in ("crop", "squash"):
        assert request(address, "GET", f"/api/pictures/{reply.body['id']}?fit={fit}").status == 200
        for kind in ({"kind": "map"}, {"kind": "pca"}, {"kind": "matrix"}):
            question = {**MAP, **kind, "picture": reply.body["id"], "fit": fit, "model": "dinovim_tiny"}
            assert ask(address, question).status == 200


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PIL, about the damage
def test_damaged_files_of_every_kind_are_pictures_or_refused_never_a_failure() -> None:
    random = np.random.default_rng(0)
    grey = Image.fromarray(random.integers(0, 2, (48, 48), dtype=np.uint8) * 255)
    sample = Picture("x", "x", np.zeros((48, 48, 3), dtype=np.uint8))
    taken = refused = 0
    for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000"):
        buffer = io.BytesIO()
        grey.convert("RGB" if form == "WEBP" else "L").save(buffer, format=form)
        for _ in range(60):
            damaged = bytearray(buffer.getvalue())
            for place in random.integers(0, len(damaged), random.integers(1, 12)):
                damaged[place] = random.integers(0, 256)
            data = bytes(damaged[: random.integers(1, 2 * len(damaged))])
            for decode in (decode_picture, lambda d, **limit: decode_mask(d, sample, **limit)):
                try:
                    decode(data, max_pixels=10**6)
                    taken += 1
                except ValueError:
                    refused += 1
    assert taken > 100
    assert refused > 100


def test_large_pictures_are_scaled_down_and_old_ones_forgotten() -> None:
    with serve(tiny_laboratory(), picture_bytes=1024 * 512 * 3) as address:
        first = request(address, "POST", "/api/pictures", png(2000, 1000)).body
        assert (first["width"], first["height"]) == (1024, 512)
        request(address, "POST", "/api/pictures", png(64, 64))
        reply = request(address, "GET", f"/api/pictures/{first['id']}")
        assert reply.status == 404
        assert "upload it again" in reply.body["error"]["message"]


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (64, 64), (1000, 31)])
def test_the_part_of_an_image_that_a_fit_shows_is_said(address: str, size: tuple[int, int]) -> None:
    ramp = np.stack(np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1])), axis=-1)
    image, buffer = np.zeros((size[1], size[0], 3), dtype=np.uint8), io.BytesIO()
    image[..., :2] = ramp.round()  # the place of each pixel, across and down
    Image.fromarray(image).save(buffer, format="PNG")
    own = request(address, "POST", "/api/pictures", buffer.getvalue()).body["id"]
    fits = request(address, "GET", f"/api/pictures/{own}/fits").body
    assert fits["squash"] == fits["whole"] == [0, 0, 1, 1]
    for fit, part in fits.items():
        shown = request(address, "GET", f"/api/pictures/{own}?fit={fit}&size=256").body
        seen = np.asarray(Image.open(io.BytesIO(shown)))[..., :2] / 255
        down, across = (side // 2 for side in seen.shape[:2])
        assert down == across == 128 or (fit == "whole" and down * across == pytest.approx(128**2, rel=0.02))
        found = (seen[down, 0, 0], seen[0, across, 1], seen[down, -1, 0], seen[-1, across, 1])
        assert part == pytest.approx(found, abs=0.02)


def test_an_uploaded_mask_comes_back_as_runs_on_the_fitted_square(address: str) -> None:
    picture = request(address, "POST", "/api/pictures", png(120, 60)).body["id"]
    grey = np.zeros((60, 120), dtype=np.uint8)
    grey[:, 60:] = 255
    grey[:, 100:] = 128
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, format="PNG")
    for fit, expected in (("crop", [0, 1, 255]), ("squash", [0, 1, 255])):
        reply = request(address, "POST", f"/api/pictures/{picture}/mask?fit={fit}", buffer.getvalue())
        line: list[tuple[int, int]] = []
        total = 0
        for value, length in reply.body["mask"]:
            if total < 256:
                line.append((value, length))
            total += length
        assert total == 256 * 256
        values = [value for value, _ in line][:3]
        if fit == "crop":  # columns 30 to 90: half background, half foreground, nothing ignored
            assert line[:2] == [
                (0, 129),
                (1, 127),
            ]  # the middle 293 of 586 columns begin with the 146th: half a one off
        else:
            assert values == expected


class Broken(Laboratory):
    failure: type[Exception] = RuntimeError

    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        raise self.failure("secret: /home/somebody/weights.pth")


class Patient(Laboratory):
    """A real laboratory that thinks about every question, in steps, until it may answer."""

    may_answer = threading.Event()

    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        step = 0
        while not self.may_answer.is_set():
            progress(step, step + 1000, "thinking")
            step += 1
            time.sleep(0.005)
        return super().answer(question, picture, progress)


def made_as(kind: type[Laboratory]) -> Laboratory:
    laboratory = tiny_laboratory()
    laboratory.__class__ = kind
    return laboratory


@pytest.mark.parametrize("failure", [RuntimeError, ValueError, KeyError])
def test_a_failure_inside_tells_nothing_of_the_inside(failure: type[Exception]) -> None:
    laboratory = made_as(Broken)
    laboratory.failure = failure
    with serve(laboratory) as address:
        reply = ask(address, MAP)
    assert reply.status == 500
    assert "secret" not in json.dumps(reply.body)
    assert failure.__name__ not in json.dumps(reply.body)


def test_a_model_that_diverged_is_named_in_words() -> None:
    laboratory = tiny_laboratory()
    for parameter in laboratory._subjects["vit_tiny"].backbone.parameters():
        parameter.data.fill_(float("nan"))
    with serve(laboratory) as address:
        for kind in ({"kind": "map"}, {"kind": "pca"}, {"kind": "matrix"}, {"kind": "row", "x": 0, "y": 0}):
            reply = ask(address, {**MAP, **kind})
            assert reply.status == 422
            assert "NaN or infinity" in reply.body["error"]["message"]


def test_long_work_shows_progress_can_be_cancelled_and_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_WAIT_MS", 10**6)
    monkeypatch.setattr(Patient, "may_answer", threading.Event())
    num_awaiting = count_awaiting(monkeypatch)
    with serve(made_as(Patient), workers=1, max_open=2) as address:
        first = request(address, "POST", "/api/questions?wait_ms=0", MAP)
        assert first.status == 202

        def progress() -> dict[str, Any]:
            reply = request(address, "GET", f"/api/questions/{first.body['id']}?wait_ms=0")
            assert reply.status == 202
            return reply.body

        wait_for(lambda: progress()["state"] == "working")
        share = progress()["share"]
        wait_for(lambda: progress()["share"] > share)
        assert request(address, "DELETE", f"/api/questions/{first.body['id']}").body == {"state": "cancelled"}
        assert request(address, "GET", f"/api/questions/{first.body['id']}").status == 404
        assert request(address, "DELETE", f"/api/questions/{first.body['id']}").body == {"state": "cancelled"}
        with ThreadPoolExecutor(2) as pool:
            waiting = [
                pool.submit(request, address, "POST", "/api/questions?wait_ms=1000000", {**MAP, "layer": layer})
                for layer in (0, 1)
            ]
            wait_for(lambda: num_awaiting() == 2)
            third = request(address, "POST", "/api/questions?wait_ms=0", {**MAP, "layer": 2})
            assert third.status == 503 and third.headers["retry-after"] == "1"
            Patient.may_answer.set()
            assert {reply.result().status for reply in waiting} == {200}
        Patient.may_answer.clear()
        assert request(address, "POST", "/api/questions?wait_ms=0", {**MAP, "layer": 2}).status == 202


def test_a_flood_of_requests_is_turned_away_readably() -> None:
    with serve(made_as(Patient), max_requests=0) as address:
        reply = request(address, "GET", "/api/about")
    assert reply.status == 503
    assert "try again" in reply.body["error"]["message"]
