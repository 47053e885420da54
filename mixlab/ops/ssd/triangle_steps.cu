// What tokens sent and read, as triangle_backward leaves it, to the gradients of raw steps, A_log, skip and bias.
// A program takes an image, a warp head after head, a lane every 32nd token; the directions of a head add up in shared
// memory. `sums` (3, images, directions, heads): the gradients of A_log, skip and bias by each image.
constexpr int STEPS_WARPS = 8;
constexpr int LINE = HEADS_OF_ONE | 1;  // numbers from token to token, odd: so that lanes have banks of their own
constexpr int STEPS_BYTES = (2 * LENGTH * LINE * (int)sizeof(float) + 15) / 16 * 16;
constexpr float LOG2_E = 1.4426950408889634f, MIN_LOG2_DECAY = -57.7f;  // as in triton_steps.py

DEVICE float sum_of_warp(float x) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}

extern "C" __global__ void __launch_bounds__(32 * STEPS_WARPS)
    triangle_steps_backward(const float* dt, const float4* sent, const float* read, const bf16* raw, bf16* draw,
                            const float* biases, const float* A_logs, float* sums, long long raw_image,
                            long long raw_token, long long draw_image, long long draw_token) {
  constexpr int TOKENS = (LENGTH + 15) / 16 * 16, CHUNKS = (TOKENS + 31) / 32, HEADS = DIRECTIONS * HEADS_OF_ONE;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, image = blockIdx.y, images = gridDim.y;
  float *raws = (float*)shared_memory, *gradients = raws + LENGTH * LINE;
  raw += image * raw_image, draw += image * draw_image;
  for (int at = threadIdx.x; at < LENGTH * HEADS_OF_ONE; at += 32 * STEPS_WARPS) {
    const int token = at / HEADS_OF_ONE, head = at % HEADS_OF_ONE;
    raws[token * LINE + head] = low_of(raw[token * raw_token + head]);
  }
  __syncthreads();
#pragma unroll 1
  for (int head = warp; head < HEADS_OF_ONE; head += STEPS_WARPS) {
#pragma unroll
    for (int direction = 0; direction < DIRECTIONS; ++direction) {
      const int place = direction * HEADS_OF_ONE + head;
      const long long first = ((long long)image * HEADS + place) * TOKENS;
      const float A = -expf(A_logs[place]), bias = biases[place];
      float after = 0, dA = 0, dskip = 0, dbias = 0;  // `after`: read less sent, of the chunks behind this one
#pragma unroll
      for (int chunk = CHUNKS - 1; chunk >= 0; --chunk) {
        const int i = 32 * chunk + lane;
        float4 its_sent = make_float4(0, 0, 0, 0);
        float flow = 0, step = 1;
        if (i < TOKENS) {
          its_sent = sent[first + i], step = dt[first + i];
          flow = read[first + i] - its_sent.x;
        }
#pragma unroll
        for (int other = 1; other < 32; other *= 2) {
          const float later = __shfl_down_sync(~0u, flow, other);
          if (lane + other < 32) flow += later;
        }
        flow += after, after = __shfl_sync(~0u, flow, 0);
        if (i >= LENGTH) continue;
        const int at = (direction ? LENGTH - 1 - i : i) * LINE + head;
        const float dlog = step * (A * LOG2_E) > MIN_LOG2_DECAY ? flow : 0;  // held there, a decay has no gradient
        const float slope = 1 / (1 + expf(-raws[at] - bias)), gradient = (its_sent.x / step + dlog * A) * slope;
        gradients[at] = direction ? gradients[at] + gradient : gradient;
        dA += dlog * step * A, dskip += its_sent.y, dbias += gradient;
      }
      __syncwarp();  // the other direction has other tokens
      dA = sum_of_warp(dA), dskip = sum_of_warp(dskip), dbias = sum_of_warp(dbias);
      if (lane == 0) {
        float* to = sums + image * HEADS + place;
        to[0] = dA, to[images * HEADS] = dskip, to[2 * images * HEADS] = dbias;
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < LENGTH * HEADS_OF_ONE; at += 32 * STEPS_WARPS) {
    const int token = at / HEADS_OF_ONE, head = at % HEADS_OF_ONE;
    draw[token * draw_token + head] = (bf16)pair(gradients[token * LINE + head], 0);
  }
}
