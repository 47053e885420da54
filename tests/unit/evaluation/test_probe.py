"""A probe from images to heads: resumed to the same bits, alone or on two processes."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from ranks import free_port
from safetensors.torch import load_file
from tiny_backbones import PLAIN, run_tiny, tiny_backbone, tiny_settings, tiny_splits

from mixlab.data.images import ImageFolder
from mixlab.evaluation.features import FeaturePlan, head_inputs
from mixlab.evaluation.machine import Machine
from mixlab.evaluation.probe.evaluate import choose_folder, stored_settings
from mixlab.evaluation.probe.heads import new_head
from mixlab.evaluation.probe.result import best_head, chosen_elsewhere
from mixlab.evaluation.probe.training import AugmentedStream, ProbeCrops
from mixlab.run.files import write_json
from mixlab.training.distributed import World, join_world
from mixlab.training.stopping import Stopped
from tests.waiting import exit_codes

LAST = 9  # 3 epochs of 44 // 12 steps
CONTEXT = multiprocessing.get_context("forkserver")
ALONE = Machine(World(torch.device("cpu")))
pytestmark = pytest.mark.usefixtures("one_thread")


def heads_in(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob(f"probe/*/checkpoints/step-{LAST:08d}.safetensors")
    return load_file(file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One uninterrupted run of each mode."""
    made = {}
    for mode in ("augmented", "cached"):
        made[mode] = tmp_path_factory.mktemp(mode)
        run_tiny(made[mode], tiny_settings(mode=mode))
    return made


@pytest.mark.parametrize("mode", ["augmented", "cached"])
@pytest.mark.parametrize("stop_after", [3, 5])  # at the end of an epoch, within the next
def test_a_stopped_and_resumed_probe_ends_with_the_same_bits(
    mode: str, stop_after: int, whole: dict[str, Path], tmp_path: Path
) -> None:
    @contextmanager
    def interrupting(description: str, total: int) -> Iterator[object]:
        done = 0

        def step(count: int) -> None:
            nonlocal done
            done += count
            if "heads" in description and done == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)

        yield step

    with pytest.raises(Stopped, match=f"after step {stop_after}, which is saved"):
        run_tiny(tmp_path, tiny_settings(mode=mode), bar=interrupting)
    assert not list(tmp_path.rglob("best_head.safetensors"))
    outcome = run_tiny(tmp_path, tiny_settings(mode=mode))
    ours, theirs = heads_in(tmp_path), heads_in(whole[mode])
    assert ours.keys() == theirs.keys() and len(ours) == 4 * 4
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]
    again = run_tiny(tmp_path, tiny_settings(mode=mode))  # nothing left to do
    assert torch.equal(again.correct, outcome.correct)


def test_a_probe_with_other_settings_gets_a_folder_of_its_own_and_the_same_resumes_in_its(tmp_path: Path) -> None:
    few, more = (tiny_settings(mode="cached", epochs=epochs, lrs=(0.1,), weight_decays=(0.0,)) for epochs in (1, 2))
    for settings in (few, more, few, more):
        run_tiny(tmp_path, settings)
    steps = {
        path.name: sorted(file.stem for file in path.glob("cached/checkpoints/*.safetensors"))
        for path in tmp_path.glob("probe*")
    }
    assert steps == {"probe": ["step-00000003"], "probe_2": ["step-00000006"]}


def test_a_probe_from_when_images_were_squashed_to_twice_the_size_resumes_with_that_size(tmp_path: Path) -> None:
    now = tiny_settings(mode="augmented").for_backbone(tiny_backbone())
    choose = partial(choose_folder, tmp_path / "probe", backbone=tiny_backbone(), splits=tiny_splits())
    stored = stored_settings(now, tiny_backbone(), tiny_splits())
    assert stored["load_size"] == 0
    (tmp_path / "probe" / "augmented").mkdir(parents=True)
    write_json(tmp_path / "probe" / "augmented" / "settings.json", {**stored, "load_size": None})
    said: list[str] = []
    assert choose(settings=replace(now, load_size=32), say=said.append) == tmp_path / "probe" and not said
    assert choose(settings=now, say=said.append) == tmp_path / "probe_2"
    assert "load_size was 32, is 0" in said[0]


def test_heads_trained_on_augmented_images_are_those_of_torch_on_the_same_crops(whole: dict[str, Path]) -> None:
    settings, backbone, splits = tiny_settings(), tiny_backbone(), tiny_splits()
    plan = FeaturePlan.build(backbone, head_inputs(backbone, (2,), ("cls",)), source="branch", image=16)
    stream = AugmentedStream(
        splits.train, backbone=backbone, plan=plan, crops=ProbeCrops(16, seed=5), batch=12, machine=ALONE, precise=PLAIN
    )  # fmt: skip
    linear = new_head(32, 10, seed=5)
    optimizer = torch.optim.SGD(linear.parameters(), 1.0 * 12 / 256, momentum=0.9, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    batches = stream.steps(0)
    for _ in range(settings.epochs):
        for _ in range(3):
            features, labels = next(batches)
            loss = torch.nn.functional.cross_entropy(linear(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
    trained = heads_in(whole["augmented"])["2/cls/weight"]  # (lr, wd) in order: the last is (1.0, 1e-2)
    torch.testing.assert_close(trained[3], linear.weight.detach(), rtol=0, atol=1e-5)


def test_augmentation_changes_the_features_from_step_to_step_and_not_from_run_to_run() -> None:
    backbone, splits = tiny_backbone(), tiny_splits()
    plan = FeaturePlan.build(backbone, head_inputs(backbone, (1,), ("cls",)), source="branch", image=16)
    options = {"backbone": backbone, "plan": plan, "batch": 44, "machine": ALONE, "precise": PLAIN}
    crops = ProbeCrops(16, seed=0, load_size=32)
    made = [AugmentedStream(splits.train, crops=crops, **options).steps(start) for start in (0, 1)]
    (first, labels), (second, others) = next(made[0]), next(made[0])
    assert torch.equal(labels.sort().values, others.sort().values)  # every image in every epoch
    assert (first.mean(0) - second.mean(0)).abs().max() > 1e-3
    resumed, again = next(made[1])
    assert torch.equal(resumed, second) and torch.equal(again, others)


def test_a_set_that_cannot_be_read_stops_with_a_sentence(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for index in range(4):
            (tmp_path / name / f"{index}.png").write_bytes(b"broken")
    backbone, source = tiny_backbone(), ImageFolder(tmp_path)
    plan = FeaturePlan.build(backbone, head_inputs(backbone, (1,), ("cls",)), source="branch", image=16)
    stream = AugmentedStream(
        source, backbone=backbone, plan=plan, crops=ProbeCrops(16, seed=0, load_size=16), batch=4, machine=ALONE,
        precise=PLAIN,
    )  # fmt: skip
    with (
        pytest.raises(ValueError, match=r"a batch of 4 has 0 images, 8 in all cannot be read"),
        pytest.warns(UserWarning),
    ):
        next(stream.steps(0))


def child(folder: str, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    with join_world("cpu") as world:
        for mode in ("augmented", "cached"):
            run_tiny(Path(folder) / mode, tiny_settings(mode=mode), world=world, save_every_s=0.0)


def test_two_processes_give_the_heads_of_one(whole: dict[str, Path], tmp_path: Path) -> None:
    port = free_port()
    processes = [CONTEXT.Process(target=child, args=(str(tmp_path), rank, 2, port)) for rank in range(2)]
    for process in processes:
        process.start()
    assert exit_codes(*processes) == [0, 0]
    for mode, folder in whole.items():
        ours, theirs = heads_in(tmp_path / mode), heads_in(folder)
        assert ours.keys() == theirs.keys()
        assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-6
        best, alone = (load_file(next(place.rglob("best_head.safetensors"))) for place in (tmp_path / mode, folder))
        torch.testing.assert_close(best, alone, rtol=0, atol=1e-6)
    # One process takes over from two, after the second epoch.
    checkpoints = tmp_path / "cached" / "probe" / "cached" / "checkpoints"
    for file in checkpoints.glob(f"step-{LAST:08d}.*"):
        file.unlink()
    assert (checkpoints / "step-00000006.json").is_file()
    run_tiny(tmp_path / "cached", tiny_settings(mode="cached"))
    ours, theirs = heads_in(tmp_path / "cached"), heads_in(whole["cached"])
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-6


def test_a_batch_larger_than_the_set_takes_the_whole_set_and_its_own_rate(tmp_path: Path) -> None:
    outcome = run_tiny(tmp_path, tiny_settings(mode="cached", batch=1000, epochs=1))
    assert outcome.batch == 44 and outcome.num_train == 44


def test_the_best_head_is_the_first_of_the_best_that_are_numbers() -> None:
    correct = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]]).bool()
    assert best_head(correct, torch.tensor([True, False, True, True])) == 2
    with pytest.raises(ValueError, match="every head diverged"):
        best_head(correct, torch.zeros(4, dtype=torch.bool))


def test_choosing_and_scoring_on_different_halves_takes_the_luck_out() -> None:
    generator = torch.Generator().manual_seed(0)
    chance = torch.rand(300, 400, generator=generator) < 0.5  # 300 heads that know nothing
    finite = torch.ones(300, dtype=torch.bool)
    assert chance[best_head(chance, finite)].float().mean() > 0.55
    assert abs(chosen_elsewhere(chance, finite).estimate.value - 0.5) < 0.05
    assert chosen_elsewhere(chance[:, :1], finite) is None


def test_crops_are_resized_bilinearly_as_by_dinos_probe() -> None:
    """eval_linear.py takes torchvision's RandomResizedCrop as it comes; crops of squashed images stay as they were."""
    sizes = torch.tensor([[40, 60]] * 8)
    for load_size, expected in ((None, True), (32, False)):
        crops = ProbeCrops(16, seed=0, load_size=load_size).crops
        drawn = crops.draw(sizes, torch.Generator().manual_seed(0))[16]
        assert drawn.bilinear.tolist() == [expected] * 8
