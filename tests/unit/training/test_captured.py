"""What a captured pass does when something goes wrong, with a graph that only counts: no GPU is needed for that."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from mixlab.data.loader import Batch
from mixlab.errors import WorkError
from mixlab.recipes import RECIPES
from mixlab.training import distributed
from mixlab.training.distributed import World
from mixlab.training.recipe import BatchPart
from mixlab.training.settings import override
from mixlab.training.update import WARM_UP, CapturedPass, reason_against_capture


class CountingGraph:
    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> CapturedPass:
    @contextmanager
    def record(graph: CountingGraph, **options: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", CountingGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    network = nn.Linear(3, 1)

    def loss(inputs: tuple[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return network(inputs[0]).square().mean(), {}

    captured = CapturedPass(SimpleNamespace(network=network, loss=loss), nullcontext)  # type: ignore[arg-type]
    for _ in range(WARM_UP):
        captured((torch.randn(4, 3),))
    return captured


def test_a_failed_capture_is_never_replayed(captured: CapturedPass, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fail(graph: CountingGraph, **options: Any) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    for _ in range(2):  # the second step must not take the first one's empty graph for a capture
        with pytest.raises(WorkError, match="not permitted.*set graph=false"):
            captured((torch.randn(4, 3),))
    assert all(parameter.grad is None for parameter in captured.recipe.network.parameters())


def test_a_run_that_only_may_be_captured_goes_on_without(
    captured: CapturedPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def fail(graph: CountingGraph, **options: Any) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    captured.must = False
    network, inputs = captured.recipe.network, (torch.randn(4, 3),)
    with pytest.warns(UserWarning, match="not permitted.*launched kernel by kernel"):
        captured(inputs)
    network.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one line, once
        found = captured(inputs, num_passes=2)
    expected = network(inputs[0]).square().mean()
    (gradient,) = torch.autograd.grad(expected, [network.weight])
    torch.testing.assert_close(network.weight.grad, gradient / 2)
    assert found["loss"] == expected


@pytest.mark.parametrize("other", [torch.randn(1, 3), torch.zeros(4, 3, dtype=torch.int64)], ids=["shape", "dtype"])
def test_a_batch_that_does_not_fit_the_capture_is_refused(captured: CapturedPass, other: Tensor) -> None:
    captured((torch.randn(4, 3),))
    assert captured.capture is not None
    with pytest.raises(WorkError, match=r"captured for \(4, 3\) torch.float32 was given"):
        captured((other,))
    assert captured.capture.graph.replays == 1


def test_what_stands_against_a_capture_is_named() -> None:
    def reason(name: str, *settings: str, ranks: int = 1, shared: str = "", part: type = nn.Identity) -> str | None:
        config = override(RECIPES[name](), settings)
        recipe = SimpleNamespace(static=not name.startswith("detect"), shared=shared, network=nn.Sequential(part(3)))
        return reason_against_capture(recipe, config, World(torch.device("cuda"), size=ranks))  # type: ignore[arg-type]

    assert reason("dino_vit_tiny64") is None
    assert reason("dino_vit_tiny64", ranks=2) is None
    assert "gathers weights" in reason("dino_vit_tiny64", "sharding=fsdp", ranks=2)
    assert "processes exchange rows during a pass" in reason("dino_vit_tiny64", ranks=2, shared="rows")
    assert "processes exchange batch statistics" in reason("segment_vit_tiny64", ranks=2, part=nn.SyncBatchNorm)
    assert reason("segment_vit_tiny64", shared="rows", part=nn.SyncBatchNorm) is None  # there is nobody to wait for
    assert "compile=true" in reason("dino_vit_tiny64", "compile=true")
    assert "activation_checkpointing" in reason("dino_vit_tiny64", "activation_checkpointing=true")
    assert "shapes of a batch change" in reason("detect_vit_tiny64")


@pytest.mark.parametrize(
    ("name", "settings", "shared"),
    [
        ("dino_vit_tiny64", ["method.spread=0.1", "method.num_local=0"], "features (method.spread)"),
        ("dino_vit_tiny64", ["method.spread=0", "method.num_local=0"], ""),
        ("lejepa_vit_tiny64", ["method.num_local=0"], "embeddings (SIGReg)"),
        ("supervised_vit_tiny64", [], ""),
    ],
)
def test_a_recipe_names_what_its_loss_exchanges_with_other_ranks(
    name: str, settings: list[str], shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(RECIPES[name](), ["model.dim=16", "model.depth=1", *settings])
    recipe = config.method.build(config.model.build(), num_classes=3, total_steps=9, steps_per_epoch=3)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    batch = Batch(images, torch.tensor([0, 2]), torch.arange(2), torch.full((2, 2), 64))
    inputs = recipe.prepare(batch, BatchPart(step=0, epoch=0))
    exchanged: list[Tensor] = []
    gather = distributed.gather_rows
    monkeypatch.setattr(distributed, "gather_rows", lambda rows: exchanged.append(rows) or gather(rows))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        recipe.loss(inputs)
    finally:
        dist.destroy_process_group()
    assert recipe.shared == shared
    assert bool(exchanged) == bool(shared)
