"""Optimisers and schedules from outside: they train, resume to the same bits, and are refused where they are wrong."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import timm.optim
import torch
from safetensors.torch import load_file
from torch import nn

import mixlab
from mixlab.cli import main
from mixlab.plugins import REGISTRIES, VARIABLE, load_plugin
from mixlab.recipes import RECIPES
from mixlab.run import RunDirectory
from mixlab.training.config import OptimConfig
from mixlab.training.optim import build_optimizer, parameter_groups, set_rates
from mixlab.training.schedules import SCHEDULES, Course, check_schedule, learning_rate
from mixlab.training.settings import override
from mixlab.training.state import TrainingState

PLUGIN = """
import torch
import mixlab

class Odd(torch.optim.Optimizer):
    "State of every kind: of other shapes and types, lists, numbers, and numbers in the groups that follow gradients."

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "scale": 1.0, "scales": []})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            seen = sum(float(p.grad.abs().mean()) for p in group["params"] if p.grad is not None)
            group["scale"] = 0.9 * group["scale"] + 0.1 * seen
            group["scales"] = [*group["scales"], group["scale"]]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=torch.zeros((), dtype=torch.int64), count=0, momentum=torch.zeros_like(p))
                    state.update(rows=torch.zeros(p.shape[:1], dtype=torch.bfloat16), best=None)
                    state.update(factors=[1.0, torch.ones(p.shape[-1:]), [torch.zeros_like(p), None]], none=[])
                state["count"] += 1
                state["step"] += 1
                decay, widths, (last, _) = state["factors"]
                state["factors"][0] = 0.9 * decay
                widths.mul_(0.9).add_(p.grad.abs().flatten(0, -2).mean(0) if p.ndim > 1 else p.grad.abs())
                last.copy_(p.grad)
                state["momentum"].lerp_(p.grad * decay / widths, 0.1)
                state["rows"] += p.grad.flatten(1).mean(1).to(torch.bfloat16) if p.ndim > 1 else p.grad.bfloat16()
                size = group["scale"] / (state["count"] + float(state["step"]))
                rows = state["rows"].float().reshape(-1, *[1] * (p.ndim - 1))
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * size * (state["momentum"] + rows))

@mixlab.register_optimizer
def odd(groups, config):
    return Odd(groups)

@mixlab.register_schedule
def stairs(step, course):
    return course.peak / (1 + step // course.steps_per_epoch)
"""
SETTINGS = ["batch=4", "model.depth=1", "model.dim=32", "optim.warmup_epochs=0", "knn.every_epochs=0", "precision=fp32",
            "log.every_steps=1", "optim.name=odd", "optim.decay=stairs", "checkpoint.every_steps=2",
            "checkpoint.keep=9", "data.workers=0"]  # fmt: skip


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "odd_plugin.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delitem(mixlab.plugins.sys.modules, file.stem, raising=False)
    return file


def pretrain(run: Path, *more: str) -> list[str]:
    command = ["pretrain", "dino_vit_tiny64", "--data", "shapes:n=8", "--run", str(run), "--device", "cpu"]
    return [*command, *(part for one in ["epochs=3", *SETTINGS, *more] for part in ("--set", one))]


def tensors_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:08d}.safetensors")


def test_a_run_with_a_plugins_optimiser_resumes_to_the_same_bits(plugin: Path, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert main(["--import", str(plugin), *pretrain(whole)]) == 0
    assert main(pretrain(resumed)) == 0
    for file in (resumed / "checkpoints").glob("step-00000006*"):
        file.unlink()
    for file in (resumed / "checkpoints").glob("step-00000004*"):
        file.unlink()
    for file in ("weights.safetensors", "results/training.json"):
        (resumed / file).unlink()
    assert main(pretrain(resumed)) == 0  # from step 2
    assert [one["from_step"] for one in RunDirectory(resumed).read_config()["sessions"]] == [0, 2]
    ours, theirs = tensors_of(whole, 6), tensors_of(resumed, 6)
    assert {"step", "momentum", "rows", "factors:1", "factors:2:0"} <= {name.split("/")[1] for name in ours}
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    numbers = [
        json.loads((run / "checkpoints" / "step-00000006.json").read_text())["state"] for run in (whole, resumed)
    ]
    assert numbers[0]["optimizer"] == numbers[1]["optimizer"]
    assert {own["count"] for own in numbers[0]["optimizer"]["state"].values()} <= {4, 6}  # prototypes are frozen first
    assert all(set(group) == {"scale", "scales"} for group in numbers[0]["optimizer"]["groups"])
    rates = [row["lr"] for row in RunDirectory(whole).read_metrics() if "lr" in row]
    assert rates == pytest.approx([rates[0] / part for part in (1, 1, 2, 2, 3, 3)])


def test_a_schedule_is_tried_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixlab.register_schedule("ends_badly")(lambda step, course: 1.0 / (course.total - 1 - step) if step else 1.0)
    mixlab.register_schedule("below_zero")(lambda step, course: course.peak * (course.total - 2 - step))
    for name, said in (("below_zero", "the schedule 'below_zero' of the plugin"), ("ends_badly", "ZeroDivisionError")):
        more = ["optim.name=adamw", f"optim.decay={name}"]
        assert main(pretrain(tmp_path / name, *more)) == 1
        assert said in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / name / "metrics.jsonl").exists()


def test_a_run_says_which_plugin_it_needs(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {word: (dict(r.data), dict(r._origins)) for word, r in REGISTRIES.items()}
    assert main(["--import", str(plugin), *pretrain(tmp_path / "run")]) == 0
    (needed,) = json.loads((tmp_path / "run" / "config.json").read_text())["plugins"]
    assert needed["adds"] == {"optimizer": ["odd"], "schedule": ["stairs"]}
    for word, (entries, origins) in before.items():  # as in a process that has not imported it
        REGISTRIES[word].data, REGISTRIES[word]._origins = entries, origins
    capsys.readouterr()
    assert main(pretrain(tmp_path / "run")) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "needs the plugin odd_plugin (optimizer odd, schedule stairs), which is not loaded; write `mixlab" in told
    assert main(["knn", str(tmp_path / "run"), "--data", "shapes:n=20", "--device", "cpu"]) == 0, "weights need none"
    assert main(pretrain(tmp_path / "new")) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "optim.name is 'odd'; choose one of adamw, muon, or load the plugin that adds it (mixlab --import)" in told


def test_names_of_plugins_are_among_the_choices(plugin: Path) -> None:
    load_plugin(str(plugin))
    for setting, names in (("name", "adamw, muon, odd"), ("decay", "cosine, cosine_by_epoch, poly, drops, stairs")):
        with pytest.raises(mixlab.InputError, match=f"optim.{setting} is 'x'; choose one of {names}, or load"):
            override(RECIPES["dino_vit_tiny64"](), [f"optim.{setting}=x"])
    config = override(RECIPES["dino_vit_tiny64"](), ["optim.decay=stairs"])
    assert override(config, ["optim.drop_epochs=3,4"]).optim.drop_epochs == (3, 4)  # it may have drops


def config_of(name: str) -> OptimConfig:
    return OptimConfig(name=name, lr=1.0, weight_decay=0.0, weight_decay_end=0.0)


@pytest.mark.parametrize("name", ["adafactor", "adan", "lion", "madgrad", "nadamw", "rmsproptf"])
def test_optimisers_of_timm_resume_to_the_same_bits(name: str) -> None:
    @mixlab.register_optimizer
    def timms(groups: Any, config: Any) -> torch.optim.Optimizer:
        return timm.optim.create_optimizer_v2(groups, opt=name)

    def build() -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        optimizer = build_optimizer(parameter_groups(network, set()), config_of("timms"))
        return network, optimizer, TrainingState(Bag(network), optimizer)  # type: ignore[arg-type]

    def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            set_rates(optimizer, lr=1e-2 / (1 + step), weight_decay=0.05)
            images = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(step))
            network(images).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    whole, resumed = build(), build()
    train(*whole[:2], range(3))
    stored = {key: value.clone() for key, value in whole[2].tensors().items()}
    resumed[2].load(iter(stored.items()), json.loads(json.dumps(whole[2].numbers())))
    for network, optimizer, _ in (whole, resumed):
        train(network, optimizer, range(3, 6))
    ours, theirs = whole[2].tensors(), resumed[2].tensors()
    assert ours.keys() == theirs.keys() and any(key.startswith("optimizer/") for key in ours)
    assert not [key for key in ours if not torch.equal(ours[key], theirs[key])]


class NeedsClosure(torch.optim.SGD):
    def step(self, closure: Any) -> Any:
        return closure()


class NoRate(torch.optim.Optimizer):
    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {})


def without_names(groups: Any, config: Any) -> Any:
    return torch.optim.SGD([{"params": group["params"]} for group in groups], lr=0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda groups, config: None, "is a NoneType; return a torch.optim.Optimizer"),
        (lambda groups, config: torch.optim.SGD(groups[:1], lr=0.1), "trains 1 of 2 parameters; hand it the groups"),
        (without_names, "has groups without 'names'; hand it the groups as they are"),
        (lambda groups, config: NoRate(groups), "has groups without 'lr'; so the schedule has no effect"),
        (lambda groups, config: NeedsClosure(groups, lr=0.1), r"has NeedsClosure.step\(closure.*without a closure"),
    ],
)
def test_what_is_no_optimiser_of_the_network_is_refused(make: Any, said: str) -> None:
    mixlab.register_optimizer("wrong")(make)
    with pytest.raises(mixlab.InputError, match=rf"the optimiser 'wrong' of the plugin {__name__} {said}"):
        build_optimizer(parameter_groups(nn.Linear(3, 2), set()), config_of("wrong"))


class Bag:
    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def modules(self) -> dict[str, nn.Module]:
        return {"network": self.network}


@pytest.mark.parametrize(
    ("state", "group", "said"),
    [
        ({"history": [1.0, {}]}, {}, "keeps a dict as 'history'; keep tensors, numbers and lists of them"),
        ({"pair": (1, 2)}, {}, "keeps a tuple as 'pair'"),
        ({"a/b": 1}, {}, "keeps a state called 'a/b'"),
        ({"a:0": 1}, {}, "keeps a state called 'a:0'; use words without / and :"),
        ({}, {"scale": torch.ones(2)}, "keeps a Tensor as 'scale' of its groups; keep numbers there"),
        ({}, {"seen": (1, 2)}, "keeps a tuple as 'seen' of its groups"),
        ({}, {"scales": [torch.ones(2)]}, "keeps a list as 'scales' of its groups; keep numbers there"),
    ],
)
def test_what_no_checkpoint_could_hold_is_refused(state: Any, group: Any, said: str) -> None:
    network = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(parameter_groups(network, set()), lr=0.1)
    kept = TrainingState(Bag(network), optimizer)  # type: ignore[arg-type]
    assert kept.numbers() == {}
    optimizer.state[network.weight].update(state)
    optimizer.param_groups[0].update(group)
    with pytest.raises(mixlab.WorkError, match=f"the optimiser SGD of torch.optim.sgd {said}"):
        kept.numbers()


@pytest.mark.parametrize("place", ["history:0", "history:2:0", "history:7", "history:x", "other:0"])
def test_a_place_in_no_list_of_the_checkpoint_is_refused(place: str) -> None:
    network = nn.Linear(3, 2)
    kept = TrainingState(Bag(network), torch.optim.SGD(parameter_groups(network, set()), lr=0.1))  # type: ignore[arg-type]
    history = 1.0 if place == "history:0" else [1.0, None]
    numbers = {"state": {"weight": {"history": history}}, "groups": [{}, {}]}
    with pytest.raises(mixlab.InputError, match="which in this model is not there"):
        kept.load([(f"optimizer/{place}/weight", torch.ones(1))], numbers)


@pytest.mark.parametrize(
    ("name", "at_start", "change"),
    [
        ("count", {"count": 5}, lambda own: setattr(own, "count", 6)),
        ("total", {"total": torch.zeros(())}, lambda own: own.total.add_(1)),
        ("new", {}, lambda own: setattr(own, "new", 1)),
        ("rng", {"rng": Random(0)}, lambda own: own.rng.random()),
        ("draws", {"draws": torch.Generator()}, lambda own: torch.rand(1, generator=own.draws)),
    ],
)
def test_what_an_optimiser_changes_in_itself_is_refused(name: str, at_start: dict[str, Any], change: Any) -> None:
    network = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(parameter_groups(network, set()), lr=0.1)
    vars(optimizer).update(at_start, warned=False)
    state = TrainingState(Bag(network), optimizer)  # type: ignore[arg-type]
    vars(optimizer).update(warned=True)
    assert state.numbers() == {}
    change(optimizer)
    with pytest.raises(mixlab.WorkError, match=f"SGD of .* changes its attribute '{name}'; keep that in"):
        state.numbers()


COURSE = Course(peak=1.0, end=0.0, warmup=10, total=5000)


@pytest.mark.parametrize(
    ("decay", "said"),
    [
        (lambda step, course: -0.1, "gives -0.1 at step"),
        (lambda step, course: float("nan"), "gives nan at step"),
        (lambda step, course: torch.ones(()), "gives a Tensor at step"),
        (lambda step, course: None, "gives a NoneType at step"),
        (lambda step, course: 1.0 if step < course.total - 1 else float("inf"), "gives inf at step 4999 of 5000"),
        (lambda step, course, calls=[]: calls.append(1) or 1 / len(calls), "gives .* and then .* it must depend on"),
    ],
)
def test_a_schedule_that_gives_no_rates_is_refused_before_the_run(decay: Any, said: str) -> None:
    mixlab.register_schedule("wrong")(decay)
    with pytest.raises(mixlab.WorkError, match=rf"the schedule 'wrong' of the plugin {__name__} {said}"):
        check_schedule(COURSE, "wrong")


def test_the_warm_up_is_the_same_for_all_and_whole_numbers_are_rates() -> None:
    mixlab.register_schedule("full")(lambda step, course: 1)
    check_schedule(COURSE, "full")
    rates = [learning_rate(step, COURSE, "full") for step in range(12)]
    assert rates == pytest.approx([step / 9 for step in range(10)] + [1.0, 1.0])


def test_what_cannot_be_registered_says_why() -> None:
    for given, said in (
        (
            lambda: mixlab.register_optimizer("adamw")(lambda g, c: None),
            "registers the optimizer 'adamw', already registered by mixlab",
        ),
        (
            lambda: mixlab.register_optimizer("one")(lambda g: None),
            r"must be built as one\(groups, config\); got one\(g\)",
        ),
        (
            lambda: mixlab.register_schedule("one")(lambda s: 1.0),
            r"must be called as one\(step, course\); got one\(s\)",
        ),
        (lambda: mixlab.register_schedule(lambda s, c: 1.0), "a schedule cannot be called '<lambda>'"),
        (lambda: mixlab.register_schedule(3), "a schedule is registered as a function; got a int"),
    ):
        with pytest.raises(mixlab.InputError, match=said):
            given()
    assert set(SCHEDULES) == {"cosine", "cosine_by_epoch", "poly", "drops"}
