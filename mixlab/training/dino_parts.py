"""DINO in parts that work alone, in anyone's loop (Caron et al. 2021): head, centre, targets, loss, KoLeo.

    crops = MultiCrop(dino_crops())                                # mixlab.data: 2 global and 8 local views of an image
    images = pack_images(list_of_images)                           # mixlab.data: uint8 (3, H, W) of any sizes
    views = crops(images, crops.draw(images.shapes, generator))    # one (V, B, 3, S, S) per size, the global ones first
    student = head(backbone(views))                                # (V, B, K); the teacher sees the global views alone
    targets = teacher_targets(teacher, centre.mean, temperature=0.04)
    centre.collect(teacher)
    dino_loss(student, targets, temperature=0.1).backward()        # then the optimiser's step
    centre.move(0.9)                                               # and the teacher's weights move to the student's

The loss compares every view of the student with the teacher's targets of each other global view (`ops/view_entropy`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixlab.errors import InputError, check_kind
from mixlab.ops.linear import Linear
from mixlab.ops.view_entropy.op import view_entropy
from mixlab.training.distributed import largest_of_ranks, mean_over_ranks_


class DinoHead(nn.Module):
    """An MLP of three layers to a unit vector, then its cosine with each of K prototypes: a weight-normalised layer
    whose norm is fixed at 1 or, with `norm_last_layer=False`, learned for each prototype. The defaults are the paper's.
    """

    def __init__(
        self,
        *,
        dim: int,
        hidden: int = 2048,
        bottleneck: int = 256,
        num_prototypes: int = 65_536,
        norm_last_layer: bool = True,
    ) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            Linear(dim, hidden), nn.GELU(), Linear(hidden, hidden), nn.GELU(), Linear(hidden, bottleneck)
        )
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.prototypes = nn.Parameter(torch.empty(num_prototypes, bottleneck))
        nn.init.uniform_(self.prototypes, -(bottleneck**-0.5), bottleneck**-0.5)
        # A column, which decays as matrices do: DINO's code leaves out vectors alone.
        self.lengths = None if norm_last_layer else nn.Parameter(torch.ones(num_prototypes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Features (B, D) -> cosines (B, K), times the lengths of the prototypes where those are learned."""
        x = F.normalize(self.mlp(x), dim=-1)
        prototypes = F.normalize(self.prototypes, dim=-1)
        return F.linear(x, prototypes if self.lengths is None else prototypes * self.lengths)

    def last_layer(self) -> list[nn.Parameter]:
        """What is frozen at the start of training."""
        return [self.prototypes, *([] if self.lengths is None else [self.lengths])]


class DinoCentre(nn.Module):
    """The moving mean of the teacher's outputs, over ranks too. `teacher_targets` subtracts it, so that no output can
    win for every image.
    """

    def __init__(self, num_prototypes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_prototypes))
        self.register_buffer("pending", torch.zeros(num_prototypes), persistent=False)
        self.register_buffer("num_pending", torch.zeros(()), persistent=False)
        self.mean: Tensor
        self.pending: Tensor
        self.num_pending: Tensor

    @torch.no_grad()
    def collect(self, teacher: Tensor) -> None:
        """Add the teacher's outputs (T, B, K) of one pass; every pass of a step weighs the same."""
        self.pending += teacher.mean((0, 1), dtype=self.pending.dtype)
        self.num_pending += 1

    @torch.no_grad()
    def move(self, momentum: float) -> Tensor:
        """Move to momentum · mean + (1 - momentum) · (the mean of what was collected since the last move, over ranks).
        Returns how far that is (RMS over outputs).
        """
        mean_over_ranks_(self.pending.div_(self.num_pending))
        change = (self.pending - self.mean).mul_(1 - momentum)
        self.mean += change
        self.pending.zero_()
        self.num_pending.zero_()
        return change.square_().mean().sqrt_()


def dino_loss(student: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """The cross-entropy between the teacher's targets (T, B, K) and the student's logits (V, B, K), as a scalar.

    The first T views of the student are those of the teacher; no view is compared with itself. `temperature` divides
    the student's logits (0.1 in the paper). Only the student gets a gradient.
    """
    for given in (student, targets):
        _check_outputs(given)
    num_views, num_targets = len(student), len(targets)
    if num_views < 2 or num_targets < 1 or num_targets > num_views:
        raise InputError(f"{num_views} views and {num_targets} of the teacher make no pairs; give at least 2 and 1")
    if not temperature > 0:
        raise InputError(f"the temperature is {temperature}; give a number above 0, such as 0.1")
    if student.shape[1:] != targets.shape[1:]:
        shapes = f"student {tuple(student.shape)} and targets {tuple(targets.shape)}"
        raise InputError(f"{shapes} differ in images or outputs; give both networks the same views and heads")
    return view_entropy(student, targets, temperature=temperature)


def teacher_targets(teacher: Tensor, centre: Tensor, *, temperature: float | Tensor) -> Tensor:
    """softmax((teacher - centre) / temperature): outputs (T, B, K) and their centre (K,) -> targets (T, B, K), in the
    centre's precision. The paper's temperature rises from 0.04 to 0.07.
    """
    for given, kind in ((teacher, "outputs (T, B, K)"), (centre, "their centre (K,)")):
        check_kind(given, Tensor, f"give {kind} as a tensor")
    return (teacher.to(centre.dtype) - centre).div_(temperature).softmax(-1)


@torch.no_grad()
def balanced_targets(teacher: Tensor, *, temperature: float | Tensor, rounds: int = 3) -> Tensor:
    """Outputs (T, B, K) -> targets (T, B, K) in which every prototype has the same share of the batch, over all ranks:
    rounds of Sinkhorn's algorithm. SwAV and DINOv2 prevent collapse in this way, instead of by a centre.
    """
    _check_outputs(teacher)
    logits = teacher.to(torch.promote_types(teacher.dtype, torch.float32)) / temperature
    targets = (logits - largest_of_ranks(logits.amax())).exp_()
    for _ in range(rounds):
        shares = mean_over_ranks_(targets.sum((0, 1)))  # (K,)
        targets = targets / shares.clamp_min_(torch.finfo(shares.dtype).tiny)
        targets = targets / targets.sum(-1, keepdim=True)
    return targets


def koleo_loss(features: Tensor) -> Tensor:
    """KoLeo (Sablayrolles et al. 2019): features (V, B, D) -> a scalar that falls as the images of a batch spread out.

    The mean over views and images of -log |u - nearest u|, with u the features as unit vectors. On small sets DINO can
    collapse to one output for all images; this term keeps their features apart.
    """
    _check_outputs(features)
    unit = F.normalize(features, dim=-1, eps=1e-8)
    with torch.no_grad():
        cosines = unit @ unit.mT  # (V, B, B)
        cosines.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
        nearest = cosines.argmax(-1, keepdim=True).expand_as(unit)  # (V, B, D)
    distance = (unit - unit.gather(1, nearest)).norm(dim=-1)
    return -(distance + 1e-8).log().mean()


def _check_outputs(given: Tensor) -> None:
    """Refuse what is not one row of numbers for each view and image."""
    check_kind(given, Tensor, "give the outputs of a head as a tensor (V, B, K)")
    if given.ndim != 3 or not given.is_floating_point():
        raise InputError(f"outputs are {given.dtype} {tuple(given.shape)}; give floats (V, B, K) of V views, B images")
