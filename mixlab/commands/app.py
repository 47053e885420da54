"""`mixlab app`: a local page to look inside models, side by side."""

import socket
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
import uvicorn

from mixlab.analysis.subjects import Subject
from mixlab.app import create_app
from mixlab.app.run_facts import run_facts
from mixlab.backbones import shipped
from mixlab.backbones.zoo import create_model
from mixlab.commands.laboratory.laboratory import LiveLaboratory
from mixlab.commands.laboratory.pictures import read_samples
from mixlab.commands.looking import check_counts, load_subjects
from mixlab.commands.output import console, emit
from mixlab.commands.targets import label_of, split_target
from mixlab.errors import InputError
from mixlab.run import RunDirectory
from mixlab.training.distributed import choose_device

DATA = ("photo", "shapes:size=256,n=7")
# Shown where no target is given, at one size: what comes with the package, and an untrained one of the other kinds.
SMALL_IMAGE = 128
STACK = {"dim": 128, "patch": 8, "head_dim": 32, "image": SMALL_IMAGE}
UNTRAINED_MODELS: dict[str, dict[str, Any]] = {
    "linearvit_tiny": {**STACK, "depth": 6},
    "dinovim_tiny": {**STACK, "depth": 12, "state": 32},
}


def app(
    targets: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TARGET ...]")] = (),
    *,
    weights: tuple[str, ...] = (),
    data: tuple[str, ...] = DATA,
    num_samples: int = 8,
    image: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    device: str | None = "auto",
    cache_mb: int = 512,
    open: bool = False,
    seed: int = 0,
    json: str | None = None,
) -> dict[str, Any]:
    """Serve a page on this machine: maps, principal components and mixing matrices of models, side by side.

    Args:
        targets: runs, exported files, names of the zoo, shipped/NAME, or timm/NAME, each with =LABEL if you like;
            without any, the trained networks that come with mixlab, and an untrained one of each other kind.
        weights: weight files for names among the targets, as NAME=FILE.
        data: samples to offer: shapes, folders of images, image files, sets with masks, or photo.
        num_samples: how many samples to offer of each.
        image: the side at which models see pictures, in pixels; without it, what each was made for.
        host: the address to serve on; 127.0.0.1 is reached from this machine only.
        port: the port to serve on; 0 takes a free one.
        device: auto (a GPU where there is one), cpu, cuda or cuda:N.
        cache_mb: memory for features and matrices.
        open: open the page in a browser.
        seed: chooses the weights of untrained models.
        json: also write the address and the models as JSON to this file, or to stdout for "-".
    """
    laboratory = build_laboratory(
        targets,
        weights=weights,
        data=data,
        num_samples=num_samples,
        image=image,
        device=device,
        cache_mb=cache_mb,
        seed=seed,
    )
    listener = bind(host, port)
    name = "localhost" if host == "127.0.0.1" else f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listener.getsockname()[1]}/"
    names = [] if _is_loopback(host) else [host, socket.gethostname()]
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(laboratory, hosts=names), log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
    )
    console.print(f"{len(laboratory.models)} models. The page: {url}   (stop with Ctrl-C)", highlight=False)
    if not _is_loopback(host):
        console.print(f"Anyone who reaches {host} can use this page.", style="yellow")
    result = emit({"url": url, "models": [card.id for card in laboratory.models]}, json)
    if open:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        server.run(sockets=[listener])
    return result


def build_laboratory(
    targets: Sequence[str],
    *,
    weights: Sequence[str] = (),
    data: Sequence[str] = DATA,
    num_samples: int = 8,
    image: int | None = None,
    device: str | None = "auto",
    cache_mb: int = 512,
    seed: int = 0,
) -> LiveLaboratory:
    """The models and samples of a page."""
    check_counts(num_samples=num_samples, cache_mb=cache_mb, image=image)
    files = dict(_name_and_file(text) for text in weights)
    unknown = sorted(set(files) - {split_target(text)[0] for text in targets})
    if unknown:
        raise InputError(f"--weights names {', '.join(unknown)}, which are not among the targets; add them as targets")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        subjects = _named_subjects(targets, files, device, seed) if targets else _small_subjects(device)
    places = {label_of(text): Path(split_target(text)[0]) for text in targets}
    facts = {label: run_facts(RunDirectory(place)) for label, place in places.items() if place.is_dir()}
    image = image if image or targets else SMALL_IMAGE
    samples = read_samples(data, num_samples)
    return LiveLaboratory(subjects, samples, cache_bytes=cache_mb * 2**20, facts=facts, image=image)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says what to do."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OverflowError as error:
        raise InputError(f"port {port} does not exist; give 0 to 65535") from error
    except OSError as error:
        raise OSError(f"cannot serve on {host}, port {port} ({error.strerror}); try --port 0 for a free one") from error


def _named_subjects(targets: Sequence[str], files: dict[str, str], device: str | None, seed: int) -> list[Subject]:
    subjects = [
        subject
        for text in targets
        for subject in load_subjects([text], weights=files.get(split_target(text)[0]), device=device, seed=seed)
    ]
    labels = [subject.label for subject in subjects]
    if len(set(labels)) < len(labels):
        raise InputError(f"two targets share a label among {', '.join(labels)}; write TARGET=LABEL to tell them apart")
    return subjects


def _small_subjects(device: str | None) -> list[Subject]:
    where = choose_device(device)
    untrained = [
        Subject(label=name, backbone=create_model(name, **settings).eval().to(where))
        for name, settings in UNTRAINED_MODELS.items()
    ]
    return [*load_subjects(shipped.NAMES, device=device), *untrained]


def _name_and_file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise InputError(f"--weights {text!r} must be NAME=FILE, such as dinovim_tiny=checkpoint.pth")
    return name, file


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
