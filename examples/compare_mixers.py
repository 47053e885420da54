# %% [markdown]
# # Four mixers, one image
#
# Softmax attention, linear attention, a Mamba-2 scan and a convolution, untrained, on one drawn scene: run them, look
# at their matrices, and measure how much two distant groups of tokens can exchange.

# %%
import torch

import mixlab
from mixlab.analysis.blocks import rank_measures
from mixlab.analysis.cost import count_macs, count_parameters, on_meta
from mixlab.data import Shapes

torch.manual_seed(0)
SIZE, CHUNK = 128, 64
STACK = {"dim": 64, "depth": 3, "patch": 8, "image": SIZE}
MODELS = {
    "vit_tiny": {**STACK, "head_dim": 16},
    "linearvit_tiny": {**STACK, "head_dim": 16},
    "dinovim_tiny": {**STACK, "head_dim": 16, "state": 16},
    "gatedconv_tiny": STACK,
}
scene = Shapes(size=SIZE, seed=0).scene(3)

# %% [markdown]
# Every mixing is a linear map. Running it and multiplying by its matrix is the same thing.

# %%
mixings = {}
for name, fields in MODELS.items():
    model = mixlab.create_model(name, **fields).eval()
    with torch.no_grad():
        [(_, mixing)] = model.mixings(model.preprocess(scene.image), layers=[1])
        ran, looked = mixing.apply(), mixing.matrix() @ mixing.values
    error = ((ran - looked).norm() / looked.norm()).item()
    mixings[name] = mixing
    flat = on_meta(name, **fields)
    print(
        f"{name:16} {mixing.num_heads:3d} heads, {count_parameters(flat):7,d} parameters, "
        f"{count_macs(flat, SIZE) / 1e6:5.1f} M MACs, apply() and matrix() differ by {error:.0e}"
    )
    assert error < 1e-5

# %% [markdown]
# What tokens 64 to 127 read from the 64 before them: the rank of that block by five definitions, and its theoretical
# bound. A scan and linear attention pass at most 16 directions, for any size of the block. Softmax attention can pass
# more, but hardly does so untrained: its rows are nearly uniform.

# %%
for name, mixing in mixings.items():
    block = mixing.matrix(slice(0, 1))[0, 0, CHUNK : 2 * CHUNK, :CHUNK].double()
    ranks = rank_measures(torch.linalg.svdvals(block), (CHUNK, CHUNK), tolerance=1e-6)
    bound = mixing.rank_bound(range(CHUNK, 2 * CHUNK), range(CHUNK))
    shown = ", ".join(f"{kind} {value.item():.1f}" for kind, value in ranks.items())
    print(f"{name:16} bound {bound:3d}: {shown}")
    assert ranks["numerical"] <= bound
