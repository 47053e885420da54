"""`mixlab app`: a local page to look inside models, side by side."""

import socket
import webbrowser
from contextlib import suppress
from ipaddress import ip_address
from typing import Annotated, Any

import tyro

from mixlab.choices import PAGE_DATA
from mixlab.commands.answer import Answer
from mixlab.commands.options import Device, Flat
from mixlab.commands.output import warn
from mixlab.errors import InputError


def app(
    targets: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TARGET ...]")] = (),
    answer: Flat[Answer] = Answer(),
    *,
    weights: tuple[str, ...] = (),
    data: tuple[str, ...] = PAGE_DATA,
    num_samples: int = 8,
    image: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    device: Device = "auto",
    cache_mb: int = 512,
    open: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Serve a page on this machine: maps, principal components and mixing matrices of several models, side by side.

    Args:
        targets: runs, exported files, zoo models (see `mixlab models`), shipped/NAME or timm/NAME, each with an
            optional =LABEL; default: the trained networks that come with mixlab.
        weights: NAME=FILE, a weight file for the target NAME; FILE::PART chooses a model in it, such as teacher.
        data: images to show: shapes (drawn scenes), photo, image files, folders, or data sets with masks.
        num_samples: number of images from each source.
        image: image size in pixels; default: each model's own size, or a multiple of it up to 192.
        host: the address to serve on; 127.0.0.1 can be reached from this machine only.
        port: the port to serve on; 0 takes a free one.
        cache_mb: cache for features and matrices, in MB.
        open: open the page in a browser.
        seed: seed of the weights of untrained models.
    """
    from mixlab.app import create_app
    from mixlab.app.connections import server_of
    from mixlab.app.laboratory import build_laboratory

    answer.check()
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
    server = server_of(create_app(laboratory, hosts=names))
    count = len(laboratory.models)
    answer.line(f"{count} model{'s' * (count != 1)}. Open {url}   (stop with Ctrl-C)")
    if not _is_loopback(host):
        warn(f"Anyone who can reach {host} can use this page.")
    result = answer.emit({"url": url, "models": [card.id for card in laboratory.models]})
    if open:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        server.run(sockets=[listener])
    return result


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says what to do."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OverflowError as error:
        raise InputError(f"port {port} does not exist; give 0 to 65535") from error
    except OSError as error:
        raise OSError(f"cannot serve on {host}, port {port} ({error.strerror}); try --port 0 for a free one") from error


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
