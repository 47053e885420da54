"""What the miniature trains: its efforts, and a family trained in one way, as command lines."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mixlab.studies.plan import Family, Setting, StudyEffort, Training
from mixlab.studies.scoring import score_run
from mixlab.studies.steps import Step, sets

COMMANDS: dict[Training, str] = {"dino": "pretrain", "supervised": "train"}
PROBE = (
    "--mode", "cached", "--blocks", "1", "4", "--lrs", "0.01", "0.1", "0.5", "--weight-decays", "0", "--batch", "256",
)  # fmt: skip
FULL = StudyEffort()
QUICK = StudyEffort(
    least_images=20,
    training=("model.dim=64", "model.depth=4", "steps=2", "batch=8", "optim.warmup_steps=0", "log.every_steps=1"),
    dino=("method.num_prototypes=64", "method.num_local=1"),
    segment=("steps=2", "batch=2", "method.crop=64", "method.short_side=64", "method.channels=8",
             "method.auxiliary_channels=8", "optim.warmup_steps=1"),
    tuned_rates=(5e-4, 1e-3),
    tuning_steps={"dino": 2, "supervised": 2},
    narrow_dim=32,
    probe_epochs=2,
    auc_image=64,
    num_scored=8,
    rank_image=128,
    rank_chunk=64,
    depth=4,
    scaling=(64, 112),
    scaling_tokens=128,
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A family trained in one way, perhaps with another shape; its runs are LABEL-s0, LABEL-s1, ..."""

    family: Family
    training: Training = "dino"
    name: str = ""  # beside the family's: narrow, causal, ...
    settings: tuple[str, ...] = ()
    strategies: tuple[str, ...] | None = None

    @property
    def label(self) -> str:
        kind = "supervised" if self.training == "supervised" and not self.name else ""
        return "-".join(part for part in (self.family.label, self.name, kind) if part)

    def run(self, setting: Setting, seed: int) -> Path:
        return setting.run / f"{self.label}-s{seed}"


def train(
    setting: Setting,
    variant: Variant,
    seed: int,
    *,
    place: Path | None = None,
    data: str | None = None,
    rate: float | None = None,
    settings: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
) -> Step:
    """One training run, by default at the tuned learning rate."""
    effort, training, family = setting.effort, variant.training, variant.family
    place = place or variant.run(setting, seed)
    rate = rate or setting.rates.get(training, {}).get(family.label)
    chosen = [*effort.training, *(effort.dino if training == "dino" else ()), f"seed={seed}"]
    chosen += [f"optim.lr={rate:g}"] if rate else []
    arguments = (COMMANDS[training], family.recipe(training), "--data", data or setting.data, "--run", str(place))
    return Step(
        f"train {place.name}",
        f"{place.name}: train",
        "DINO without labels" if training == "dino" else "with labels",
        (*arguments, *sets(*chosen, *variant.settings, *settings)),
        place / "weights.safetensors",
        here=setting.trains_here,
        needs=needs,
        trains=place,
    )


def score_variant(setting: Setting, variant: Variant, seed: int, *, twin: bool, probe: bool = True) -> Iterator[Step]:
    """kNN and a linear probe of a run, and of its untrained twin, where there are labels."""
    if setting.labelled:
        run, strategies = variant.run(setting, seed), variant.strategies or variant.family.strategies
        heads = (*PROBE, "--strategies", *strategies, "--epochs", str(setting.effort.probe_epochs))
        yield from score_run(
            run, run.name, data=setting.data, seed=seed, heads=heads if probe else None, here=setting.here, twin=twin
        )
