"""The two heads of a region: what it is and where exactly, and which of its pixels belong to it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, smooth_l1_loss

REGION = 7  # cells along the side of a region for the box head, Fast R-CNN
MASK_REGION = 14  # for the mask head, whose output is twice that: Mask R-CNN, figure 4


class BoxHead(nn.Module):
    """Two hidden layers, then class scores and box corrections: one box per class, or one for all (`agnostic`)."""

    def __init__(self, channels: int, *, hidden: int, num_classes: int, agnostic: bool) -> None:
        super().__init__()
        self.num_classes, self.num_boxes = num_classes, 1 if agnostic else num_classes
        self.hidden = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * REGION * REGION, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
        )
        self.classify = nn.Linear(hidden, num_classes + 1)
        self.correct = nn.Linear(hidden, 4 * self.num_boxes)
        nn.init.normal_(self.classify.weight, std=0.01)  # Fast R-CNN
        nn.init.normal_(self.correct.weight, std=0.001)
        nn.init.zeros_(self.classify.bias)
        nn.init.zeros_(self.correct.bias)

    def forward(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Regions (R, C, 7, 7) -> scores (R, K + 1), background last, and corrections (R, K or 1, 4)."""
        features = self.hidden(regions)
        corrections = self.correct(features).unflatten(1, (self.num_boxes, 4))
        return at_least_float32(self.classify(features)), at_least_float32(corrections)


class MaskHead(nn.Module):
    """Four convolutions, a doubling of the size, and a mask per class, or one for all (`agnostic`)."""

    def __init__(self, channels: int, *, num_classes: int, agnostic: bool, num_convs: int) -> None:
        super().__init__()
        self.num_masks = 1 if agnostic else num_classes
        layers: list[nn.Module] = []
        for _ in range(num_convs):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.ConvTranspose2d(channels, channels, 2, stride=2), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.predict = nn.Conv2d(channels, self.num_masks, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.predict.weight, std=0.001)  # Mask R-CNN starts undecided

    def forward(self, regions: Tensor) -> Tensor:
        """Regions (R, C, 14, 14) -> mask logits (R, K or 1, 28, 28)."""
        return at_least_float32(self.predict(self.layers(regions)))


def box_losses(scores: Tensor, corrections: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy over R regions; smooth L1 against `targets` (P, 4) of those on objects, over R too (Fast R-CNN)."""
    positive = (labels < scores.shape[1] - 1).nonzero()[:, 0]
    own = pick(corrections[positive], labels[positive])
    number = max(len(labels), 1)
    classify = cross_entropy(scores, labels, reduction="sum") / number
    return classify, smooth_l1_loss(own, targets, reduction="sum") / number


def mask_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of the mask of each region's own class against 0-or-1 targets (P, M, M)."""
    own = pick(logits, labels)
    return binary_cross_entropy_with_logits(own, targets, reduction="sum") / max(targets.numel(), 1)


def pick(per_class: Tensor, classes: Tensor) -> Tensor:
    """Of (R, K or 1, ...), what belongs to each region's class: (R, ...)."""
    column = classes if per_class.shape[1] > 1 else torch.zeros_like(classes)
    return per_class[torch.arange(len(classes), device=classes.device), column]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Boxes need more digits than bfloat16 has."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
