"""One step of UperNet against MMSegmentation's behaviour: the same inputs, the same weights."""

import as_mmsegmentation as theirs
import pytest
import torch
from torch import nn

import mixlab
from mixlab.data.crops import normalise
from mixlab.data.dense_batches import MEAN_COLOUR, CropBatch
from mixlab.evaluation.segmentation.recipe import SegmentConfig, SegmentRecipe
from mixlab.training.recipe import BatchPart

SIDE, NUM_CLASSES = 64, 5


@pytest.fixture(scope="module")
def recipe() -> SegmentRecipe:
    torch.manual_seed(0)
    backbone = mixlab.create_model("mambaout_femto", depths=[1, 1, 1, 1], dims=[8, 16, 16, 24])
    config = SegmentConfig(crop=SIDE, channels=12, auxiliary_channels=6, dropout=0.0)
    made = SegmentRecipe(config, backbone, num_classes=NUM_CLASSES)
    made.network.double().train()
    for name, parameter in made.network.named_parameters():
        if parameter.ndim == 1 and not name.startswith("pyramid"):  # norms and biases that matter
            nn.init.normal_(parameter, mean=float("1.weight" in name), std=0.3)
    nn.init.normal_(made.network.classify[1].weight, std=0.3)
    return made


def test_one_step_has_the_losses_of_mmsegmentation(recipe: SegmentRecipe) -> None:
    pixels = torch.randn(3, 3, SIDE, SIDE, dtype=torch.float64)
    labels = torch.randint(0, NUM_CLASSES, (3, SIDE, SIDE))
    labels[torch.rand(labels.shape) < 0.2] = theirs.IGNORE
    labels[0, :20] = theirs.IGNORE
    total, noted = recipe.loss((pixels, labels))

    main, auxiliary = theirs.losses(recipe.network.pyramid(pixels), recipe.network.state_dict(), labels)
    assert float(total.detach()) == pytest.approx(main + auxiliary, abs=1e-5)
    assert float(total.detach()) == pytest.approx(main + auxiliary, rel=1e-9)
    assert 0.4 * float(noted["auxiliary_loss"]) == pytest.approx(auxiliary, rel=1e-9)
    assert auxiliary > 0.1


def test_colours_change_inside_of_an_image_alone(recipe: SegmentRecipe) -> None:
    """MMSegmentation pads after its colour changes: what lies beyond an image is 0 to the backbone."""
    images = torch.randint(0, 256, (2, 3, SIDE, SIDE), dtype=torch.uint8)
    masks = torch.zeros(2, SIDE, SIDE, dtype=torch.uint8)
    images[:, :, 40:], masks[:, 40:] = torch.tensor(MEAN_COLOUR, dtype=torch.uint8)[:, None, None], theirs.IGNORE
    batch = CropBatch(images, masks, torch.arange(2))
    part = BatchPart(step=3, epoch=0, index=0, num_parts=1, seed=0)
    pixels = recipe.pixels(batch, part)
    assert not pixels[:, :, 40:].any() and pixels[:, :, :40].all()
    assert not torch.allclose(pixels.float(), normalise(images.float() / 255), atol=0.01)  # they did change


def test_the_head_starts_as_mmsegmentation_s() -> None:
    torch.manual_seed(0)
    network = SegmentRecipe(SegmentConfig(), mixlab.create_model("mambaout_femto"), num_classes=150).network
    assert float(network.classify[1].weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert not network.auxiliary[1][1].bias.any()
    for step in (network.head.fuse[0], network.head.pooled[0], network.auxiliary[0][0]):
        assert float(step.weight.detach().std()) == pytest.approx((2 / (step.out_channels * 9)) ** 0.5, rel=0.02)
