"""(Cascade) Mask R-CNN as mmdetection behaves, written out in loops and float64: the oracle of our heads.

From reading mmdetection 3.3 and mmcv 2.2 (configs/_base_/models/*mask-rcnn_r50_fpn.py and what they build). Everything
that is sampled at random there is taken whole here. `Weights` are tensors by our names of the parameters.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

STRIDES = (4, 8, 16, 32, 64)
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """One of the two configurations."""

    thresholds: tuple[float, ...]
    deviations: tuple[tuple[float, float, float, float], ...]
    stage_weights: tuple[float, ...]
    low_quality: bool  # match_low_quality of the heads' assigners
    class_agnostic: bool
    proposal_beta: float  # of smooth L1; 0: L1
    box_beta: float
    border: int  # allowed_border of anchors; -1: any


MASK = Kind((0.5,), ((0.1, 0.1, 0.2, 0.2),), (1.0,), True, False, 0.0, 0.0, -1)
CASCADE = Kind(
    (0.5, 0.6, 0.7),
    ((0.1, 0.1, 0.2, 0.2), (0.05, 0.05, 0.1, 0.1), (0.033, 0.033, 0.067, 0.067)),
    (1.0, 0.5, 0.25),
    False,
    True,
    1 / 9,
    1.0,
    0,
)


def absolute(error: float, beta: float) -> float:
    error = abs(error)
    return error - beta / 2 if error >= beta else error * error / (2 * beta)


def iou(first, second) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    both = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return both / max(sum(areas) - both, 1e-6)


def encode(box, target, deviations) -> list[float]:
    width, height = box[2] - box[0], box[3] - box[1]
    moves = [
        ((target[0] + target[2]) - (box[0] + box[2])) / 2 / width,
        ((target[1] + target[3]) - (box[1] + box[3])) / 2 / height,
        math.log((target[2] - target[0]) / width),
        math.log((target[3] - target[1]) / height),
    ]
    return [move / deviation for move, deviation in zip(moves, deviations, strict=True)]


def decode(box, moves, deviations, size) -> list[float]:
    """Inside an image of (height, width)."""
    dx, dy, dw, dh = (float(move) * deviation for move, deviation in zip(moves, deviations, strict=True))
    most = abs(math.log(16 / 1000))
    width, height = box[2] - box[0], box[3] - box[1]
    x, y = (box[0] + box[2]) / 2 + dx * width, (box[1] + box[3]) / 2 + dy * height
    width, height = width * math.exp(min(max(dw, -most), most)), height * math.exp(min(max(dh, -most), most))
    edges = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return [min(max(edge, 0.0), float(size[1 - axis % 2])) for axis, edge in enumerate(edges)]


def assign(boxes, truth, *, positive, negative, lowest, low_quality) -> list[int]:
    """The object of each box, -1 for background, -2 for what is left out."""
    if not len(truth):
        return [-1] * len(boxes)
    overlaps = np.array([[iou(box, own) for box in boxes] for own in truth])
    owners = []
    for column in overlaps.T:
        most = int(column.argmax())
        owners.append(most if column[most] >= positive else -1 if column[most] < negative else -2)
    if low_quality:
        for number, row in enumerate(overlaps):
            if row.max() >= lowest:
                for place in np.flatnonzero(row == row.max()):
                    owners[place] = number
    return owners


def suppress(boxes, scores, threshold: float) -> list[int]:
    """Greedy NMS, highest score first."""
    kept: list[int] = []
    for place in sorted(range(len(boxes)), key=lambda place: -scores[place]):
        if all(iou(boxes[place], boxes[other]) <= threshold for other in kept):
            kept.append(place)
    return kept


def neck(maps: list[torch.Tensor], weights: Weights) -> list[torch.Tensor]:
    inner = [
        F.conv2d(part, weights[f"neck.inner_blocks.{n}.0.weight"], weights[f"neck.inner_blocks.{n}.0.bias"])
        for n, part in enumerate(maps)
    ]
    for level in (2, 1, 0):
        inner[level] = inner[level] + F.interpolate(inner[level + 1], size=inner[level].shape[-2:], mode="nearest")
    outer = [
        F.conv2d(part, weights[f"neck.layer_blocks.{n}.0.weight"], weights[f"neck.layer_blocks.{n}.0.bias"], padding=1)
        for n, part in enumerate(inner)
    ]
    return [*outer, outer[-1][:, :, ::2, ::2]]


@dataclass(frozen=True)
class Anchor:
    box: tuple[float, float, float, float]
    level: int
    row: int
    column: int
    score: float
    moves: tuple[float, ...]


def anchors_of(levels: list[torch.Tensor], weights: Weights, image: int) -> list[Anchor]:
    """Every anchor of an image with what the network says of it."""
    found = []
    name = "proposals.head"
    for number, (part, stride) in enumerate(zip(levels, STRIDES, strict=True)):
        hidden = F.conv2d(part, weights[f"{name}.conv.0.0.weight"], weights[f"{name}.conv.0.0.bias"], padding=1).relu()
        scores = F.conv2d(hidden, weights[f"{name}.cls_logits.weight"], weights[f"{name}.cls_logits.bias"])[image]
        moves = F.conv2d(hidden, weights[f"{name}.bbox_pred.weight"], weights[f"{name}.bbox_pred.bias"])[image]
        for row in range(part.shape[2]):
            for column in range(part.shape[3]):
                for place, ratio in enumerate((0.5, 1.0, 2.0)):
                    width, height = 8 * stride / math.sqrt(ratio), 8 * stride * math.sqrt(ratio)
                    x, y = column * stride, row * stride
                    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
                    four = tuple(moves[4 * place : 4 * place + 4, row, column].tolist())
                    found.append(Anchor(box, number, row, column, float(scores[place, row, column]), four))
    return found


def proposal_losses(every: list[list[Anchor]], sizes, truths, kind: Kind) -> tuple[float, float]:
    classify = correct = number = 0.0
    for anchors, size, truth in zip(every, sizes, truths, strict=True):
        padded = [math.ceil(side / 32) * 32 for side in size]
        learnt = []
        for anchor in anchors:
            stride = STRIDES[anchor.level]
            valid = anchor.row < math.ceil(padded[0] / stride) and anchor.column < math.ceil(padded[1] / stride)
            left, top, right, bottom = anchor.box
            if kind.border >= 0:
                valid &= left >= 0 and top >= 0 and right < size[1] and bottom < size[0]
            if valid:
                learnt.append(anchor)
        owners = assign(
            [anchor.box for anchor in learnt], truth, positive=0.7, negative=0.3, lowest=0.3, low_quality=True
        )
        number += max(sum(owner >= 0 for owner in owners), 1) + max(sum(owner == -1 for owner in owners), 1)
        for anchor, owner in zip(learnt, owners, strict=True):
            if owner == -2:
                continue
            classify += math.log1p(math.exp(-anchor.score if owner >= 0 else anchor.score))
            if owner >= 0:
                wanted = encode(anchor.box, truth[owner], (1, 1, 1, 1))
                correct += sum(
                    absolute(move - want, kind.proposal_beta) for move, want in zip(anchor.moves, wanted, strict=True)
                )
    return classify / number, correct / number


def proposals_of(anchors: list[Anchor], size, *, candidates: int, most: int) -> list[list[float]]:
    """The best of each level, decoded, NMS within levels, the best of all."""
    boxes, scores = [], []
    for level in range(len(STRIDES)):
        own = sorted((a for a in anchors if a.level == level), key=lambda anchor: -anchor.score)[:candidates]
        decoded = [decode(anchor.box, anchor.moves, (1, 1, 1, 1), size) for anchor in own]
        solid = [place for place, box in enumerate(decoded) if box[2] > box[0] and box[3] > box[1]]
        decoded, own_scores = [decoded[place] for place in solid], [own[place].score for place in solid]
        kept = suppress(decoded, own_scores, 0.7)
        boxes += [decoded[place] for place in kept]
        scores += [own_scores[place] for place in kept]
    order = sorted(range(len(boxes)), key=lambda place: -scores[place])[:most]
    return [boxes[place] for place in order]


def roi_align(part: np.ndarray, box, scale: float, cells: int) -> np.ndarray:
    """RoIAlign, aligned, with as many samples as needed: of maps (C, h, w), (C, cells, cells)."""
    left, top, right, bottom = (edge * scale - 0.5 for edge in box)
    sides, bins = (bottom - top, right - left), ((bottom - top) / cells, (right - left) / cells)
    counts = [math.ceil(side / cells) for side in sides]
    out = np.zeros((part.shape[0], cells, cells))
    for row in range(cells):
        for column in range(cells):
            for i in range(counts[0]):
                for j in range(counts[1]):
                    y = top + row * bins[0] + (i + 0.5) * bins[0] / counts[0]
                    x = left + column * bins[1] + (j + 0.5) * bins[1] / counts[1]
                    out[:, row, column] += bilinear(part, y, x)
    return out / max(counts[0] * counts[1], 1)


def bilinear(part: np.ndarray, y: float, x: float) -> np.ndarray:
    height, width = part.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(part.shape[0])
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    low, near = int(y), int(x)
    high, far = min(low + 1, height - 1), min(near + 1, width - 1)
    dy, dx = y - low, x - near
    upper = part[:, low, near] * (1 - dx) + part[:, low, far] * dx
    lower = part[:, high, near] * (1 - dx) + part[:, high, far] * dx
    return upper * (1 - dy) + lower * dy


def cut(levels: list[torch.Tensor], image: int, box, cells: int) -> torch.Tensor:
    side = math.sqrt((box[2] - box[0]) * (box[3] - box[1]))
    level = min(max(math.floor(math.log2(side / 56 + 1e-6)), 0), 3)
    return torch.from_numpy(roi_align(levels[level][image].detach().numpy(), box, 1 / STRIDES[level], cells))


def box_head(region: torch.Tensor, weights: Weights, stage: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (K + 1,), background last, and moves (K or 1, 4)."""
    name = f"regions.stages.{stage}.boxes"
    hidden = region.flatten()
    for layer in (1, 3):
        hidden = (weights[f"{name}.hidden.{layer}.weight"] @ hidden + weights[f"{name}.hidden.{layer}.bias"]).relu()
    logits, moves = (
        weights[f"{name}.{part}.weight"] @ hidden + weights[f"{name}.{part}.bias"] for part in ("classify", "correct")
    )
    return logits, moves.reshape(-1, 4)


def mask_head(region: torch.Tensor, weights: Weights, stage: int) -> torch.Tensor:
    """Logits (K, 28, 28)."""
    name, hidden = f"regions.stages.{stage}.masks", region[None]
    for layer in (0, 2, 4, 6):
        key = f"{name}.layers.{layer}"
        hidden = F.conv2d(hidden, weights[f"{key}.weight"], weights[f"{key}.bias"], padding=1).relu()
    key = f"{name}.layers.8"
    hidden = F.conv_transpose2d(hidden, weights[f"{key}.weight"], weights[f"{key}.bias"], stride=2).relu()
    return F.conv2d(hidden, weights[f"{name}.predict.weight"], weights[f"{name}.predict.bias"])[0]


def region_losses(levels, weights: Weights, proposals, sizes, truths, labels, masks, kind: Kind) -> dict[str, float]:
    """All regions are taken. Losses are named as ours are."""
    losses: dict[str, float] = {}
    background = weights["regions.stages.0.boxes.classify.bias"].shape[0] - 1
    for stage, (threshold, deviations, share) in enumerate(
        zip(kind.thresholds, kind.deviations, kind.stage_weights, strict=True)
    ):
        classify = correct = draw = 0.0
        number = num_pixels = 0
        refined: list[list[list[float]]] = []
        for image, (boxes, truth) in enumerate(zip(proposals, truths, strict=True)):
            owners = assign(
                boxes, truth, positive=threshold, negative=threshold, lowest=threshold, low_quality=kind.low_quality
            )
            regions = [(list(own), place, True) for place, own in enumerate(truth)]
            regions += [(box, owner, False) for box, owner in zip(boxes, owners, strict=True)]
            refined.append([])
            for box, owner, is_truth in regions:
                label = labels[image][owner] if owner >= 0 else background
                logits, moves = box_head(cut(levels, image, box, 7), weights, stage)
                number += 1
                classify -= float(logits.log_softmax(0)[label])
                if not is_truth:
                    refined[-1].append(decode(box, moves[0], deviations, sizes[image]))
                if owner < 0:
                    continue
                own = moves[0 if kind.class_agnostic else label].tolist()
                wanted = encode(box, truth[owner], deviations)
                correct += sum(absolute(move - want, kind.box_beta) for move, want in zip(own, wanted, strict=True))
                drawn = mask_head(cut(levels, image, box, 14), weights, stage)[label]
                target = roi_align(masks[image][owner][None].astype(float), box, 1.0, 28)[0] >= 0.5
                draw += float(
                    F.binary_cross_entropy_with_logits(drawn, torch.from_numpy(target).double(), reduction="sum")
                )
                num_pixels += 28 * 28
        suffix = f"_{stage + 1}" if len(kind.thresholds) > 1 else ""
        values = {"classes": classify / number, "boxes": correct / number, "masks": draw / max(num_pixels, 1)}
        losses |= {f"loss_{name}{suffix}": share * value for name, value in values.items()}
        proposals = refined
    return losses


def detections(levels, weights: Weights, proposals, sizes, kind: Kind) -> list[list[tuple]]:
    """(box, score, class, mask of 28 x 28) of each image, highest score first."""
    found = []
    for image, (boxes, size) in enumerate(zip(proposals, sizes, strict=True)):
        entries = []
        for box in boxes:
            every = []
            for stage, deviations in enumerate(kind.deviations):
                logits, moves = box_head(cut(levels, image, box, 7), weights, stage)
                every.append(logits)
                if stage + 1 < len(kind.deviations):
                    box = decode(box, moves[0], deviations, size)
            shares = (sum(every) / len(every)).softmax(0).tolist()[:-1]
            for label, share in enumerate(shares):
                if share > 0.05:
                    own = moves[0 if kind.class_agnostic else label]
                    entries.append((decode(box, own, kind.deviations[-1], size), share, label))
        kept = []
        for label in {entry[2] for entry in entries}:
            own = [entry for entry in entries if entry[2] == label]
            kept += [own[place] for place in suppress([e[0] for e in own], [e[1] for e in own], 0.5)]
        kept = sorted(kept, key=lambda entry: -entry[1])[:100]
        found.append([(*entry, mask_of(levels, weights, image, entry[0], entry[2], kind)) for entry in kept])
    return found


def mask_of(levels, weights: Weights, image: int, box, label: int, kind: Kind) -> torch.Tensor:
    region = cut(levels, image, box, 14)
    drawn = [mask_head(region, weights, stage)[label].sigmoid() for stage in range(len(kind.thresholds))]
    return sum(drawn) / len(drawn)


def pasted(mask: np.ndarray, box, size) -> np.ndarray:
    """Where the mask, bilinear and 0 around, is at least one half, by pixel centres: bool of the image's size."""
    rim = np.pad(mask, 1)[None]
    found = np.zeros(size, dtype=bool)
    for row in range(size[0]):
        for column in range(size[1]):
            y = (row + 0.5 - box[1]) / (box[3] - box[1]) * len(mask) + 0.5
            x = (column + 0.5 - box[0]) / (box[2] - box[0]) * len(mask) + 0.5
            inside = 0 <= y <= len(mask) + 1 and 0 <= x <= len(mask) + 1
            found[row, column] = inside and bilinear(rim, y, x)[0] >= 0.5
    return found
