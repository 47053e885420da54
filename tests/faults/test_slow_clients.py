"""Slow and vanished clients of the page keep nobody waiting: real sockets against a real server."""

import io
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mixlab.app import arrivals, connections, guard, server
from mixlab.app.jobs import Progress
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import Picture
from mixlab.app.questions import Question
from tests.unit.app.live_page import ask, count_awaiting, request, serve, tiny_laboratory
from tests.waiting import PATIENCE_S, wait_for

ALL = os.environ.get("MIXLAB_FAULTS") == "all"
MAP = {"kind": "map", "picture": "sample-1", "model": "vit_tiny", "layer": 0}
FOREVER_S = 3600.0  # longer than any test


@pytest.fixture(scope="module")
def laboratory(one_thread: None) -> Laboratory:
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
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def post(address: str, *, length: int, path: str = "/api/pictures") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\r\n".encode()


@contextmanager
def slow_uploads(address: str, count: int, sent: bytes = b"x") -> Iterator[list[socket.socket]]:
    """Clients that say how much they will send, send a little, and pause."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            clients.append(stack.enter_context(connect(address)))
            clients[-1].sendall(post(address, length=2**20) + sent)
        yield clients


def is_answered(client: socket.socket) -> bool:
    """Or closed."""
    return bool(select.select([client], [], [], 0)[0])


def status_of(client: socket.socket) -> int:
    """The status that a client is answered with; 0 where the connection is closed without one."""
    try:
        line = client.recv(65536).split(b" ", 2)
    except ConnectionError:
        return 0
    return int(line[1]) if len(line) > 1 else 0


def test_many_slow_uploads_take_no_place_and_a_quick_one_is_served_at_once(
    laboratory: Laboratory, monkeypatch: Any
) -> None:
    monkeypatch.setattr(arrivals, "FIRST_S", FOREVER_S)
    with serve(laboratory, max_requests=4) as address, slow_uploads(address, 200 if ALL else 40) as clients:
        assert request(address, "POST", "/api/pictures", photograph()).status == 201
        assert ask(address, MAP).status == 200
        assert not any(map(is_answered, clients)), "it waited for the slow ones"


@pytest.mark.parametrize("rule", ["nothing more", "too slow", "too long"])
def test_bodies_have_a_deadline_and_a_minimum_rate(address: str, monkeypatch: Any, rule: str) -> None:
    monkeypatch.setattr(arrivals, "FIRST_S", 0.4 if rule != "too long" else FOREVER_S)
    monkeypatch.setattr(arrivals, "BODY_S", 0.6 if rule == "too long" else FOREVER_S)
    with connect(address) as client:
        client.sendall(post(address, length=2**24))
        end = time.monotonic() + PATIENCE_S
        while not select.select([client], [], [], 0.05)[0]:
            assert time.monotonic() < end, "it is still waited for"
            if rule != "nothing more":
                with suppress(ConnectionError):  # it was answered and closed since
                    client.sendall(b"x" * (100 if rule == "too slow" else 10_000))
        assert status_of(client) == 408


def test_a_body_that_comes_slowly_but_steadily_is_taken(address: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(arrivals, "FIRST_S", 0.2)
    monkeypatch.setattr(arrivals, "MIN_RATE", 10)  # bytes per second: less than any machine sends
    monkeypatch.setattr(arrivals, "BODY_S", FOREVER_S)
    data = photograph(128)
    with connect(address) as client:
        client.sendall(post(address, length=len(data)) + data[:10_000])
        for start in range(10_000, len(data), 10_000):
            time.sleep(0.1)
            client.sendall(data[start : start + 10_000])
        assert status_of(client) == 201


def test_where_bodies_take_too_much_memory_the_slowest_makes_room(laboratory: Laboratory, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "MAX_ARRIVING", 3_000_000)
    monkeypatch.setattr(arrivals, "FIRST_S", FOREVER_S)
    made: list[arrivals.Arrivals] = []
    monkeypatch.setattr(guard, "Arrivals", lambda max_bytes: made.append(arrivals.Arrivals(max_bytes)) or made[-1])
    data = photograph(700)
    assert 1_000_000 < len(data) < 2_000_000
    with serve(laboratory) as address, slow_uploads(address, 3, b"x" * 900_000) as clients:
        wait_for(lambda: sum(each.num_bytes for each in made) == 2_700_000)
        assert request(address, "POST", "/api/pictures", data).status == 201
        wait_for(lambda: any(map(is_answered, clients)))
        answered = [status_of(client) for client in clients if is_answered(client)]
        assert 1 <= len(answered) < 3 and set(answered) <= {503, 0}


def test_clients_that_read_nothing_take_no_place_and_are_closed(laboratory: Laboratory, monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "STALL_S", FOREVER_S)
    closed: list[connections.Connection] = []
    lose = connections.Connection.connection_lost
    monkeypatch.setattr(
        connections.Connection, "connection_lost", lambda self, error: (closed.append(self), lose(self, error))
    )
    with serve(laboratory, max_requests=2) as address, ExitStack() as stack:
        noise = request(address, "POST", "/api/pictures", photograph(1024)).body["id"]
        readers = []
        for _ in range(3):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            reader.settimeout(PATIENCE_S)
            reader.connect(("127.0.0.1", int(address.split(":")[1])))
            asked = f"GET /api/pictures/{noise}?size=1024 HTTP/1.1\r\nhost: {address}\r\n\r\n"
            reader.sendall(asked.encode() * 3)  # 9 MB: more than the system keeps for it
            readers.append(reader)
            time.sleep(0.1)
        # Their later requests have places while they are answered, so one answer of ours may still be a 503.
        wait_for(lambda: ask(address, MAP).status == 200, seen=lambda: "They keep their places.")
        ports = {reader.getsockname()[1] for reader in readers}
        monkeypatch.setattr(connections, "STALL_S", 0.5)
        wait_for(lambda: ports <= {each.client[1] for each in closed if each.client}, seen=lambda: "They stay open.")
        for reader in readers:
            received = 0
            with suppress(ConnectionResetError):
                while part := reader.recv(2**20):  # ends, as the connection is closed
                    received += len(part)
            assert received < 9_000_000


@pytest.mark.parametrize("start", [b"", b"GET /api/about HTTP/1.1\r\nhost: "])
def test_a_header_that_never_ends_is_not_waited_for(address: str, monkeypatch: Any, start: bytes) -> None:
    monkeypatch.setattr(connections, "HEADER_S", FOREVER_S)
    with connect(address) as silent, connect(address) as known:
        silent.sendall(start)
        known.sendall(f"GET /api/health HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
        assert status_of(known) == 200
        known.sendall(b"GET /api/health HT")  # after a first, proper request, too
        monkeypatch.setattr(connections, "HEADER_S", 0.4)
        assert status_of(silent) == status_of(known) == 0  # closed


def test_idle_connections_cannot_take_all_there_are(address: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(address))
        assert request(address, "GET", "/api/about").status == 200


class Slow(Laboratory):
    """Questions are answered once they may be."""

    begun: list[int]  # layers
    may_answer: threading.Event

    def answer(self, question: Question, picture: Picture, progress: Progress) -> dict[str, Any]:
        self.begun.append(question.layer)
        while not self.may_answer.is_set():
            progress(1, 2, "thinking")
            time.sleep(0.02)
        return super().answer(question, picture, progress)


@pytest.fixture
def slow_laboratory(laboratory: Laboratory, monkeypatch: Any) -> Iterator[Slow]:
    monkeypatch.setattr(server, "MAX_WAIT_MS", 10**6)  # longer than any test
    made: Any = laboratory
    made.__class__, made.begun, made.may_answer = Slow, [], threading.Event()
    yield made
    made.__class__ = Laboratory


def test_abandoned_questions_make_room_at_once_and_are_overtaken(slow_laboratory: Slow, monkeypatch: Any) -> None:
    count, places = (2600, 256) if ALL else (120, 12)
    num_awaiting = count_awaiting(monkeypatch)
    with serve(slow_laboratory, workers=1, max_open=places) as address, ThreadPoolExecutor(1) as pool:
        for number in range(count):
            question = {**MAP, "kind": "row", "x": number / count, "y": 0.5}
            assert request(address, "POST", "/api/questions?wait_ms=0", question).status == 202
        ours = pool.submit(request, address, "POST", "/api/questions?wait_ms=1000000", {**MAP, "layer": 2})
        wait_for(lambda: num_awaiting() == 1)
        before = len(slow_laboratory.begun)  # ours is among them where it took the place of the one under way
        slow_laboratory.may_answer.set()
        assert ours.result().status == 200
        # Another one may have been taken from the queue before ours came, and not have begun yet.
        assert 2 in slow_laboratory.begun[: before + 2], "it waited for those in the queue"


def test_who_hangs_up_leaves_at_once(slow_laboratory: Slow, monkeypatch: Any) -> None:
    num_awaiting = count_awaiting(monkeypatch)
    with serve(slow_laboratory, workers=1, max_open=1) as address:
        body = b'{"kind": "map", "picture": "sample-1", "model": "vit_tiny", "layer": 0}'
        head = post(address, length=len(body), path="/api/questions?wait_ms=1000000")

        def status() -> int:
            return request(address, "POST", "/api/questions?wait_ms=0", {**MAP, "layer": 1}).status

        with connect(address) as client:
            client.sendall(head.replace(b"\r\n\r\n", b"\r\ncontent-type: application/json\r\n\r\n") + body)
            wait_for(lambda: num_awaiting() == 1)
            assert status() == 503, "who waits has no place"
        wait_for(lambda: status() == 202, seen=lambda: "Who hung up keeps the place.")
