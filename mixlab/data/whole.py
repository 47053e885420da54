"""A whole image in its own shape: about as many pixels as a square has, and sides that patches cover without a rest."""

from mixlab.errors import InputError

FEWEST = 3  # patches on the shorter side, where a square has that many
LONGEST = 4.0  # times the other side; what is longer is squashed to it, so that all of it stays


def whole_shape(image: tuple[int, int], size: int, multiple: int) -> tuple[int, int]:
    """The (width, height) at which an image of (width, height) is shown: about size x size pixels in all.

    Each side is the nearest multiple, so the image is stretched by at most half a patch a side. Cutting that off
    instead would lose its edges, which the map `isolation` takes for background.
    """
    if size < 1 or multiple < 1:
        raise InputError(f"an image of {size} px in steps of {multiple} px does not exist; give at least 1 of each")
    width, height = image
    longest = max(1.0, min(LONGEST, (size / (FEWEST * multiple)) ** 2))
    stretch = min(max(width / height, 1 / longest), longest) ** 0.5
    return _nearest(size * stretch, multiple), _nearest(size / stretch, multiple)


def _nearest(side: float, multiple: int) -> int:
    return multiple * max(1, round(side / multiple))
