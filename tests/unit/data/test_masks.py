"""Every mask format ends as background, foreground and ignore, and a bad file never stops the good ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixlab.data import MaskSource, Shapes, SkippedImages, TooManyUnreadableError, UnreadableImage, parse_masks
from mixlab.data.mask_formats import mask_format
from mixlab.data.masks import ADE_STUFF, ADE_THINGS, plain_mask, unpaired_note, voc_palette
from tests.photographs import PHOTOGRAPHS, needs_photographs


def save_image(path: Path, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (9, 99, 199)).save(path)


def save_mask(path: Path, values: list[list[int]] | np.ndarray, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.asarray(values, dtype=np.uint16 if mode == "I;16" else np.uint8)
    image = Image.fromarray(array)
    if mode == "P":
        image = image.convert("P")
        image.putpalette(voc_palette().tobytes())
        image.putdata(array.ravel().tolist())
    image.save(path)


def only(source: MaskSource) -> list[list[int]]:
    assert len(source) == 1
    item = source.load(0)
    assert item.image.dtype == item.mask.dtype == torch.uint8 and item.image.shape[1:] == item.mask.shape
    return item.mask.tolist()


def own_folder(root: Path, values: list[list[int]], mode: str = "L") -> str:
    values_array = np.asarray(values)
    save_image(root / "images" / "a b.jpg", (values_array.shape[1], values_array.shape[0]))
    save_mask(root / "masks" / "a b.png", values, mode)
    return str(root)


def test_peoples_own_masks_are_read_by_their_values(tmp_path):
    cases = [
        ([0, 255], "L", [0, 1]), ([0, 1], "L", [0, 1]), ([0, 7], "L", [0, 1]), ([0, 0], "L", [0, 0]),
        ([0, 128, 255], "L", [0, 255, 1]), ([255, 128], "L", [1, 255]), ([0, 1, 2], "P", [0, 1, 1]),
        ([0, 65535], "I;16", [0, 1]), ([0, 32896, 65535], "I;16", [0, 255, 1]), ([0, 300], "I;16", [0, 1]),
        (list(range(0, 256, 5)), "L", [0] * 26 + [1] * 26),
    ]  # fmt: skip
    for values, mode, expected in cases:
        assert only(parse_masks(own_folder(tmp_path, [values], mode))) == [expected], (values, mode)


@pytest.mark.parametrize(("values", "mode"), [([[0, 5, 9]], "L"), ([[0, 5, 255]], "P"), ([[0, 700, 900]], "I;16")])
def test_values_that_could_mean_two_things_are_refused_with_a_way_out(tmp_path, values, mode):
    name = own_folder(tmp_path, values, mode)
    with pytest.raises(UnreadableImage, match=r"foreground=nonzero"):
        parse_masks(name).load(0)
    assert only(parse_masks(f"masks:{name}:foreground=nonzero")) == [[0, 1, 1]]


def test_the_half_rule_cuts_a_soft_mask(tmp_path):
    assert only(parse_masks(f"masks:{own_folder(tmp_path, [[0, 100, 200]])}:foreground=half")) == [[0, 0, 1]]


def test_grey_colour_files_and_cut_outs_are_masks_too():
    grey = np.repeat(np.array([[0, 255]], np.uint8)[..., None], 3, axis=-1)
    assert plain_mask(Image.fromarray(grey)).tolist() == [[0, 1]]
    cut_out = np.full((1, 2, 4), 80, np.uint8)
    cut_out[..., 3] = [0, 255]
    assert plain_mask(Image.fromarray(cut_out)).tolist() == [[0, 1]]
    with pytest.raises(match="colour"):
        plain_mask(Image.fromarray(np.array([[[255, 0, 0], [0, 0, 0]]], np.uint8)))


def test_files_without_a_partner_are_reported_and_the_rest_goes_on(tmp_path):
    name = own_folder(tmp_path, [[0, 255]])
    save_image(tmp_path / "images" / "alone.jpg")
    save_mask(tmp_path / "masks" / "sub" / "lost.png", [[0]])
    source = parse_masks(name)
    assert [Path(path).name for path in source.unpaired] == ["lost.png", "alone.jpg"]
    assert len(source) == 1 and source.load(0).name == "a b.jpg"
    assert "2 files have no counterpart" in unpaired_note(source) and "lost.png" in unpaired_note(source)


def test_what_is_at_a_place_is_decided_by_what_lies_there_and_never_by_trying(tmp_path, monkeypatch):
    monkeypatch.setattr("mixlab.data.coco.read_coco", lambda path: pytest.fail(f"read {path} to find out"))
    save_image(tmp_path / "plain" / "cat" / "a.jpg")
    own_folder(tmp_path / "own", [[0, 255]])
    save_image(tmp_path / "ade" / "images" / "validation" / "a.jpg")
    save_mask(tmp_path / "ade" / "annotations" / "validation" / "a.png", [[1]])
    (tmp_path / "instances.json").write_text("{}")
    expected = {
        "plain": None, "plain/cat/a.jpg": None, "own": "masks", "own/images": None, "own/masks/a b.png": None,
        "instances.json": "coco", "ade": "ade", "nowhere": None,
    }  # fmt: skip
    assert {name: mask_format(str(tmp_path / name)) for name in expected} == expected
    assert [mask_format(name) for name in ("shapes:n=3", "wds:x.tar", "photo", "voc:here", "voc")] == [
        "shapes", None, None, "voc", None,
    ]  # fmt: skip
    (tmp_path / "ade" / "objectInfo9.txt").write_text("Idx\tName\n1\tcat\n2\tdog\n")
    assert mask_format(str(tmp_path / "ade")) is None  # which of its labels are things is not said
    for image in ("plain", "plain/cat/a.jpg"):
        with pytest.raises(ValueError, match="holds no masks in a known layout"):
            parse_masks(str(tmp_path / image))


def test_folders_without_any_pair_are_refused(tmp_path):
    save_image(tmp_path / "images" / "a.jpg")
    save_mask(tmp_path / "masks" / "b.png", [[0]])
    with pytest.raises(FileNotFoundError, match="same name"):
        parse_masks(str(tmp_path))


def test_bad_pairs_are_skipped_and_named(tmp_path):
    name = own_folder(tmp_path, [[0, 255, 0], [0, 0, 0]])
    save_image(tmp_path / "images" / "shape.jpg", (6, 4))
    save_mask(tmp_path / "masks" / "shape.png", np.zeros((9, 3)))
    save_image(tmp_path / "images" / "broken.jpg")
    (tmp_path / "masks" / "broken.png").write_bytes(b"no png")
    save_image(tmp_path / "images" / "cut.jpg", (300, 300))
    save_mask(tmp_path / "masks" / "cut.png", np.random.default_rng(0).integers(0, 2, (300, 300)) * 255)
    whole = (tmp_path / "masks" / "cut.png").read_bytes()
    (tmp_path / "masks" / "cut.png").write_bytes(whole[: len(whole) // 2])
    source = parse_masks(name)
    skipped = SkippedImages(total=len(source), limit=1.0)
    assert [item.name for _, item in source.read(skipped)] == ["a b.jpg"]
    reasons = {Path(path).stem: reason for path, reason in skipped.reasons.items()}
    assert set(reasons) == {"shape", "broken", "cut"} and "3 x 9" in reasons["shape"] and "6 x 4" in reasons["shape"]
    with pytest.raises(TooManyUnreadableError, match="shape"):
        list(source.read(SkippedImages(total=len(source), limit=0.5)))


def test_a_mask_of_another_scale_is_resized_to_its_image(tmp_path):
    save_image(tmp_path / "images" / "a.jpg", (8, 4))
    save_mask(tmp_path / "masks" / "a.png", [[0, 255, 0, 255], [0, 0, 0, 255]])
    assert only(parse_masks(str(tmp_path))) == [[0, 0, 1, 1, 0, 0, 1, 1]] * 2 + [[0, 0, 0, 0, 0, 0, 1, 1]] * 2


def test_a_mask_follows_its_images_rotation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images").mkdir()
    Image.new("RGB", (3, 2)).save(tmp_path / "images" / "a.jpg", exif=exif)
    stored = np.array([[255, 0, 0], [0, 0, 255]], np.uint8)
    save_mask(tmp_path / "masks" / "a.png", stored)
    assert only(parse_masks(str(tmp_path))) == np.rot90(stored // 255, 3).tolist()


def test_imagenet_s_ids_are_decoded_from_two_channels(tmp_path):
    ids = np.array([[0, 1, 919], [1000, 300, 0]])
    colours = np.stack([ids % 256, ids // 256, np.zeros_like(ids)], axis=-1).astype(np.uint8)
    save_image(tmp_path / "validation" / "n01440764" / "x.JPEG", (3, 2))
    (tmp_path / "validation-segmentation" / "n01440764").mkdir(parents=True)
    mask = tmp_path / "validation-segmentation" / "n01440764" / "x.png"
    Image.fromarray(colours).save(mask)
    source = parse_masks(str(tmp_path))
    assert only(source) == [[0, 1, 1], [255, 1, 0]]
    assert source.load(0).name == "n01440764/x.JPEG"
    colours[0, 0] = (1, 4, 0)
    Image.fromarray(colours).save(mask)
    with pytest.raises(UnreadableImage, match="1025"):
        source.load(0)


def test_voc_labels_merge_and_the_border_is_ignored(tmp_path):
    for name in ("1", "2"):
        save_image(tmp_path / "JPEGImages" / f"{name}.jpg", (3, 1))
    values = [[0, 15, 255]]
    save_mask(tmp_path / "SegmentationClass" / "1.png", values, "P")
    source = parse_masks(str(tmp_path))
    assert only(source) == [[0, 1, 255]] and source.unpaired == ()
    Image.fromarray(voc_palette()[np.array(values)]).save(tmp_path / "SegmentationClass" / "1.png")
    assert only(source) == [[0, 1, 255]]
    save_mask(tmp_path / "SegmentationClass" / "1.png", [[0, 21, 255]], "P")
    with pytest.raises(UnreadableImage, match="21"):
        source.load(0)


def test_the_voc_palette_has_its_known_colours():
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 8: (64, 0, 0), 15: (192, 128, 128), 20: (0, 64, 128)}
    known[255] = (224, 224, 192)
    assert {index: tuple(voc_palette()[index].tolist()) for index in known} == known


def test_pet_trimaps_ignore_the_border(tmp_path):
    save_image(tmp_path / "images" / "Abyssinian_1.jpg", (3, 1))
    save_mask(tmp_path / "annotations" / "trimaps" / "Abyssinian_1.png", [[1, 2, 3]])
    save_mask(tmp_path / "annotations" / "trimaps" / "._Abyssinian_1.png", [[1, 2, 3]])  # the archive has these
    source = parse_masks(str(tmp_path))
    assert only(source) == [[1, 0, 255]] and source.unpaired == ()


def test_ade_things_are_foreground_and_unlabelled_pixels_are_ignored(tmp_path):
    save_image(tmp_path / "images" / "validation" / "a.jpg", (4, 1))
    mask = tmp_path / "annotations" / "validation" / "a.png"
    save_mask(mask, [[0, 1, 13, 3]])  # unlabelled, wall, person, sky
    assert only(parse_masks(str(tmp_path))) == [[255, 0, 1, 0]]
    assert only(parse_masks(f"ade:{tmp_path}:things=1+3-3")) == [[255, 1, 0, 1]]
    save_mask(mask, [[0, 1, 151, 3]])
    with pytest.raises(UnreadableImage, match="151"):
        parse_masks(f"ade:{tmp_path}").load(0)
    assert len(ADE_THINGS) == 100 and len(set(ADE_STUFF)) == 50


def test_shapes_have_masks_without_any_file():
    source = parse_masks("shapes:size=32,n=3")
    assert len(source) == 3
    assert torch.equal(source.load(1).mask, Shapes(size=32, num_images=3, split="val").scene(1).foreground)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/place", "does not exist"),
        ("voc:/no/such/place", "voc:DIR"),
        ("shapes:n=x", "whole number"),
        ("masks:{}:foreground=most", "auto, nonzero or half"),
        ("ade:{}:things=a-b", "1-76"),
        ("voc:{}", "SegmentationClass or labels"),
        ("pets:{}:x=1", "no option"),
    ],
)
def test_wrong_names_are_answered_with_a_way_out(tmp_path, name, message):
    own_folder(tmp_path, [[0, 255]])
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        parse_masks(name.format(tmp_path))


@needs_photographs
@pytest.mark.parametrize(
    ("name", "number"),
    [("{}/masks", 685), ("voc:{}/voc", 430), ("{}/coco", 272), ("{}/ade20k_sample", 3),
     ("ade:{}/semantic:things=1-76", 100)],
)  # fmt: skip
def test_real_photographs_with_masks_are_read(name, number):
    source = parse_masks(name.format(PHOTOGRAPHS))
    assert len(source) == number and source.unpaired == ()
    for index in range(0, number, max(1, number // 6)):
        item = source.load(index)
        assert set(item.mask.unique().tolist()) <= {0, 1, 255}
        assert item.image.shape == (3, *item.mask.shape)


@needs_photographs
def test_the_two_spellings_of_the_voc_sample_agree():
    labels, masks = parse_masks(f"voc:{PHOTOGRAPHS}/voc"), parse_masks(f"masks:{PHOTOGRAPHS}/voc")
    for index in range(0, 430, 60):
        assert torch.equal(labels.load(index).mask, masks.load(index).mask)


@needs_photographs
def test_foreground_shares_equal_those_of_the_samples_own_table():
    import csv

    rows = {row["stem"]: row for row in csv.DictReader((PHOTOGRAPHS / "masks" / "index.csv").open())}
    source = parse_masks(f"{PHOTOGRAPHS}/masks")
    for index in range(0, len(source), 97):
        item = source.load(index)
        known = rows[Path(item.name).stem]
        counted = (item.mask != 255).float().mean()
        assert abs(float((item.mask == 1).float().mean()) - float(known["fg_fraction"])) < 0.01 / counted
        assert abs(float((item.mask == 255).float().mean()) - float(known["ignore_fraction"])) < 0.01


@needs_photographs
def test_a_label_set_other_than_ades_must_name_its_things():
    with pytest.raises(ValueError, match="things=1-76"):
        parse_masks(f"{PHOTOGRAPHS}/semantic")


def test_a_coco_file_is_found_beside_its_images(tmp_path):
    save_image(tmp_path / "val2017" / "1.jpg", (4, 3))
    content = {
        "images": [{"id": 1, "file_name": "1.jpg", "height": 3, "width": 4}],
        "annotations": [
            {"image_id": 1, "category_id": 5, "bbox": [0, 0, 2, 2], "segmentation": [[0, 0, 2, 0, 2, 2, 0, 2]]},
            {"image_id": 1, "category_id": 5, "bbox": [0, 0, 4, 3], "iscrowd": 1,
             "segmentation": {"size": [3, 4], "counts": [0, 3, 9]}},
        ],
        "categories": [{"id": 5, "name": "cat"}],
    }  # fmt: skip
    file = tmp_path / "annotations" / "instances_val2017.json"
    file.parent.mkdir()
    file.write_text(json.dumps(content))
    assert only(parse_masks(str(tmp_path))) == [[1, 1, 0, 0], [1, 1, 0, 0], [255, 0, 0, 0]]
    assert only(parse_masks(f"coco:{file}")) == only(parse_masks(str(file)))
