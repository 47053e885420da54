"""`mixlab advise`: attention, Mamba or convolution for my task?"""

import re
from typing import Any

from mixlab.commands.answer import Answer
from mixlab.commands.options import Flat
from mixlab.errors import InputError, check_counts


def advise(
    answer: Flat[Answer] = Answer(), *, image: str, patch: int = 16, width: int = 768, autoregressive: bool = False
) -> dict[str, Any]:
    """Is this a long-sequence task? What would each mixer cost?

    Args:
        image: height x width in pixels, such as 800x1280, or one number for a square.
        patch: the side of a patch in pixels.
        width: the width D of the tokens.
        autoregressive: the task generates tokens one after the other (classification does not).
    """
    from mixlab.analysis.cost import give_advice

    answer.check()
    check_counts(patch=patch, width=width)
    height, across = parse_size(image)
    advice = give_advice(height=height, width=across, patch=patch, dim=width, autoregressive=autoregressive)
    rows = [
        (c.mixer, c.mixing_flops / 1e9, c.layer_flops / 1e9, c.growth, c.mixing_bytes / 2**20) for c in advice.costs
    ]
    columns = ("mixer", "mixing GFLOPs", "layer GFLOPs", "growth", "state MiB")
    answer.table(f"One layer of width {width}, one image of {image}, patch {patch}", columns, rows)
    answer.line(advice.answer)
    result = {
        "num_tokens": advice.num_tokens,
        "threshold": advice.threshold,
        "ratio": advice.ratio,
        "length": advice.length,
        "costs": [vars(cost) for cost in advice.costs],
        "answer": advice.answer,
    }
    return answer.emit(result)


def parse_size(text: str) -> tuple[int, int]:
    """Height and width in pixels, from 800x1280, or from one number for a square."""
    size = re.fullmatch(r"([1-9]\d*)(?:[x×]([1-9]\d*))?", text.strip().lower())
    if not size:
        raise InputError(f"image {text!r} is not a size; write it like 224 or 800x1280")
    return int(size[1]), int(size[2] or size[1])
