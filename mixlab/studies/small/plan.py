"""What the study at 160 px trains: sizes, efforts, ablations, and how long an H200 should take."""

from mixlab.recipes import find_recipe
from mixlab.studies.plan import Family, StudyEffort
from mixlab.training.config import TrainConfig
from mixlab.training.settings import override

SIZES = ("tiny", "small")
# Images per second of DINO on one H200; each family as a share of ViT's. Those of the tiny size follow from the time of
# a step; LinearViT's of that size is an estimate.
IMAGES_PER_S = {"tiny": 12_300.0, "small": 6_840.0}
SPEED = {
    "tiny": {"vit": 1.0, "linearvit": 0.86, "dinovim": 0.57, "mambareg": 0.48, "gatedconv": 0.92},
    "small": {"vit": 1.0, "linearvit": 0.94, "dinovim": 0.61, "mambareg": 0.47, "gatedconv": 0.94},
}
SIDE_BY_SIDE = 1.1  # how much sooner three networks are trained and scored at a time: one alone fills the GPU
SUPERVISED_SPEED = 3.0  # of DINO's: one view instead of eight, no teacher
TUNING_SHARE = {"tiny": 1.0, "small": 0.6}  # of the steps of a tuning, so that each part takes a few minutes
START_MINUTES, SCORING_MINUTES, LOOKING_MINUTES = 0.4, 0.5, 2.5  # estimates, too

FULL = StudyEffort(
    least_images=320,
    tuned_rates=(),  # those of `tried_rates`
    tuning_steps={"dino": 1000, "supervised": 500},
    auc_image=None,
    num_scored=1000,
    scaling=(160, 320, 640),
    scaling_tokens=65536,
)
QUICK = StudyEffort(
    least_images=20,
    training=(
        "model.dim=64", "model.depth=4", "model.image=64", "data.size=64", "steps=2", "batch=8",
        "optim.warmup_steps=0", "log.every_steps=1",
    ),
    dino=(
        "method.num_prototypes=32", "method.hidden=32", "method.num_local=1", "method.global_size=64",
        "method.local_size=32", "method.frozen_prototype_epochs=0",
    ),
    segment=("steps=2", "batch=2", "method.crop=64", "method.short_side=64", "method.channels=8",
             "method.auxiliary_channels=8", "optim.warmup_steps=1"),
    tuned_rates=(5e-4, 3e-3),
    tuning_steps={"dino": 2, "supervised": 2},
    probe_epochs=2,
    auc_image=64,
    num_scored=8,
    rank_image=128,
    rank_chunk=32,
    depth=4,
    scaling=(64,),
    scaling_tokens=64,
)  # fmt: skip

# What made the difference? Each is one setting, or a few that belong together, beside all others as they are.
ABLATIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "views": {
        "as-it-is": (),
        "no-local": ("method.num_local=0",),
        "10-local": ("method.num_local=10",),
        "smaller-crops": ("method.global_scale=0.25,1.0", "method.local_scale=0.05,0.25"),
    },
    "teacher": {
        "momentum-0.98": ("method.teacher_momentum=0.98",),
        "momentum-0.996": ("method.teacher_momentum=0.996",),
        "temperature-0.03": ("method.teacher_temperature=0.03",),
        "temperature-0.06": ("method.teacher_temperature=0.06",),
    },
    "loss": {
        "koleo-none": ("method.spread=0",),
        "koleo-0.1": ("method.spread=0.1",),
        "sinkhorn": ("method.balance=3",),
        "prototypes-1024": ("method.num_prototypes=1024",),
    },
    "optimiser": {
        "adamw": ("optim.name=adamw", "optim.lr=1e-3"),
        "rate-1e-3": ("optim.lr=1e-3",),
        "rate-4e-3": ("optim.lr=4e-3",),
    },
    "length": {
        "half-length": ("steps=*0.5",),
        "double-length": ("steps=*2",),
        "batch-half": ("batch=*0.5", "steps=*2"),  # as many images
        "batch-double": ("batch=*2", "steps=*0.5"),
    },
    "size": {
        "blur-2px": ("method.blur_sigma=0.1,2.0",),
        "48px": ("method.global_size=48", "method.local_size=24", "steps=*1.27"),  # in the same time
        "registers-4": ("model.num_registers=4",),
        "drop-path-0.1": ("model.drop_path=0.1",),
    },
}


def recipe_of(kind: str, size: str, family: Family) -> str:
    return family.recipe(kind, f"{size}160")


def tried_rates(recipe: str, effort: StudyEffort) -> tuple[float, ...]:
    """Learning rates; for the whole study half, once and twice that of the recipe."""
    own = find_recipe(recipe).optim.lr
    return effort.tuned_rates or (own / 2, own, 2 * own)


def tuning_steps(size: str, effort: StudyEffort) -> int:
    return max(2, round(effort.tuning_steps["dino"] * TUNING_SHARE[size]))


def seeds_of(size: str, family: Family, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """All of them; of the larger size, ViT's alone."""
    return seeds if size == "tiny" or family.label == "vit" else seeds[:1]


def training_minutes(kind: str, size: str, family: Family, settings: tuple[str, ...] = ()) -> float:
    """By the length and the batch of the recipe, with these settings."""
    config = override(find_recipe(recipe_of(kind, size, family)), settings)
    images = (config.steps or 0) * config.batch
    speed = IMAGES_PER_S[size] * SPEED[size][family.label] * (SUPERVISED_SPEED if kind == "supervised" else 1.0)
    return images / speed / 60 + START_MINUTES


def in_numbers(settings: tuple[str, ...], config: TrainConfig) -> tuple[str, ...]:
    """Settings of which `steps=*2` means twice the steps of this configuration."""
    parts = [setting.partition("=*") for setting in settings]
    return tuple(
        f"{name}={max(1, round(getattr(config, name) * float(times)))}" if is_share else name
        for name, is_share, times in parts
    )
