"""`auc`, `rank` and `maps` under torchrun: two real ranks share the images, and the result is that of one."""

import json
import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import command
from look_runs import make_run

from mixlab.analysis import viewed_images
from mixlab.run import RunDirectory

auc, rank, maps = (command(name) for name in ("auc", "rank", "maps"))
DATA = "shapes:n=10,size=64"


def look(vit: str, run: str) -> list[dict[str, Any]]:
    """What every command returns."""
    common = {"data": DATA, "run": Path(run), "device": "cpu"}
    return [
        auc(vit, study=("model", "layer"), batch=2, workers=1, **common),
        rank(vit, num_images=3, layers=(0,), workers=0, **common),
        maps(vit, num_images=2, **common),
    ]


def ranked(number: int, port: int, vit: str, run: str, out: str) -> None:
    torch.set_num_threads(1)
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2}
    os.environ |= {name: str(value) for name, value in names.items()}
    Path(out).write_text(json.dumps(look(vit, run)))


def plain(value: Any) -> Any:
    """Without what differs between two calls."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key != "provenance"}
    return [plain(part) for part in value] if isinstance(value, list) else value


@pytest.mark.timeout(300)
def test_two_ranks_find_what_one_finds_and_the_first_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_images, "_BATCHES_PER_WORKER", 1)
    vit = str(make_run(tmp_path / "vit", "vit_tiny"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    outs = [tmp_path / f"{number}.json" for number in range(2)]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=ranked, args=(number, port, vit, str(tmp_path / "two"), str(out)))
        for number, out in enumerate(outs)
    ]
    for process in processes:
        process.start()
    alone = plain(json.loads(json.dumps(look(vit, str(tmp_path / "one")))))
    for process in processes:
        process.join(250)
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (json.loads(out.read_text()) for out in outs)
    assert second == [{}, {}, {}] and plain(first) == alone
    stored = [RunDirectory.open(tmp_path / name).results() for name in ("one", "two")]
    assert plain(stored[0]) == plain(stored[1]) and {"auc_model", "auc_layer", "rank_vit", "maps"} <= stored[0].keys()
