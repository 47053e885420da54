"""Two hundred requests at once: none lost, none wrong, memory bounded."""

import io
import resource
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from PIL import Image
from torch.nn.modules.module import register_module_forward_pre_hook

from mixlab.app.laboratory import build_laboratory
from mixlab.app.questions import encode_runs
from tests.unit.app.live_page import MODELS, Reply, ask, request, serve, tiny_laboratory

NUM_REQUESTS = 200
CACHE_BYTES = 300_000  # far less than the answers need, so that entries come and go


def upload(seed: int) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((400, 300)).save(buffer, format="PNG")
    return buffer.getvalue()


def mixed_requests() -> list[tuple[str, str, Any]]:
    """Every kind of request, over models, pictures, layers and heads."""
    mask = np.zeros((256, 256), dtype=np.uint8)
    mask[40:160, 90:200] = 1
    runs = encode_runs(mask)
    places: list[tuple[str, str, Any]] = []
    models, pictures = cycle(MODELS), cycle(["sample-1", "sample-2", "sample-3"])
    kinds: list[dict[str, Any]] = [
        {"kind": "map"},
        {"kind": "pca"},
        {"kind": "matrix"},
        {"kind": "matrix", "head": 1},
        {"kind": "row", "x": 0.2, "y": 0.6},
        {"kind": "score", "mask": runs},
        {"kind": "sweep", "mask": runs},
    ]
    for number, kind in enumerate(islice(cycle(kinds), 160)):
        question = {**kind, "picture": next(pictures), "model": next(models), "layer": number % 3}
        places.append(("ASK", "", question))
    for number in range(10):
        places += [
            ("POST", "/api/pictures", upload(number)),
            ("GET", f"/api/pictures/sample-{number % 4 + 1}?size={64 + number}", None),
            ("GET", f"/api/pictures/sample-{number % 4 + 1}/mask", None),
            ("GET", ("/", "/static/main.js", "/api/about", "/api/pictures/none")[number % 4], None),
        ]
    assert len(places) == NUM_REQUESTS
    return places


def send(address: str, place: tuple[str, str, Any]) -> tuple[int, Any]:
    method, path, body = place
    reply: Reply = ask(address, body) if method == "ASK" else request(address, method, path, body)
    if path == "/api/about":
        return reply.status, len(reply.body["models"])  # the rest names the session
    return reply.status, reply.body["answer"] if method == "ASK" else reply.body


def test_two_hundred_at_once_are_all_answered_as_one_by_one() -> None:
    places = mixed_requests()
    with serve(tiny_laboratory()) as address:
        expected = [send(address, place) for place in places]
    assert {status for status, _ in expected} == {200, 201, 404}
    laboratory = tiny_laboratory(cache_bytes=CACHE_BYTES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with serve(laboratory) as address, ThreadPoolExecutor(NUM_REQUESTS) as pool:
        found = list(pool.map(lambda place: send(address, place), places))
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    for place, one, other in zip(places, expected, found, strict=True):
        assert one == other, f"{place[0]} {place[1]} {str(place[2])[:120]} differs"
    assert grown_mb < 200, f"the process grew by {grown_mb:.0f} MB"
    assert laboratory._traces._cache.num_bytes <= CACHE_BYTES


def test_after_the_first_answers_no_network_runs_again_and_nobody_waits() -> None:
    laboratory = build_laboratory([])
    mask = encode_runs(np.tri(256, dtype=np.uint8))
    kinds: list[dict[str, Any]] = [
        {"kind": "map"},
        {"kind": "pca"},
        {"kind": "matrix"},
        {"kind": "row", "x": 0.3, "y": 0.7},
        {"kind": "score", "mask": mask},
        {"kind": "sweep", "mask": mask},
    ]
    runs: list[str] = []
    with (
        serve(laboratory) as address,
        register_module_forward_pre_hook(lambda module, _: runs.append(type(module).__name__)),
    ):
        for card in laboratory.models:
            ask(address, {"kind": "map", "picture": "sample-1", "model": card.id, "layer": 0})
            ask(address, {"kind": "matrix", "picture": "sample-1", "model": card.id, "layer": 0})
            assert runs, "the first answers come from a network"
            runs.clear()
            for kind in kinds:
                times = []
                for layer in (1, 5):  # layers not looked at before
                    start = process_time()  # the server is a thread of this process
                    reply = ask(address, {**kind, "picture": "sample-1", "model": card.id, "layer": layer})
                    times.append(process_time() - start)
                    assert reply.status == 200
                assert not runs, f"{card.id}, {kind['kind']}: {len(runs)} modules ran again"
                assert median(times) < 2, f"{card.id}, {kind['kind']}: {times} s"  # alone: some 0.1 s
