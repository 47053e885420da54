"""The commands that measure the networks of an item: each as a step after what it needs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mixlab.data.imagenet_labels import NUM_TRAIN, NUM_VAL
from mixlab.run.directory import file_name
from mixlab.studies.reproduce.data_sets import SHIFTED
from mixlab.studies.reproduce.dense_sets import COCO_PARTS, IMAGENET_S_PARTS
from mixlab.studies.reproduce.hours import SHIFTED_IMAGES, HoursEstimate, estimate_hours
from mixlab.studies.reproduce.networks import ItemSetting, Network, training_of, training_step
from mixlab.studies.steps import Step, sets

PROBE_EPOCHS = 100
SEGMENT_STEPS, DENSE_BATCH, DETECT_EPOCHS = 160_000, 16, 12
NUM_PICTURES = 6
# Swin in MMDetection and MMSegmentation: images of any size, and shifted windows in the last stage, too.
SWIN = ("model.strict_img_size=false", "model.always_partition=true")
TINY_PROBE = ("--epochs", "1", "--batch", "8", "--num-train", "16", "--num-val", "16")


class Planned(NamedTuple):
    """A step, and its GPU-hours where they can be estimated."""

    step: Step
    hours: HoursEstimate | None = None


def training_steps(setting: ItemSetting, networks: Sequence[Network]) -> Iterator[Planned]:
    for network in networks:
        yield Planned(*training_step(setting, network))


def probe_step(setting: ItemSetting, network: Network, name: str, *options: str) -> Planned:
    """Linear probes; `name` is that of results/NAME.json. The heads "probe" are those that `robust` reads."""
    step = Step(
        f"probe {network.key} {name}",
        f"{network.key}: linear probes ({name})",
        "one linear layer on frozen features, trained with random crops",
        (
            "probe", _target(setting, network), "--data", setting.data["imagenet"], *options, "--name", name,
            *_training(setting, network), *_tiny(setting, *TINY_PROBE), "--run", str(setting.place(network)),
        ),
        setting.place(network) / "results" / f"{name}.json",
        here=(*_workers(setting), *setting.on),
        needs=(f"train {network.key}",),
    )  # fmt: skip
    return Planned(step, _hours(setting, "probe", network, NUM_TRAIN * PROBE_EPOCHS))


def robust_step(setting: ItemSetting, network: Network) -> Planned:
    """The probe "probe" on the sets of Table 4, also of a network that was trained with a classifier."""
    head = setting.place(network) / "probe" / "augmented" / "best_head.safetensors"
    sets = tuple(f"{name}={setting.data[name]}" for name in SHIFTED)
    step = Step(
        f"robust {network.key}",
        f"{network.key}: shifted sets",
        "the probe's accuracy on V2, Sketch, A, R and ReaL",
        ("robust", _target(setting, network), "--data", *sets, *_training(setting, network),
         *_tiny(setting, "--limit", "16"), "--run", str(setting.place(network))),
        setting.place(network) / "results" / f"robust_{file_name(network.key)}.json",
        here=(*_workers(setting), *setting.on, "--head", str(head)),
        needs=(f"probe {network.key} probe",),
    )  # fmt: skip
    return Planned(step, _hours(setting, "forward", network, SHIFTED_IMAGES))


def accuracy_steps(setting: ItemSetting, network: Network) -> Iterator[Planned]:
    """Of released classifiers; training with labels ends with its own."""
    file = setting.file(network)
    if file is None:
        return
    name = f"timm/{network.timm_name}" if network.timm_name else network.model
    step = Step(
        f"accuracy {network.key}",
        f"{network.key}: accuracy of the released classifier",
        "on ImageNet-1k's validation images",
        ("robust", f"{name}={network.key}", "--weights", file, "--training", network.training,
         "--data", f"val={setting.data['imagenet']}/val", *_crop(network), *_tiny(setting, "--limit", "16"),
         "--run", str(setting.place(network))),
        setting.place(network) / "results" / f"robust_{file_name(network.key)}.json",
        here=(*_workers(setting), *setting.on),
    )  # fmt: skip
    yield Planned(step, _hours(setting, "forward", network, NUM_VAL))


def segment_steps(setting: ItemSetting, network: Network, *settings: str, multi: bool = False) -> Iterator[Planned]:
    """UperNet on ADE20K, scored on one scale and, if asked, on several."""
    place = dense_place(setting, network, "ade20k")
    data = ("--data", setting.data["ade20k"])
    step = Step(
        f"segment {network.key}",
        f"{network.key}: UperNet",
        "fine-tuned on ADE20K's training images, scored on its validation images",
        ("segment", *_start(setting, network), *data, *_dense(setting, network, "segment", settings),
         *_training(setting, network), "--run", str(place)),
        place / "results" / "segmentation.json",
        here=setting.on,
        needs=(f"train {network.key}",),
        trains=place,
    )  # fmt: skip
    yield Planned(step, _hours(setting, "segment", network, SEGMENT_STEPS * DENSE_BATCH))
    if multi:
        yield Planned(
            Step(
                f"segment {network.key} multi-scale",
                f"{network.key}: UperNet, several scales",
                "six scales and their mirror images",
                (
                    "segment",
                    str(place),
                    *data,
                    "--evaluate-only",
                    "--inference",
                    "multi",
                    *_tiny(setting, "--num-val", "4"),
                ),
                place / "results" / "segmentation_multi.json",
                here=setting.on,
                needs=(step.name,),
            )
        )


def detect_step(setting: ItemSetting, network: Network, head: str, *settings: str) -> Planned:
    """A detector on COCO; `head` is mask or cascade."""
    place = dense_place(setting, network, "coco")
    title = "Cascade Mask R-CNN" if head == "cascade" else "Mask R-CNN"
    step = Step(
        f"detect {network.key}",
        f"{network.key}: {title}",
        "12 epochs on COCO's training images, scored on its validation images",
        ("detect", *_start(setting, network), "--data", setting.data["coco"], "--head", head,
         *_dense(setting, network, "detect", settings), *_training(setting, network), "--run", str(place)),
        place / "results" / "detection.json",
        here=setting.on,
        needs=(f"train {network.key}",),
        trains=place,
    )  # fmt: skip
    return Planned(step, _hours(setting, "detect", network, DETECT_EPOCHS * COCO_PARTS["train2017"]))


def auc_step(
    setting: ItemSetting, name: str, networks: Sequence[Network], *studies: str, after: tuple[str, ...] = ()
) -> Planned:
    """Binary-AUC on all masks of ImageNet-S, with untrained twins."""
    into = setting.run / name
    step = Step(
        f"auc {name}",
        f"{name}: Binary-AUC by {', '.join(studies)}",
        "do the maps find the foreground? compared with a centre prior and untrained twins",
        ("auc", *(_target(setting, network) for network in networks), "--study", *studies, "--data",
         f"imagenet-s:{setting.data['imagenet-s']}", *_trainings(setting, networks),
         *_tiny(setting, "--num-images", "16"), "--run", str(into)),
        into / "results" / f"auc_{studies[-1]}.json",
        here=setting.on,
        needs=(*(f"train {network.key}" for network in networks), *after),
    )  # fmt: skip
    images = 2 * IMAGENET_S_PARTS["ImageNetS919"]  # twins, too
    hours = [_hours(setting, "forward", network, images) for network in networks]
    known = [one for one in hours if one is not None]
    total = HoursEstimate(sum(one.hours for one in known), "forward passes over 12,419 images, of twins, too")
    return Planned(step, total if known and not setting.is_tiny else None)


def maps_step(setting: ItemSetting, name: str, networks: Sequence[Network], *options: str) -> Planned:
    """Maps and principal components of the same images, side by side; the paper's map unless options say another."""
    into = setting.run / name
    count = "2" if setting.is_tiny else str(NUM_PICTURES)
    options = options if "--map" in options else ("--map", "cosine", *options)
    return Planned(
        Step(
            f"maps {name}",
            f"{name}: maps and principal components",
            "the same images through every network",
            ("maps", *(_target(setting, network) for network in networks), "--data",
             f"imagenet-s:{setting.data['imagenet-s']}", "--num-images", count, "--fit", "squash", *options,
             *_trainings(setting, networks), "--run", str(into)),
            into / "results" / "maps.json",
            here=setting.on,
            needs=tuple(f"train {network.key}" for network in networks),
        )
    )  # fmt: skip


def rank_step(setting: ItemSetting, name: str, networks: Sequence[Network]) -> Planned:
    """Ranks of blocks of C = 256 tokens at 512 px, without the skip connection, as the paper's M has none."""
    into = setting.run / name
    size = ("--image", "128", "--chunk", "64") if setting.is_tiny else ("--image", "512", "--chunk", "256")
    return Planned(
        Step(
            f"rank {name}",
            f"{name}: ranks of mixing matrices",
            "diagonal and off-diagonal blocks, with the bound of theory beside them",
            ("rank", *(_target(setting, network) for network in networks), "--data",
             f"imagenet-s:{setting.data['imagenet-s']}", *size, "--num-images", "1", "--no-skip",
             *_trainings(setting, networks), "--run", str(into)),
            into / "results" / f"rank_{file_name(networks[-1].key)}.json",
            here=setting.on,
            needs=tuple(f"train {network.key}" for network in networks),
        )
    )  # fmt: skip


def dense_place(setting: ItemSetting, network: Network, data: str) -> Path:
    return setting.run / f"{network.key}-{data}"


def _crop(network: Network) -> tuple[str, ...]:
    return () if network.crop_share is None else ("--crop-share", f"{network.crop_share:g}")


def _target(setting: ItemSetting, network: Network) -> str:
    """Its run, whose name is its label."""
    return str(setting.place(network))


def _start(setting: ItemSetting, network: Network) -> tuple[str, ...]:
    """What a dense task starts from: its run; of a network that other fields let take any size, its name and file."""
    file = setting.file(network)
    if file is None or setting.is_tiny or not _is_swin(network):
        return (str(setting.place(network)),)
    return (network.model, "--weights", file)


def _is_swin(network: Network) -> bool:
    return network.model.startswith("timm/swin")


def _training(setting: ItemSetting, network: Network) -> tuple[str, ...]:
    return () if setting.trains(network) else ("--training", network.training)


def _trainings(setting: ItemSetting, networks: Sequence[Network]) -> tuple[str, ...]:
    said = tuple(part for network in networks for part in training_of(setting, network))
    return ("--training", *said) if said else ()


def _dense(setting: ItemSetting, network: Network, task: str, settings: Sequence[str]) -> tuple[str, ...]:
    chosen = tuple(settings)
    recipe: tuple[str, ...] = ()
    if setting.is_tiny:
        family = "mambaout_femto64" if network.family == "mambaout" else "vit_tiny64"
        recipe = ("--recipe", f"{task}_{family}", "--num-val", "4")
        chosen = ("steps=1", "batch=2", "optim.warmup_steps=0")
    elif _is_swin(network):
        chosen = (*chosen, *SWIN)
    return (*recipe, *sets(*chosen))


def _tiny(setting: ItemSetting, *options: str) -> tuple[str, ...]:
    """What keeps a stand-in short on whole data sets."""
    return options if setting.is_tiny else ()


def _workers(setting: ItemSetting) -> tuple[str, ...]:
    return ("--workers", "0") if setting.is_tiny else ()


def _hours(setting: ItemSetting, kind: str, network: Network, images: float) -> HoursEstimate | None:
    return None if setting.is_tiny else estimate_hours(kind, network.model, images)
