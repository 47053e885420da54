# %% [markdown]
# # Pretrain on my folder
#
# DINO learns from photographs without labels: a student network sees crops of an image and learns to predict what its
# own moving average, the teacher, makes of other crops. All it needs is a folder of images.

# %%
# %pip install --quiet 'mixlab[report]'

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import mixlab
from mixlab.data import Shapes
from mixlab.run import RunDirectory
from mixlab.training.settings import override

# %% [markdown]
# Drawn scenes stand in for your files. Sub-folders are classes; they are used to score features, never to train.

# %%
place = Path(tempfile.mkdtemp())
scenes = Shapes(size=64, seed=1)
for index in range(150):
    scene = scenes.scene(index)
    file = place / "mine" / scenes.classes[scene.label] / f"{index:03}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(scene.image.permute(1, 2, 0).numpy()).save(file)
print(*sorted(path.name for path in (place / "mine").iterdir()))

# %% [markdown]
# A recipe holds every setting, and any can be changed. Here training starts from a network that comes with mixlab and
# takes seconds; leave out `model.name` to start from scratch, and `steps` for a real training. In a terminal: `mixlab
# pretrain dino_vit_tiny64 --data mine --run runs/first`.

# %%
changes = ["model.name=shipped/vit", "steps=4", "batch=8", "optim.lr=1e-4", "optim.warmup_steps=0", "log.every_steps=1",
           "method.frozen_prototype_epochs=0", "knn.every_epochs=0"]  # fmt: skip
config = override(mixlab.find_recipe("dino_vit_tiny64"), changes)
done = mixlab.train(config, data=str(place / "mine"), run=place / "first", device="cpu")
print(f"{done.step} steps; the same call again would resume, or find that all is done")

# %% [markdown]
# A run is a folder: `config.json`, `metrics.jsonl`, checkpoints, and `weights.safetensors`, the backbone. The loss of
# DINO may rise: its target, the teacher, changes with the student. So judge by kNN, beside an untrained network.
# Four steps only show how it is done: what is read here was learnt before, by the network that training started from.

# %%
rows = list(RunDirectory(place / "first").read_metrics())
figure, axis = plt.subplots(figsize=(4.5, 2.6), layout="constrained")
axis.plot(*zip(*[(row["step"], row["loss"]) for row in rows if "loss" in row], strict=True), "o-")
axis.set(xlabel="step", ylabel="DINO's loss")
figure

# %%
trained = mixlab.model_from_file(place / "first" / "weights.safetensors").eval()
for name, model in {"trained": trained, "untrained": trained.twin(0)}.items():
    [found] = mixlab.evaluate_knn(model, str(place / "mine"), mixlab.KnnSettings(k=(10,))).measurements
    print(f"{name:10} kNN {found.value:.2f} [{found.low:.2f}, {found.high:.2f}], n = {found.n}")
