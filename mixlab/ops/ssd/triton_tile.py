"""What happens inside a tile, forward and backward: no states, no memory."""

# mypy: disallow-untyped-defs=False

import triton
import triton.language as tl


@triton.jit
def weights_of(scores, decay, source, skip, T: tl.constexpr):
    """The tile's matrix (T, T): scores and decay below the diagonal, skip on it."""
    i = tl.arange(0, T)[:, None]
    j = tl.arange(0, T)[None, :]
    weights = tl.where(i >= j, scores * tl.exp2(decay[:, None] - source[None, :]), 0.0)
    return tl.where(i == j, weights + skip, weights)


@triton.jit
def flows_inside(dscores_t, q, k, v, dy, decay, source, skip, T: tl.constexpr, PRECISION: tl.constexpr):
    """Of one head, transposed (j, i): its part added to the gradient of the scores, and its weights; then what each
    token sends, its dy·v, and what it reads.

    The scores again for each head: cheaper than the registers that would keep them. For registers' sake, too, the
    gradient of the scores is added before anything is summed.
    """
    i = tl.arange(0, T)
    diagonal = i[:, None] == i[None, :]
    scores_t = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    dweights_t = tl.dot(v, tl.trans(dy), input_precision=PRECISION)
    decay_t = tl.where(i[:, None] <= i[None, :], tl.exp2(decay[None, :] - source[:, None]), 0.0)
    weights_t = scores_t * decay_t
    dscores_t += dweights_t * decay_t
    flow_t = dweights_t * weights_t
    weights_t = tl.where(diagonal, weights_t + skip, weights_t).to(dy.dtype)
    sent = tl.sum(flow_t, 1)
    same = tl.sum(tl.where(diagonal, dweights_t, 0.0), 1)
    return dscores_t, weights_t, sent, same, tl.sum(flow_t, 0)
