// y = triangle v, with q, k and v made on the way: the short convolution of raw rows, which are copied ahead of it.
constexpr int TAPS = 64 * 5;  // numbers of 64 channels: four weights each, then the biases
constexpr int CONVOLVED_BYTES = 2 * BLOCKS * BLOCK + 2 * (int)sizeof(Decays) + WARPS * ROOM + TAPS * (int)sizeof(float);

// 64 channels of raw rows to convolved ones: for every warp a run of tokens, for every lane two channels.
// In place, no warp overwrites what another still has to read.
template <bool IN_PLACE>
DEVICE void convolve(const Lane& of, const float* taps, const char* raw, char* convolved, int length) {
  const int run = (length + 4 * WARPS - 1) / (4 * WARPS) * 4, begin = of.warp * run, end = min(begin + run, length);
  const Taps its_taps((const float4*)taps + 2 * of.lane, taps + 256 + 2 * of.lane);
  raw += begin * ROW + of.lane * 4, convolved += begin * ROW + of.lane * 4;
  float x[2][4];  // the window, a ring
#pragma unroll
  for (int t = 1; t < 4; ++t) {
    const unsigned both = begin > 0 && begin < length ? *(const unsigned*)(raw + (t - 4) * ROW) : 0;
    x[0][t] = low_of(both), x[1][t] = high_of(both);
  }
  if (IN_PLACE) __syncthreads();
#pragma unroll 1
  for (int row = begin; row < end; row += 4) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const unsigned both = *(const unsigned*)(raw + t * ROW);
      float out[2];
      x[0][t] = low_of(both), x[1][t] = high_of(both);
#pragma unroll
      for (int c = 0; c < 2; ++c)
        out[c] = silu_of_half(its_taps.half(c, x[c][(t + 1) % 4], x[c][(t + 2) % 4], x[c][(t + 3) % 4], x[c][t]));
      *(unsigned*)(convolved + t * ROW) = pair(out[0], out[1]);
    }
    raw += 4 * ROW, convolved += 4 * ROW;
  }
}

// The taps of 64 channels: 16 bytes of the weights by each of the first threads, of the biases by the last.
struct CopiedTaps {
  const float4* weights;
  const float* biases;
  DEVICE CopiedTaps(const float4* weights, const float* biases, int channel)
      : weights(weights + channel + threadIdx.x), biases(biases + channel + 4 * ((int)threadIdx.x - THREADS + 16)) {}
  DEVICE void to(float* taps) const {
    if (threadIdx.x < 64) copy_ahead(taps + 4 * threadIdx.x, weights);
    if (threadIdx.x >= THREADS - 16) copy_ahead(taps + 256 + 4 * (threadIdx.x - THREADS + 16), biases);
  }
  DEVICE void next() { weights += 64, biases += 64; }
};

struct Convolved {
  const Lane& of;
  Copied keys, queries, values;                 // raw
  Copied kept_keys, kept_queries, kept_values;  // where they go, if they are kept
  bool keeps, keeps_scores;
  CopiedTaps of_keys, of_queries, of_values;
  CopiedDecays its_decays;
  char *raw, *convolved;
  float* taps;
  Decays* decays;

  DEVICE void scores_from(const char*& q, const char*& k) const {
    keys.to(raw);
    of_keys.to(taps);
    end_group();
    wait_for_groups();
    __syncthreads();
    convolve<false>(of, taps, raw, convolved, keys.length);
    __syncthreads();
    queries.to(raw);
    of_queries.to(taps);
    end_group();
    wait_for_groups();
    __syncthreads();
    convolve<true>(of, taps, raw, raw, queries.length);
    __syncthreads();
    if (keeps_scores) kept_keys.from(convolved), kept_queries.from(raw);
    q = raw, k = convolved;
  }
  DEVICE void ask(int n) const {
    values.to(raw);
    of_values.to(taps);
    its_decays.to(decays + n % 2);
    end_group();
  }
  DEVICE void begin() const { ask(0); }
  DEVICE const char* values_of(int n, bool has_next) {
    wait_for_groups();
    __syncthreads();  // this head is there, and nobody reads the one before any more
    convolve<false>(of, taps, raw, convolved, values.length);
    __syncthreads();
    if (has_next) {
      values.rows.next(), of_values.next(), its_decays.next();
      ask(n + 1);
    }
    if (keeps) {
      kept_values.from(convolved);
      kept_values.rows.next();
    }
    return convolved;
  }
};

// `raw` are rows of [values, keys, queries], weights and biases those of one direction after the other.
// Where q, k and v are null, nothing of them is kept.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
    triangle_convolved(const bf16* raw, const float4* weights, const float* biases, const float* steps,
                       const float* skips, bf16* y, bf16* q, bf16* k, bf16* v, Shape shape, long long plane,
                       Strides of_raw, Strides of_q, Strides of_y) {
  Lane of;
  Program here(shape);
  char *first_half = shared_memory, *second_half = first_half + BLOCKS * BLOCK;
  Decays* decays = (Decays*)(second_half + BLOCKS * BLOCK);
  float* taps = (float*)(decays + 2);
  const char* room = (char*)(taps + TAPS) + of.warp * ROOM;
  clear_ends(first_half, 2, shape.length);
  // Heads of a direction have channels of their own; those of its keys and queries come behind them all.
  const int head = here.first_head - here.group * shape.group_heads, num_channels = 64 * (shape.group_heads + 2);
  weights += here.group * num_channels, biases += here.group * num_channels;
  Convolved source = {of,
                      Copied(raw, of_raw, here, shape.group_heads, shape.length),
                      Copied(raw, of_raw, here, shape.group_heads + 1, shape.length),
                      Copied(raw, of_raw, here, head, shape.length),
                      Copied(k, of_q, here, here.group, shape.length),
                      Copied(q, of_q, here, here.group, shape.length),
                      Copied(v, of_y, here, here.first_head, shape.length),
                      v != nullptr,
                      v != nullptr && head == 0,  // one of the programs that share a group
                      CopiedTaps(weights, biases, 64 * shape.group_heads),
                      CopiedTaps(weights, biases, 64 * shape.group_heads + 64),
                      CopiedTaps(weights, biases, 64 * head),
                      CopiedDecays(steps, plane, skips, shape, here),
                      first_half,
                      second_half,
                      taps,
                      decays};
  const Stored out_rows(of, y, of_y, here, here.first_head, room, shape.length);
  multiply_triangles(of, source, decays, out_rows, shape.heads);
}
