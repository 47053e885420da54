"""A small labelled folder and a folder with masks, drawn."""

from pathlib import Path

from PIL import Image

from mixlab.data.decode import to_pil
from mixlab.data.shapes import Shapes

NUM_MASKS = 8


def draw_folders(root: Path) -> tuple[Path, Path]:
    """ROOT/photos with train/ and val/ of three classes, and ROOT/masked with images/ and masks/."""
    shapes = Shapes(size=48, num_images=150, seed=3, split="train")
    drawn: dict[str, list[int]] = {}
    for index in range(len(shapes)):
        drawn.setdefault(shapes.classes[shapes.label(index)], []).append(index)
    for name in sorted(drawn, key=lambda name: -len(drawn[name]))[:3]:
        for number, index in enumerate(drawn[name]):
            part = "val" if number % 4 == 0 else "train"
            save(to_pil(shapes.scene(index).image), root / "photos" / part / name / f"{index}.png")
    for index in range(NUM_MASKS):
        scene = shapes.scene(index)
        mask = (scene.foreground.numpy() == 1).astype("uint8") * 255
        save(to_pil(scene.image), root / "masked" / "images" / f"{index}.png")
        save(Image.fromarray(mask), root / "masked" / "masks" / f"{index}.png")
    return root / "photos", root / "masked"


def save(picture: Image.Image, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    picture.save(place)
