"""`auc`, `rank` and `maps` under torchrun: two real ranks share the images, and the result is that of one."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import command
from look_runs import make_run
from ranks import free_port

from mixlab.analysis import viewed_images
from mixlab.run import RunDirectory
from tests.waiting import exit_codes

auc, rank, maps = (command(name) for name in ("auc", "rank", "maps"))
DATA = "shapes:n=6,size=64"


def look(vit: str, run: str, ports: list[int]) -> list[dict[str, Any]]:
    """What every command returns. Each joins ranks of its own, as it would in a process of its own."""
    common = {"data": DATA, "run": Path(run), "device": "cpu"}
    calls = (
        lambda: auc(vit, study=("model", "layer"), batch=2, workers=1, **common),
        lambda: rank(vit, num_images=3, layers=(0,), workers=0, **common),
        lambda: maps(vit, num_images=2, **common),
    )
    found = []
    for port, call in zip(ports, calls, strict=True):
        os.environ |= {"MASTER_PORT": str(port)} if port else {}
        found.append(call())
    return found


def ranked(number: int, ports: list[int], vit: str, run: str, out: str) -> None:
    torch.set_num_threads(1)
    names = {"MASTER_ADDR": "127.0.0.1", "RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in names.items()}
    Path(out).write_text(json.dumps(look(vit, run, ports)))


def plain(value: Any) -> Any:
    """Without what differs between two calls."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key != "provenance"}
    return [plain(part) for part in value] if isinstance(value, list) else value


def test_two_ranks_find_what_one_finds_and_the_first_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_images, "_BATCHES_PER_WORKER", 1)
    vit = str(make_run(tmp_path / "vit", "vit_tiny"))
    ports = [free_port() for _ in range(3)]
    outs = [tmp_path / f"{number}.json" for number in range(2)]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=ranked, args=(number, ports, vit, str(tmp_path / "two"), str(out)))
        for number, out in enumerate(outs)
    ]
    for process in processes:
        process.start()
    alone = plain(json.loads(json.dumps(look(vit, str(tmp_path / "one"), [0, 0, 0]))))
    assert exit_codes(*processes) == [0, 0]
    first, second = (json.loads(out.read_text()) for out in outs)
    assert second == [{}, {}, {}] and plain(first) == alone
    stored = [RunDirectory.open(tmp_path / name).results() for name in ("one", "two")]
    assert plain(stored[0]) == plain(stored[1]) and {"auc_model", "auc_layer", "rank_vit", "maps"} <= stored[0].keys()
