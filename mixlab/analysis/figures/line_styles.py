"""Which colour, dashes and mark each model has, in all charts alike."""

from collections.abc import Mapping
from dataclasses import dataclass

from mixlab.run import base_label

# Okabe and Ito's hues, moved to a contrast of 3:1 on white: distinct with any colour vision.
PALETTE = ("#0072b2", "#cb4b16", "#00805f", "#a64d85", "#a87100", "#3f87b5", "#57606a")
FAMILIES = {
    "attention": "softmax attention",
    "linear_attention": "linear attention",
    "mamba2": "Mamba-2 scan",
    "gated_conv": "gated convolution",
}
_FAMILY_HUES = {"attention": 0, "mamba2": 1, "linear_attention": 2, "gated_conv": 4}
_OTHER_HUES = (3, 5, 6, 0, 1, 2, 4)
_DASHES = ((), (6, 3), (2, 3), (8, 3, 2, 3), (4, 2), (1, 2), (10, 4))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class LineStyle:
    """Of the first seven, every hue has dashes and a mark of its own; beyond, hues repeat with other dashes."""

    number: int

    @property
    def hue(self) -> int:
        return self.number % len(PALETTE)

    @property
    def colour(self) -> str:
        return PALETTE[self.hue]

    @property
    def dashes(self) -> str | tuple[int, tuple[int, ...]]:
        pattern = _DASHES[(self.number + self.number // len(PALETTE)) % len(_DASHES)]
        return (0, pattern) if pattern else "-"

    @property
    def marker(self) -> str:
        return _MARKERS[self.hue]


OTHER = LineStyle(6)
Styles = Mapping[str, LineStyle]


def line_styles(families: Mapping[str, str]) -> dict[str, LineStyle]:
    """One style per label, from the family of each: the first of a family has the family's hue, vit-large that of vit
    with other dashes, and the seeds of one model the same.
    """
    of_name: dict[str, int] = {}
    names = {base_label(label): family for label, family in families.items()}
    parents = {
        name: max((other for other in names if name.startswith(f"{other}-")), key=len, default=None) for name in names
    }
    for name, family in names.items():
        if parents[name] is None:
            free = [hue for hue in _OTHER_HUES if hue not in of_name.values()] or [*_OTHER_HUES]
            own = _FAMILY_HUES.get(family)
            of_name[name] = own if own is not None and own not in of_name.values() else free[0]
    num_variants = dict.fromkeys(of_name, 0)
    for name in names:
        if parents[name] is not None:
            root = next(other for other in num_variants if name.startswith(f"{other}-"))
            num_variants[root] += 1
            of_name[name] = of_name[root] + len(PALETTE) * num_variants[root]
    numbers = of_name | {label: of_name[base_label(label)] for label in families}
    return {label: LineStyle(number) for label, number in numbers.items()}
