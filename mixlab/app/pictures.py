"""The pictures that visitors may look at: samples, and uploads while there is room."""

import hashlib
import io

from PIL import Image

from mixlab.app.byte_cache import ByteCache
from mixlab.app.laboratory import Laboratory, Picture, Pixels


class UnknownPictureError(LookupError):
    """No such picture, or no longer."""


class PictureStore:
    """Uploads live in memory, by a name made of their content: the same picture always has the same name."""

    def __init__(self, laboratory: Laboratory, *, max_bytes: int) -> None:
        self._samples = {sample.id: sample for sample in laboratory.samples}
        self._uploads: ByteCache[Picture] = ByteCache(max_bytes, size=lambda picture: picture.pixels.nbytes)

    def add(self, pixels: Pixels) -> Picture:
        digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:20]
        picture = Picture(f"upload-{digest}", "your image", pixels)
        self._uploads.put(picture.id, picture)
        return picture

    def find(self, picture_id: str) -> Picture:
        picture = self._samples.get(picture_id) or self._uploads.get(picture_id)
        if picture is None:
            raise UnknownPictureError(
                f"there is no picture {picture_id!r} here; uploads are forgotten when the server stops or needs their "
                "room: upload it again, or choose a sample"
            )
        return picture


def to_png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()
