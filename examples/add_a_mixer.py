# %% [markdown]
# # Add a mixer
#
# An idea for a new way to move information between patches is thirty lines. Here: every token reads the same weighted
# mean of all tokens. Everything in mixlab then works with it: training, probes, ranks, maps, the page.

# %%
# %pip install --quiet 'mixlab[report]'

# %%
from dataclasses import dataclass
from typing import ClassVar

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import mixlab
from mixlab.backbones.zoo import transformer
from mixlab.mixers import ALL, Grid, MixerConfig, Mixing, TokenMixer

# %% [markdown]
# The linear map: how to run it, and how to write it out as a matrix.


# %%
@dataclass
class MeanMixing(Mixing):
    """weights (B, H, L), values (B, H, L, P)."""

    weights: Tensor
    values: Tensor

    def matrix(self, heads: slice = ALL) -> Tensor:  # (B, h, L, L): to look at
        return self.weights[:, heads].unsqueeze(-2).expand(-1, -1, self.values.shape[-2], -1)

    def apply(self) -> Tensor:  # (B, H, L, P): to run
        return (self.weights.unsqueeze(-1) * self.values).sum(-2, keepdim=True).expand_as(self.values)

    def rank_bound(self, rows: range, columns: range) -> int:
        return 1


# %% [markdown]
# The module that makes this map from tokens, and its settings.


# %%
@mixlab.register_mixer
@dataclass(frozen=True, kw_only=True)
class MeanConfig(MixerConfig):
    kind: ClassVar[str] = "mean"
    num_heads: int = 4

    def build(self, dim: int, depth: int) -> "Mean":
        return Mean(self, dim)

    def mixing_macs(self, num_tokens: int, dim: int) -> int:
        return num_tokens * dim


class Mean(TokenMixer):
    def __init__(self, config: MeanConfig, dim: int) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.values, self.score = nn.Linear(dim, dim), nn.Linear(dim, config.num_heads)
        self.out = nn.Linear(dim, dim)

    def prepare(self, x: Tensor, grid: Grid) -> tuple[Mixing, Tensor | None]:
        values = self.values(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return MeanMixing((4 * self.score(x)).softmax(1).mT, values), None

    def merge(self, mixed: Tensor, bypass: Tensor | None) -> Tensor:
        return self.out(mixed.transpose(1, 2).flatten(2))


mixlab.register_family("mean", lambda dim: transformer(dim, MeanConfig()))
print(mixlab.list_models("mean_*"))

# %% [markdown]
# The contract is one line: running the map and multiplying by its matrix is the same.

# %%
torch.manual_seed(0)
model = mixlab.create_model("mean_tiny", dim=64, depth=2, patch=8, image=64).eval()
photo = mixlab.ViewedImages("photo:cat", size=64).together().images
with torch.no_grad():
    [(_, mixing)] = model.mixings(model.preprocess(photo), layers=[-1])
    assert torch.allclose(mixing.apply(), mixing.matrix() @ mixing.values, atol=1e-6)
print("apply() == matrix() @ values")

# %% [markdown]
# Its matrix has equal rows, so its rank is 1: distant patches can tell each other one number per head and channel.

# %%
ranks = mixlab.measure_ranks(model, "shapes:n=1,size=64")
off = [found for found in ranks.measurements if found.metric == "off_diagonal_rank"]
highest = max(found.value for found in off if found["definition"] == "numerical")
print(f"numerical rank of blocks off the diagonal: {highest:.0f}")
figure, axes = plt.subplots(1, mixing.num_heads, figsize=(9, 2.5), layout="constrained")
for head, axis in enumerate(axes):
    axis.imshow(mixing.matrix()[0, head])
    axis.set(title=f"head {head}", xticks=[], yticks=[])
figure

# %% [markdown]
# In a file, the same code works in every command: `mixlab --import my_mixer.py pretrain dino_mean_tiny64 --data shapes
# --run runs/mean`.
