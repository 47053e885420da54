"""The normalised cut of an image into two parts whose patches look alike to a network (Shi and Malik, 2000).

Patches are the nodes of a graph. Two of them are joined by the cosine of their features, or by next to nothing where
that is negative. The best of all ways to part the graph joins the two parts least, beside what joins each to the whole.
Solved for real values instead of yes and no it is an eigenvector, and that is the map. No token has to summarise the
image, so every backbone has it; TokenCut (Wang et al., 2022) finds objects by it in the features of DINO.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.analysis.patches import check_patches, is_on_border
from mixlab.backbones.room import check_pairs

WEAKEST = 1e-5  # what joins patches of other directions: the graph stays in one piece
ALIKE = 1e-9  # an eigenvalue below is rounding: there is nothing to part


@torch.no_grad()
def cut_maps(patches: Tensor) -> Tensor:
    """Patches (B, h, w, D) -> maps (B, h, w) of unit length, lower on the border; 0 where all patches are alike.

    >>> left, right = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> patches = torch.stack([left, right, right, left]).expand(1, 4, 4, 2)  # columns 1 and 2 are an object
    >>> cut_maps(patches)[0, 0] > 0
    tensor([False,  True,  True, False])
    """
    check_patches(patches)
    check_pairs(patches.shape[1] * patches.shape[2], patches.device)
    maps = torch.stack([_cut(image) for image in patches.detach().double().flatten(1, 2)])  # (h w)^2 numbers at a time
    maps = maps.unflatten(1, patches.shape[1:3])
    on_border, everywhere = maps[:, is_on_border(maps.shape[1:], maps.device)].mean(1), maps.mean((1, 2))
    return torch.where((on_border > everywhere)[:, None, None], -maps, maps).to(patches.dtype)


def _cut(patches: Tensor) -> Tensor:
    directions = F.normalize(patches, dim=-1)
    joined = (directions @ directions.mT).clamp(min=WEAKEST)
    scale = joined.sum(-1).rsqrt()
    values, vectors = torch.linalg.eigh(scale[:, None] * joined * scale)  # the last is known: the whole image
    if len(values) < 2 or values[-2] < ALIKE:
        return torch.zeros_like(scale)
    return F.normalize(vectors[:, -2] * scale, dim=0)
