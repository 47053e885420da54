"""What is seen of an image, in its own shape above all; and networks that take squares only."""

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import mixlab
from mixlab.analysis import viewed_images
from mixlab.analysis.activation_maps import activation_maps
from mixlab.analysis.matrices import draw_matrices
from mixlab.analysis.norms import measure_norms
from mixlab.analysis.viewed_images import ViewedImages
from mixlab.analysis.views import View, common_view, side_multiple
from mixlab.data.masks import MaskedImage
from mixlab.data.source import Source
from mixlab.data.whole import whole_shape
from mixlab.evaluation.target import Target

SHAPES = ((144, 90), (144, 90), (90, 144), (64, 64), (700, 70))  # width and height
SEEN = ((48, 80), (48, 80), (80, 48), (64, 64), (32, 128))  # height and width at 64 px in patches of 8


class Photographs(Source[MaskedImage]):
    """Photographs of several shapes; red is the mask, a disc inside."""

    def __len__(self) -> int:
        return len(SHAPES)

    def name(self, index: int) -> str:
        return f"photo-{index}"

    def load(self, index: int) -> MaskedImage:
        width, height = SHAPES[index]
        across, down = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
        mask = torch.from_numpy((np.hypot(across - 0.2, down) < 0.6).astype(np.uint8))
        noise = np.random.default_rng(index).integers(256, size=(2, height, width), dtype=np.uint8)
        return MaskedImage(torch.cat([255 * mask[None], torch.from_numpy(noise)]), mask, self.name(index))


def tiny(name: str = "vit_tiny", **fields: object) -> Target:
    torch.manual_seed(0)
    size = {} if name.startswith("gatedconv") else {"head_dim": 16}
    backbone = mixlab.create_model(name, **({"dim": 32, "depth": 2, "patch": 8, "image": 64} | size | fields))
    return Target(label=f"{name}-{side_multiple(backbone)}", backbone=backbone.eval(), training="dino", seed=0)


def mixer() -> Target:
    return Target(label="mixer", backbone=mixlab.create_model("timm/mixer_s16_224", img_size=64).eval())


def whole(batch: int = 16, **options: object) -> ViewedImages:
    return ViewedImages(Photographs(), size=64, fit="whole", multiple=8, batch=batch, **options)


@pytest.mark.parametrize(("size", "multiple"), [(64, 8), (64, 16), (80, 8), (192, 8), (224, 14), (224, 16), (224, 32)])
def test_an_image_keeps_its_shape_and_about_the_pixels_of_a_square(size: int, multiple: int) -> None:
    for width, height in [(433, 288), (288, 433), (512, 600), (640, 480), (100, 200), (1, 1), (31, 30), (1000, 700)]:
        found = whole_shape((width, height), size, multiple)
        assert all(side % multiple == 0 and side >= 3 * multiple for side in found)
        ideal = size * (width / height) ** 0.5, size * (height / width) ** 0.5
        if min(ideal) >= 3 * multiple:
            assert max(abs(side - exact) for side, exact in zip(found, ideal, strict=True)) <= multiple / 2
        assert math.prod(found) == pytest.approx(size**2, rel=2 * multiple / size)
        assert whole_shape((height, width), size, multiple) == found[::-1]
    assert whole_shape((123, 123), size, multiple) == (size, size)


def test_the_size_that_results_record_is_the_one_that_was_seen() -> None:
    with pytest.warns(UserWarning, match="77px is not a multiple of 8px: shown at 80px"):
        view = common_view([tiny()], 77, None, "whole")
    seen = ViewedImages([np.zeros((50, 50, 3), np.uint8)], **view)
    assert next(iter(seen)).images.shape[2:] == (80, 80) and seen.choices["image"] == 80


def test_an_image_of_extreme_shape_is_squashed_to_four_by_one_or_three_patches() -> None:
    assert whole_shape((3000, 300), 192, 8) == whole_shape((4, 1), 192, 8) == (384, 96)
    assert whole_shape((300, 3000), 192, 8) == (96, 384)
    assert whole_shape((3000, 300), 192, 32) == (384, 96) and whole_shape((3000, 300), 64, 16) == (80, 48)
    assert View(192, "whole", 8).part_of((3000, 300)) == (0, 0, 1, 1)
    with pytest.raises(ValueError, match="give at least 1"):
        whole_shape((4, 4), 0, 8)
    with pytest.raises(ValueError, match="give it as in multiple=16"):
        View(64, "whole")


def pixels(width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)


def test_a_square_image_is_seen_as_the_middle_square_of_it_is() -> None:
    image = Image.fromarray(pixels(100, 100))
    assert torch.equal(View(64, "whole", 8).of_image(image), View(64, "square").of_image(image))


def test_masks_are_cut_and_scaled_as_images_are() -> None:
    item = Photographs().load(0)
    image = Image.fromarray(item.image[:1].expand(3, -1, -1).permute(1, 2, 0).numpy())
    for view in (View(64, "whole", 8), View(64, "square"), View(64, "crop"), View(64, "squash")):
        seen, mask = view.of_image(image), view.of_mask(item.mask.numpy())
        assert seen.shape[1:] == mask.shape
        assert ((seen[0] > 127) == mask.bool()).float().mean() > 0.98


@pytest.mark.parametrize(("batch", "parts"), [(16, [2, 1, 1, 1]), (2, [2, 1, 1, 1]), (1, [1, 1, 1, 1, 1])])
def test_images_in_their_own_shapes_come_in_batches_of_neighbours_of_one_shape(batch: int, parts: list[int]) -> None:
    images = whole(batch)
    assert [len(part.names) for part in images] == parts and images.num_read == 5
    assert [len(part.names) for part in images] == parts  # as they were kept
    seen = images.one_by_one()
    assert [tuple(image.shape[1:]) for image in seen.images] == [*SEEN]
    assert [mask.shape for mask in seen.masks or []] == [*SEEN] and seen.names == [f"photo-{n}" for n in range(5)]
    for item, image in zip(map(Photographs().load, range(5)), seen.images, strict=True):
        alone = Image.fromarray(item.image.permute(1, 2, 0).numpy())
        alone = alone.resize(image.shape[:0:-1], Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(image.permute(1, 2, 0), np.asarray(alone))
    with pytest.raises(ValueError, match="images of several shapes are not one batch"):
        images.together()


def test_processes_and_ranks_see_images_of_all_shapes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewed_images, "_BATCHES_PER_WORKER", 1)
    ranks = [list(whole(2, workers=1).batches(rank, 2)) for rank in range(2)]
    found = [name for _, part in sorted([*ranks[0], *ranks[1]], key=lambda pair: pair[0]) for name in part.names]
    assert found == whole().one_by_one().names


def test_networks_in_one_figure_share_the_least_common_multiple() -> None:
    eight, twelve = tiny(), tiny(patch=12, image=96)
    assert [side_multiple(target.backbone) for target in (eight, twelve)] == [8, 12]
    assert common_view([eight, twelve], 96, None, "whole") == {"size": 96, "fit": "whole", "multiple": 24}
    assert common_view([eight, mixer()], 64, "crop", "whole") == {"size": 64, "fit": "crop"}
    with pytest.raises(ValueError, match="at 64 px, vit_tiny-8 and vit_tiny-12 would need sides that are a multiple"):
        common_view([eight, twelve], 64, "whole", "squash")


def test_where_a_network_takes_squares_only_all_are_shown_squares_unless_whole_images_are_asked_for() -> None:
    with pytest.warns(UserWarning, match="^mixer takes squares only: shown with --fit square$"):
        assert common_view([tiny(), mixer()], 64, None, "whole") == {"size": 64, "fit": "square"}
    with pytest.raises(ValueError, match="mixer takes squares only; choose --fit square"):
        common_view([tiny(), mixer()], 64, "whole", "whole")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert common_view([tiny("dinovim_tiny"), tiny("gatedconv_tiny")], 64, None, "whole")["fit"] == "whole"


def test_functions_show_photographs_in_their_own_shape(tmp_path: Path) -> None:
    Image.fromarray(pixels(96, 60)).save(tmp_path / "photo.png")
    found = activation_maps([tiny()], str(tmp_path / "photo.png"))
    assert (found.protocol.fit, found.protocol.multiple) == ("whole", 8)
    assert [one.shape for one in found.maps["vit_tiny-8"]] == [(6, 10)]
    exhibit = draw_matrices([tiny()], str(tmp_path / "photo.png"), patch=(0.99, 0.05))
    assert exhibit.content["models"][0]["patch"] == [5, 0]
    assert exhibit.arrays["image"].shape == (3, 48, 80) and exhibit.arrays["reading_vit_tiny-8"].shape == (6, 10)
    figure = exhibit.pictures[0].draw()
    figure.draw_without_rendering()
    boxes = [ax.get_window_extent() for ax in figure.axes[:3]]
    assert boxes[0].width / boxes[0].height == pytest.approx(80 / 48, rel=0.05)  # the image; the matrix is a square
    assert boxes[2].width / boxes[2].height == pytest.approx(1, rel=0.05)


def test_means_over_patches_of_one_grid_refuse_images_of_several_shapes() -> None:
    with pytest.raises(ValueError, match="ranks are means over matrices of one size; choose fit 'square'"):
        mixlab.measure_ranks(tiny(), whole())
    with pytest.raises(ValueError, match="a mean over images of one shape"):
        measure_norms([tiny()], whole())


def test_maps_of_images_in_several_shapes_are_those_of_each_image_alone() -> None:
    targets = [tiny(), tiny("gatedconv_tiny")]
    result = activation_maps(targets, whole(), map_name="isolation", pca_fit="set")
    for target in targets:
        backbone, maps = target.backbone, result.maps[target.label]
        for image, found, part in zip(result.seen.images, maps, result.components[target.label], strict=True):
            expected: Tensor = mixlab.activation_map(backbone, backbone.preprocess(image), "isolation")[0]
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
            assert part.first.shape == part.foreground.shape == (1, *found.shape)
    assert [len(shares) for shares in result.to_json()["pca"]["explained"].values()] == [1, 1]
