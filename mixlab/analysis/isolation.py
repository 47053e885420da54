"""How far inside the image each patch lies, seen by a network: along patches that look alike to it.

Photographs have their subject inside and background along the border. Think of heat: every patch gets the same, it
flows between patches the better the more alike they are, and leaves the image at the border. What few patches of the
border resemble stays warm. The map is the mean logarithm of the temperatures of all patches like this one, so a part of
the subject that touches the border is as bright as the rest. After absorbing Markov chains for saliency (Jiang et al.,
2013). No token has to summarise the image, so every backbone has it; and unlike a cut or a principal component it has a
sign.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixlab.analysis.patches import check_patches, is_on_border
from mixlab.backbones.room import check_pairs

LEAVING = 0.05  # flow from a patch of the border out of the image, as a share of its flow to all patches
WEAKEST = 1e-4  # flow between patches of other directions: nothing is cut off
ALIKE = 1e-6  # patches whose differences are below this share of their length: there is no inside


@torch.no_grad()
def isolation_maps(patches: Tensor) -> Tensor:
    """Patches (B, h, w, D) -> maps (B, h, w), higher inside; 0 where all patches are alike.

    >>> ground, subject = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    >>> patches = ground.repeat(1, 4, 4, 1)
    >>> patches[:, 1:3, 1:] = subject  # it touches the border
    >>> maps = isolation_maps(patches)[0]
    >>> (maps > maps.mean())[1]
    tensor([False,  True,  True,  True])
    """
    check_patches(patches)
    check_pairs(patches.shape[1] * patches.shape[2], patches.device)
    border = is_on_border(patches.shape[1:3], patches.device).flatten()
    maps = torch.stack([_isolation(image, border) for image in patches.detach().double().flatten(1, 2)])
    return maps.unflatten(1, patches.shape[1:3]).to(patches.dtype)


def _isolation(patches: Tensor, border: Tensor) -> Tensor:
    centred = patches - patches.mean(0)
    if centred.norm() <= ALIKE * patches.norm():
        return patches.new_zeros(len(patches))
    directions = F.normalize(centred, dim=-1)
    flow = (directions @ directions.mT).clamp(min=0).square() + WEAKEST
    away = flow.sum(-1)
    leaving = away * LEAVING * border
    temperatures = torch.linalg.solve((away + leaving).diag() - flow, torch.ones_like(away))
    return (flow @ temperatures.log()) / away
