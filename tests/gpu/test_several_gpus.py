"""Ranks that each replay a CUDA graph, and then average their gradients by NCCL, train as ranks under DDP do."""

from pathlib import Path

import pytest
import torch
from ranks import CASES, join, run_ranks, weights_after

from mixlab.training.distributed import join_world


def train_on_a_gpu(rank: int, size: int, port: int, folder: str) -> None:
    join(rank, size, port)
    with join_world("cuda") as world:
        for case, (name, settings) in CASES.items():
            found = [weights_after(name, settings, graph=graph, world=world) for graph in (True, False)]
            torch.save(found, f"{folder}/{case} {rank}.pt")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_captured_passes_on_two_gpus_train_as_ddp_does(tmp_path: Path) -> None:
    assert run_ranks(train_on_a_gpu, str(tmp_path)) == [0, 0]
    for case in CASES:
        (ours, ddp), (others, _) = (torch.load(tmp_path / f"{case} {rank}.pt") for rank in range(2))
        assert not [key for key in ours if not torch.equal(ours[key], others[key])], f"{case}: ranks differ"
        if case == "three passes":  # thirds are rounded elsewhere
            torch.testing.assert_close(ours, ddp, rtol=1e-3, atol=1e-4)
        else:
            assert not [key for key in ours if not torch.equal(ours[key], ddp[key])], case
