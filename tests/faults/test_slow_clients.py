"""Slow and vanished clients of the page keep nobody waiting: real sockets against a real server."""

import io
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mixlab.app import arrivals, connections, server
from mixlab.app.jobs import Progress
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import Picture
from mixlab.app.questions import Question
from tests.unit.app.live_page import ask, request, serve, tiny_laboratory

ALL = os.environ.get("MIXLAB_FAULTS") == "all"
MAP = {"kind": "map", "picture": "sample-1", "model": "vit_tiny", "layer": 0}
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    torch.set_num_threads(1)
    return tiny_laboratory()


@pytest.fixture
def address(laboratory: Laboratory) -> Iterator[str]:
    with serve(laboratory) as found:
        yield found


def photograph(side: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def post(address: str, *, length: int, path: str = "/api/pictures") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n".encode()


@contextmanager
def slow_uploads(address: str, count: int, sent: bytes = b"x") -> Iterator[list[socket.socket]]:
    """Clients that say how much they will send, send a little, and pause."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(count)]
        for client in clients:
            client.sendall(post(address, length=2**20) + sent)
        time.sleep(0.2)
        yield clients


def status_of(client: socket.socket) -> int:
    """The status that a client is answered with; 0 where the connection is closed without one."""
    try:
        line = client.recv(65536).split(b" ", 2)
    except ConnectionError:
        return 0
    return int(line[1]) if len(line) > 1 else 0


def test_many_slow_uploads_take_no_place_and_a_quick_one_is_served_at_once(laboratory: Laboratory) -> None:
    with serve(laboratory, max_requests=4) as address, slow_uploads(address, 200 if ALL else 40):
        start = time.monotonic()
        assert request(address, "POST", "/api/pictures", photograph()).status == 201
        assert ask(address, MAP).status == 200
        assert time.monotonic() - start < 4, "it waited for the slow ones, which have 5 s"


@pytest.mark.parametrize("rule", ["nothing more", "too slow", "too long"])
def test_bodies_have_a_deadline_and_a_minimum_rate(address: str, monkeypatch: Any, rule: str) -> None:
    monkeypatch.setattr(arrivals, "FIRST_S", 0.4 if rule != "too long" else 60)
    monkeypatch.setattr(arrivals, "BODY_S", 0.6 if rule == "too long" else 60)
    with connect(address) as client:
        client.sendall(post(address, length=2**20))
        client.settimeout(0.05)
        start, status = time.monotonic(), 0
        while not status and time.monotonic() - start < 10:
            if rule != "nothing more":
                client.sendall(b"x" * (100 if rule == "too slow" else 10_000))
            try:
                status = status_of(client)
            except TimeoutError:
                continue
        assert status == 408


def test_a_body_that_comes_slowly_but_steadily_is_taken(address: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(arrivals, "FIRST_S", 0.5)
    data = photograph(128)
    with connect(address) as client:
        client.sendall(post(address, length=len(data)))
        for start in range(0, len(data), 5000):
            time.sleep(0.1)  # 50 KB per second
            client.sendall(data[start : start + 5000])
        assert status_of(client) == 201


def test_where_bodies_take_too_much_memory_the_slowest_makes_room(laboratory: Laboratory, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "MAX_ARRIVING", 3_000_000)
    data = photograph(700)
    assert 1_000_000 < len(data) < 2_000_000
    with serve(laboratory) as address, slow_uploads(address, 3, b"x" * 900_000) as clients:
        assert request(address, "POST", "/api/pictures", data).status == 201
        for client in clients:
            client.settimeout(0.2)
        answered = []
        for client in clients:
            try:
                answered.append(status_of(client))
            except TimeoutError:
                continue
        assert 1 <= len(answered) < 3 and set(answered) <= {503, 0}


def test_clients_that_read_nothing_take_no_place_and_are_closed(laboratory: Laboratory, monkeypatch: Any) -> None:
    with serve(laboratory, max_requests=2) as address, ExitStack() as stack:
        noise = request(address, "POST", "/api/pictures", photograph(1024)).body["id"]
        readers = []
        for _ in range(3):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            reader.settimeout(30)
            reader.connect(("127.0.0.1", int(address.split(":")[1])))
            asked = f"GET /api/pictures/{noise}?size=1024 HTTP/1.1\r\nhost: {address}\r\n\r\n"
            reader.sendall(asked.encode() * 3)  # 9 MB: more than the system keeps for it
            readers.append(reader)
            time.sleep(0.3)
        end = time.monotonic() + 15  # less than they have to take their answers, once these are made
        while request(address, "GET", "/api/about").status != 200:
            assert time.monotonic() < end, "who reads nothing keeps a place"
            time.sleep(0.1)
        assert ask(address, MAP).status == 200
        monkeypatch.setattr(connections, "STALL_S", 0.5)
        time.sleep(1.8)  # a connection is looked at every second
        for reader in readers:
            received = 0
            with suppress(ConnectionResetError):
                while part := reader.recv(2**20):  # ends, as the connection is closed
                    received += len(part)
            assert received < 9_000_000


@pytest.mark.parametrize("start", [b"", b"GET /api/about HTTP/1.1\r\nhost: "])
def test_a_header_that_never_ends_is_not_waited_for(address: str, monkeypatch: Any, start: bytes) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.4)
    with connect(address) as client:
        client.sendall(start)
        assert status_of(client) == 0  # closed, and not after half a minute
    with connect(address) as client:  # after a first, proper request, too
        client.sendall(f"GET /api/health HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
        assert status_of(client) == 200
        client.sendall(b"GET /api/health HT")
        time.sleep(0.1)
        assert status_of(client) == 0


def test_idle_connections_cannot_take_all_there_are(address: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(address))
        assert request(address, "GET", "/api/about").status == 200


class Slow(Laboratory):
    """Two seconds for every question but those about the last layer."""

    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        for step in range(100 if question.layer < 2 else 0):
            progress(step, 100, "thinking")
            time.sleep(0.02)
        return super().answer(question, picture, progress)


@pytest.fixture
def slow_laboratory(laboratory: Laboratory) -> Iterator[Laboratory]:
    laboratory.__class__ = Slow
    yield laboratory
    laboratory.__class__ = Laboratory


def test_abandoned_questions_make_room_at_once_and_are_overtaken(slow_laboratory: Laboratory) -> None:
    count, places = (2600, 256) if ALL else (120, 12)
    with serve(slow_laboratory, workers=1, max_open=places) as address:
        for number in range(count):
            question = {**MAP, "kind": "row", "x": number / count, "y": 0.5}
            assert request(address, "POST", "/api/questions?wait_ms=0", question).status == 202
        start = time.monotonic()
        assert ask(address, {**MAP, "layer": 2}).status == 200
        # One abandoned answer of 2 s may be under way; all those in the queue would take 24 s and more.
        assert time.monotonic() - start < 8


def test_who_hangs_up_leaves_at_once(slow_laboratory: Laboratory) -> None:
    with serve(slow_laboratory, workers=1, max_open=1) as address:
        body = b'{"kind": "map", "picture": "sample-1", "model": "vit_tiny", "layer": 0}'
        head = post(address, length=len(body), path="/api/questions?wait_ms=2000")
        with connect(address) as client:
            client.sendall(head.replace(b"\r\n\r\n", b"\r\ncontent-type: application/json\r\n\r\n") + body)
            time.sleep(0.3)
            waiting = request(address, "POST", "/api/questions?wait_ms=0", {**MAP, "layer": 1})
            assert waiting.status == 503, "the only place is taken by who waits"
        time.sleep(0.2)
        assert request(address, "POST", "/api/questions?wait_ms=0", {**MAP, "layer": 1}).status == 202
