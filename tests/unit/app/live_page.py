"""A real server over tiny real models, for tests that ask it questions."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from mixlab.app import create_app
from mixlab.app.connections import server_of
from mixlab.app.jobs import Jobs, Ticket
from mixlab.app.laboratory import Laboratory
from mixlab.app.pictures import read_samples
from mixlab.backbones.staged import Staged, StagedConfig
from mixlab.backbones.zoo import create_model
from mixlab.evaluation.target import Target
from mixlab.mixers import AttentionConfig
from tests.waiting import PATIENCE_S

STACK = {"dim": 32, "depth": 3, "patch": 8, "image": 64}
MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny": {**STACK, "head_dim": 16},
    "dinovim_tiny": {**STACK, "depth": 5, "head_dim": 16, "state": 8},
    "dinomambareg_tiny": {**STACK, "head_dim": 16, "state": 8, "num_registers": 4},
    "gatedconv_tiny": STACK,
    "linearvit_tiny": {**STACK, "head_dim": 16},
}


class Reply(NamedTuple):
    status: int
    body: Any  # parsed where it is JSON, else bytes
    headers: dict[str, str]


def tiny_subjects() -> list[Target]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [Target(label=name, backbone=create_model(name, **MODELS[name]).eval()) for name in MODELS]


def tiny_laboratory(cache_bytes: int = 64 * 2**20) -> Laboratory:
    return Laboratory(tiny_subjects(), read_samples(["shapes:size=128,n=4"], 4), cache_bytes=cache_bytes)


def staged_laboratory() -> Laboratory:
    """Layers with 2 and 4 heads, beside a network with 2 in each of its 3 layers."""
    config = StagedConfig(dims=(32, 64), depths=(1, 1), mixer=AttentionConfig(head_dim=16), image=64)
    staged = Target(label="staged", backbone=Staged(config).eval())
    return Laboratory([staged, tiny_subjects()[0]], read_samples(["shapes:size=64,n=1"], 1), cache_bytes=2**24)


@contextmanager
def serve(
    laboratory: Laboratory,
    *,
    workers: int = 2,
    max_open: int = 256,
    max_requests: int = 512,
    picture_bytes: int = 128 * 2**20,
) -> Iterator[str]:
    """Serve in a thread on a free port; yields host:port. However late a client asks again, its question is there."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    application = create_app(
        laboratory,
        workers=workers,
        max_open=max_open,
        max_requests=max_requests,
        picture_bytes=picture_bytes,
        patience_s=PATIENCE_S,
    )
    server = server_of(application, log_level="critical", timeout_graceful_shutdown=1)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


def count_awaiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many requests wait for an answer. A further question would say so, too, but take a place from them."""
    asked: list[Ticket] = []
    awaiting = Jobs.awaiting

    @contextmanager
    def counted(jobs: Jobs, ticket: Ticket) -> Iterator[None]:
        with awaiting(jobs, ticket):
            asked.append(ticket)
            try:
                yield
            finally:
                asked.remove(ticket)

    monkeypatch.setattr(Jobs, "awaiting", counted)
    return lambda: len(asked)


def request(
    address: str,
    method: str,
    path: str,
    body: bytes | dict[str, Any] | Iterator[bytes] | None = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    sent = headers or {}
    if isinstance(body, dict):
        body, sent = json.dumps(body).encode(), {"content-type": "application/json", **sent}
    try:
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        content = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        is_json = found.get("content-type", "").startswith("application/json")
        return Reply(response.status, json.loads(content) if is_json else content, found)
    finally:
        connection.close()


def ask(address: str, question: dict[str, Any]) -> Reply:
    """Ask until answered, as the page does."""
    reply = request(address, "POST", "/api/questions", question)
    while reply.status == 202:
        reply = request(address, "GET", f"/api/questions/{reply.body['id']}?wait_ms=2000")
    return reply
