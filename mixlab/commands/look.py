"""`mixlab look`: the page with one's own photographs."""

from typing import Annotated, Any

import tyro

from mixlab.commands.answer import Answer
from mixlab.commands.app import app
from mixlab.commands.options import Device, Flat
from mixlab.errors import InputError


def look(
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE [IMAGE ...]")],
    answer: Flat[Answer] = Answer(),
    *,
    models: tuple[str, ...] = (),
    num_samples: int = 24,
    image: int | None = None,
    port: int = 8765,
    device: Device = "auto",
    open: bool = True,
) -> dict[str, Any]:
    """Open the page with your photographs: what does each patch attend to, in attention, Mamba and convolution?

    Args:
        images: image files, or folders of images.
        models: runs, exported files, zoo models (see `mixlab models`), shipped/NAME or timm/NAME; default: as in
            `mixlab app`.
        num_samples: show at most so many images of each folder, from the first.
        image: image size in pixels; default: each model's own size, or a multiple of it up to 192.
        port: the port to serve on; 0 takes a free one.
        open: open the page in a browser; `--no-open` only prints its address.
    """
    if not images:
        raise InputError("name at least one image file or folder: mixlab look photo.jpg")
    return app(models, answer, data=images, num_samples=num_samples, image=image, port=port, device=device, open=open)
