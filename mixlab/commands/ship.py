"""`mixlab ship`: a trained network in few bits, with its card."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mixlab.commands.answer import Answer
from mixlab.commands.export import check_out
from mixlab.commands.options import Device, Flat
from mixlab.errors import InputError


def ship(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    answer: Flat[Answer] = Answer(),
    *,
    out: Path,
    bits: Literal[6, 8, 16] = 16,
    data: str | None = None,
    licence: str | None = None,
    device: Device = "auto",
    force: bool = False,
) -> dict[str, Any]:
    """Write the network of a run to share it: safetensors in 16, 8 or 6 bits, and a model card with its data, recipe,
    seed, and the kNN, probe and Binary-AUC measured in the run.

    Args:
        run: a finished training run, with its results.
        out: the file to write, NAME.safetensors; the model card is written beside it, as NAME.md.
        bits: bits per matrix entry; 8 and 6 use one scale per row.
        data: labelled images to compare the run and the file by kNN; a file that loses more than half a point is
            refused.
        licence: a note on the terms of the training images, for the card.
        force: replace --out if it exists.
    """
    from mixlab.studies.shipping import NO_LICENCE, ship_network

    answer.check()
    if out.suffix != ".safetensors":
        raise InputError(f"--out {out} is not a .safetensors file; name it {out.with_suffix('.safetensors')}")
    for place in (out, out.with_suffix(".md")):
        check_out(place, force=force)
    found = ship_network(run, out, bits=bits, data=data, licence=licence or NO_LICENCE, device=device)
    answer.line(f"{out}: {found['bytes'] / 1e6:.2f} MB in {bits} bits; its card is {found['card']}")
    return answer.emit(found)
