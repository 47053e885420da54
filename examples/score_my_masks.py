# %% [markdown]
# # Score my masks
#
# Does a network find the foreground without ever having seen a mask? Binary-AUC compares its activation map with your
# mask: 0.5 is chance. A blob in the centre of the image and an untrained network score above 0.5, too, so both stand
# beside it.

# %%
# %pip install --quiet 'mixlab[report]'

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import mixlab
from mixlab.data import Shapes

# %% [markdown]
# A folder with `images/` and `masks/` of the same names is all it takes. Here, drawn scenes stand in for your files:
# white is foreground.

# %%
folder = Path(tempfile.mkdtemp()) / "mine"
for part in ("images", "masks"):
    (folder / part).mkdir(parents=True)
for index in range(16):
    scene = Shapes(size=64, seed=1).scene(index)
    Image.fromarray(scene.image.permute(1, 2, 0).numpy()).save(folder / "images" / f"{index:02}.png")
    Image.fromarray(255 * scene.foreground.numpy()).save(folder / "masks" / f"{index:02}.png")
print(sorted(path.name for path in folder.iterdir()), "with 16 files each")

# %% [markdown]
# One line of Python, or `mixlab auc shipped/vit --data mine` in a terminal. A network has several maps: the similarity
# of each patch to the summary (`cosine`), the norm of its features, how much it stands out from the border of the image
# (`isolation`), the mean row of the mixing matrix. Every number comes with its 95 % interval and with all choices that
# could change it.

# %%
scored = mixlab.score_maps([mixlab.load_target("shipped/vit=vit", device="cpu")], str(folder))
for found in scored.measurements:
    if found.metric in ("binary_auc", "centre_prior", "untrained", "above_untrained"):
        interval = f"[{found.low:6.3f}, {found.high:.3f}]"
        print(f"{found['map']:12} {found.metric:16} {found.value:6.3f} {interval}, n = {found.n}")

# %% [markdown]
# If the interval of the difference to the untrained twin contains zero, training has not taught this network where the
# foreground of *your* images is. That is worth knowing before you use its maps.
#
# Four images, their masks, their maps of isolation, and above each map its Binary-AUC:

# %%
model = mixlab.create_model("shipped/vit").eval()
seen = mixlab.ViewedImages(str(folder), size=64, num_images=4, fit="squash").together()
maps = mixlab.activation_map(model, model.preprocess(seen.images), "isolation").detach()
scores = mixlab.binary_auc(maps, seen.masks, ignore=255)
figure, axes = plt.subplots(3, 4, figsize=(7, 5.2), layout="constrained")
for column, image, mask, heat, score in zip(axes.T, seen.images, seen.masks, maps, scores, strict=True):
    for axis, picture in zip(column, (image.permute(1, 2, 0), mask, heat), strict=True):
        axis.imshow(picture)
        axis.set_axis_off()
    column[2].set_title(f"{score.item():.2f}", fontsize=9)
figure
