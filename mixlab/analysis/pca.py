"""Principal components of patch features as pictures: three give colours, where an object probably is.

An object is where the map `isolation` exceeds its mean: that finds more of it (EXPERIMENTS.md) than a threshold of the
first component, as DINOv2 and Dino-Mamba set one.

Signs. A principal component has no sign of its own, so each gets one by rule: the first is negative on the border of
the images (photographs show their subject inside); the others have a positive sum of cubed loadings, a smooth form of
"the largest loading is positive", and so has the first where the border does not decide. The same features give the
same picture on any machine, and noise flips a sign only if the deciding value is as small as the noise.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mixlab.analysis.isolation import isolation_maps
from mixlab.analysis.patches import check_patches, is_on_border
from mixlab.errors import InputError

NUM_COMPONENTS = 4


class PCA(NamedTuple):
    """Directions of the largest variance of features, largest first."""

    mean: Tensor  # (D,)
    directions: Tensor  # (K, D), unit length
    variances: Tensor  # (K,)

    def scores(self, features: Tensor) -> Tensor:
        """Features (..., D) -> their components (..., K), each in standard deviations over the fitted set."""
        spread = self.variances.sqrt()
        components = (features.to(self.mean) - self.mean) @ self.directions.mT
        return torch.where(spread > 0, components / spread, 0)


class PCAMaps(NamedTuple):
    """What Figures 6 and 12 of Dino-Mamba show, for patches (B, h, w, D)."""

    first: Tensor  # (B, h, w): the first component in standard deviations
    foreground: Tensor  # (B, h, w) of bool: where an object probably is
    colours: Tensor  # (B, h, w, 3) in [0, 1]: components 2 to 4 on the foreground, zero elsewhere
    explained: Tensor  # (B, 4) or (1, 4): the share of the variance in each component


def pca_maps(patches: Tensor, *, fit: Literal["image", "set"] = "image", threshold: float | None = None) -> PCAMaps:
    """Principal component maps of patch features (B, h, w, D), fitted to each image or to the whole set.

    The foreground is where `isolation_maps` exceed their mean. With a threshold, it is where the first component
    exceeds so many of its standard deviations: 0 keeps what lies on the foreground side of the mean. Colours are scaled
    to [0, 1] over the foreground of each fit.
    """
    check_patches(patches)  # which cannot be parted unless it has images
    found = pca_of_each(patches.split(1), fit=fit, threshold=threshold)
    first, foreground, colours = (torch.cat(field) for field in zip(*(each[:3] for each in found), strict=True))
    explained = torch.cat([each.explained for each in (found if fit == "image" else found[:1])])
    return PCAMaps(first, foreground, colours, explained)


def pca_of_each(
    patches: Sequence[Tensor], *, fit: Literal["image", "set"] = "image", threshold: float | None = None
) -> list[PCAMaps]:
    """The same of images in shapes of their own: patches (1, h, w, D) of each, fitted to each or to all of them."""
    if fit not in ("image", "set"):
        raise InputError(f'fit is {fit!r}; components are fitted to each "image" or to the whole "set"')
    if threshold is not None and not math.isfinite(threshold):
        raise InputError(f"the threshold is {threshold}; give a number of standard deviations, such as 0")
    for each in patches:
        check_patches(each)
    groups = [[each] for each in patches] if fit == "image" else [patches]
    return [maps for group in groups for maps in _fitted_maps(group, threshold)]


def first_components(patches: Tensor) -> Tensor:
    """The first component alone (B, h, w), fitted to each image: no patch is compared with every other."""
    check_patches(patches)
    return torch.cat([_fit([each])[0].scores(each)[..., 0] for each in patches.split(1)])


def fit_pca(patches: Tensor) -> tuple[PCA, Tensor]:
    """Components of patch features (B, h, w, D) taken together, signs fixed; and the share of variance of each (K,)."""
    return _fit([patches])


def _fit(patches: Sequence[Tensor]) -> tuple[PCA, Tensor]:
    features = torch.cat([each.detach().double().flatten(0, 2) for each in patches])  # (n, D)
    borders = (is_on_border(each.shape[1:3], each.device).expand(each.shape[:3]) for each in patches)
    border = torch.cat([each.flatten() for each in borders])
    mean = features.mean(0)
    centred = features - mean
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    variances = singular.square() / len(features)
    total = variances.sum()
    kept = min(NUM_COMPONENTS, int((singular > singular[0] * 1e-10).sum()))  # beyond: rounding, not features
    variances, directions = variances[:kept], directions[:kept]
    missing = NUM_COMPONENTS - kept
    variances = torch.cat([variances, variances.new_zeros(missing)])
    directions = torch.cat([directions, directions.new_zeros(missing, directions.shape[1])])
    signs = directions.pow(3).sum(-1).sign()
    on_border = (centred @ directions[0])[border].mean()
    if on_border.abs() > 1e-6 * variances[0].sqrt():  # zero up to rounding where every patch lies on the border
        signs[0] = -on_border.sign()
    directions = directions * torch.where(signs == 0, 1, signs)[:, None]
    shares = torch.where(total > 0, variances / total, 0)
    return PCA(mean, directions, variances), shares


def _fitted_maps(patches: Sequence[Tensor], threshold: float | None) -> list[PCAMaps]:
    pca, shares = _fit(patches)
    scores = [pca.scores(each) for each in patches]  # (B, h, w, 4)
    if threshold is None:
        inside = [isolation_maps(each) for each in patches]
        foregrounds = [each > each.mean((1, 2), keepdim=True) for each in inside]
    else:
        foregrounds = [each[..., 0] > threshold for each in scores]
    chosen = torch.cat([each[..., 1:][where] for each, where in zip(scores, foregrounds, strict=True)])
    low, high = chosen.aminmax(dim=0) if len(chosen) else (chosen.new_zeros(3), chosen.new_zeros(3))
    found = []
    for each, where in zip(scores, foregrounds, strict=True):
        scaled = torch.where(high > low, (each[..., 1:] - low) / (high - low), 0.5)
        found.append(PCAMaps(each[..., 0], where, torch.where(where[..., None], scaled, 0), shares[None]))
    return found
