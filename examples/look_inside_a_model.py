# %% [markdown]
# # Look inside a model
#
# Which parts of a photograph does one patch read? Attention, Mamba and convolution answer differently. This notebook
# opens three of the trained networks that come with mixlab. Use your own photograph by giving its file in the place of
# `"photo:cat"`, and your own network by `mixlab.create_model("timm/NAME", weights="FILE")`.

# %%
# %pip install --quiet 'mixlab[report]'

# %%
import matplotlib.pyplot as plt
import torch

import mixlab

photo = mixlab.ViewedImages("photo:cat", size=128).together().images  # uint8 (1, 3, 128, 128)
models = {name: mixlab.create_model(f"shipped/{name}").eval() for name in ("vit", "dinovim", "gatedconv")}
for name, model in models.items():
    print(f"{name:10} {model.num_parameters / 1e6:.1f} M parameters, {model.num_layers} layers of {model.family}")

# %% [markdown]
# The step that moves information between patches is a linear map, made from the image. `apply()` runs it, `matrix()`
# writes it out: row *i* says how much token *i* reads of every token. Both are the same map.

# %%
EYE = (0.31, 0.30)  # where the eye is, from the top and from the left, as a share of the side
seen = {}
with torch.no_grad():
    for name, model in models.items():
        pixels = model.preprocess(photo)
        [(layer, mixing)] = model.mixings(pixels, layers=[-1])
        [(_, features)] = model.features(pixels)
        error = (mixing.apply() - mixing.matrix() @ mixing.values).abs().max().item()
        height, width = features.grid
        patches = model.layout.patch_columns(height * width)  # without class token and registers
        matrix = mixing.matrix()[0].abs().mean(0)[patches][:, patches]  # the mean over heads
        chosen = int(EYE[0] * height) * width + int(EYE[1] * width)
        row = matrix[chosen].clone()
        row[chosen] = 0  # what it keeps of itself would outshine the rest
        seen[name] = matrix, row.view(height, width), mixlab.pca_maps(features.patches).colours[0]
        print(f"{name:10} {mixing.num_heads:3d} heads, {len(matrix)} patches; run and look differ by {error:.0e}")

# %% [markdown]
# The patch on the eye, and what it reads: attention anywhere, Mamba along its scan, convolution nearby.

# %%
figure, axes = plt.subplots(1, 4, figsize=(10, 2.7), layout="constrained")
axes[0].imshow(photo[0].permute(1, 2, 0))
axes[0].plot(EYE[1] * 128, EYE[0] * 128, "s", markersize=9, markerfacecolor="none", markeredgecolor="white")
axes[0].set_title("the patch")
for axis, (name, (_, row, _)) in zip(axes[1:], seen.items(), strict=True):
    axis.imshow(row)
    axis.set_title(name)
for axis in axes:
    axis.set_axis_off()
figure

# %% [markdown]
# All rows together are the matrix (above, logarithmic), and the features of the patches have principal components
# (below, as colours): parts that the network finds alike share a colour.

# %%
figure, axes = plt.subplots(2, 3, figsize=(7.5, 5), layout="constrained")
for (above, below), (name, (matrix, _, colours)) in zip(axes.T, seen.items(), strict=True):
    above.imshow((matrix / matrix.max()).clamp(min=1e-4).log10(), cmap="magma")
    below.imshow(colours)
    above.set_title(name)
for axis in axes.flat:
    axis.set_axis_off()
figure

# %% [markdown]
# `mixlab look photo.jpg` opens the same as a page: click any patch.
