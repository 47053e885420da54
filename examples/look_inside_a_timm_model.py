# %% [markdown]
# # Look inside a timm model
#
# Any timm model is a backbone here. This one has random weights, so that nothing is downloaded: give `weights=` for
# your own. Its maps are scored against masks, with a blob in the centre of the image as the baseline.

# %%
import torch

import mixlab
from mixlab.analysis.binary_auc import centre_prior
from mixlab.analysis.pca import pca_maps
from mixlab.data import Shapes

torch.manual_seed(0)
model = mixlab.create_model("timm/vit_tiny_patch16_224", depth=4).eval()
scenes = [Shapes(size=224, seed=0).scene(index) for index in range(8)]
images = torch.stack([scene.image for scene in scenes])  # uint8 (B, 3, 224, 224)
masks = torch.stack([scene.foreground for scene in scenes])  # (B, 224, 224)
pixels = model.preprocess(images)

# %% [markdown]
# Features, layer by layer, without hooks: one layer is in memory at a time.

# %%
with torch.no_grad():
    for layer, features in model.features(pixels, layers=2):
        print(f"layer {layer}: summary {tuple(features.summary.shape)}, patches {tuple(features.patches.shape)}")
        patches = features.patches

# %% [markdown]
# Attention as a matrix: which patches does the class token attend to?

# %%
with torch.no_grad():
    [(_, mixing)] = model.mixings(pixels[:1], layers=[-1])
matrix = mixing.matrix()  # (1, 3, 197, 197)
row = matrix[0, :, 0, 1:]  # each head's view of the 196 patches
print(f"heads {mixing.num_heads}, strongest patch of each: {row.argmax(-1).tolist()}")
assert torch.allclose(matrix.sum(-1), torch.ones(1, 3, 197), atol=1e-5)

# %% [markdown]
# Binary-AUC of the map of the class token, and of a centre blob on the same images.

# %%
maps = mixlab.activation_map(model, pixels, "cosine")  # (B, 14, 14)
scores = mixlab.binary_auc(maps, masks)
prior = mixlab.binary_auc(centre_prior(14, 14).expand(len(maps), -1, -1), masks)
print(f"Binary-AUC {scores.mean():.3f}, centre blob {prior.mean():.3f}, n = {len(scores)}")
assert ((scores >= 0.5) & (scores <= 1)).all()

# %% [markdown]
# Principal components of the patches, with fixed signs, so that pictures do not flip.

# %%
components = pca_maps(patches)
print(f"variance in the first four: {[round(share, 2) for share in components.explained[0].tolist()]}")
assert components.colours.shape == (8, 14, 14, 3)
