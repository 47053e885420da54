// y = triangle v, for every head of a program. Where q, k and v come from: triangle_forward.cu, triangle_convolved.cu.

// Whether a slot is one of the long row's (side 1), which come last; the last half always are.
DEVICE bool is_long(int warp, int slot) { return slot >= WARPS - 1 || slot >= warp; }

// source.scores_from(queries, keys) puts q and k of the group where it says; source.begin() starts with the first head;
// source.values_of(n, has_next) waits for head n, which then lies there until the next call, and asks for the one after it.
template <class Source>
DEVICE void multiply_triangles(const Lane& of, Source& source, const Decays* decays, Stored out_rows, int heads) {
  const int sides = of.warp < BLOCKS - 1 - of.warp ? 2 : 1;
  const char *q, *k;
  source.scores_from(q, k);
  __syncthreads();
  unsigned scores[SLOTS + 2][4];  // those on the diagonal come last
#pragma unroll 1
  for (int side = 0; side < sides; ++side) {
    const int i = side ? BLOCKS - 1 - of.warp : of.warp;
    const unsigned keys = shared_address(k) + i * BLOCK + of.right;
    unsigned queries[4][4], factor[4];
    float tile[2][4];
    load_rows(queries, shared_address(q) + i * BLOCK + of.left);
    multiply_by_rows(tile, queries, keys);
    as_factor(factor, tile);
#pragma unroll
    for (int e = 0; e < 4; ++e) (side ? scores[SLOTS + 1][e] : scores[SLOTS][e]) = factor[e];
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
      if (is_long(of.warp, slot) != side) continue;
      const int nearest = side ? of.warp : 0;
      multiply_by_rows(tile, queries, keys - (slot + 1 - nearest) * BLOCK);
      as_factor(scores[slot], tile);
    }
  }
  __syncthreads();

  source.begin();
#pragma unroll 1
  for (int n = 0; n < heads; ++n) {
    const char* now = source.values_of(n, n + 1 < heads);
    const Decays* at = decays + n % 2;
#pragma unroll 1
    for (int side = 0; side < sides; ++side) {
      const int i = side ? BLOCKS - 1 - of.warp : of.warp;
      float out[8][4] = {}, tile[2][4];
      unsigned weights[4], own[4], b[4][4];
      load_columns(b, shared_address(now) + i * BLOCK + of.left);
#pragma unroll
      for (int e = 0; e < 4; ++e) own[e] = side ? scores[SLOTS + 1][e] : scores[SLOTS][e];
      const Diagonal<false> diagonal(of, at->decay + i * T, at->source + i * T, at->skip);
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          tile[t][e] = diagonal.empty(t, e) ? 0 : element(own, t, e) * diagonal.decay(t, e);
          if (diagonal.crossed(t, e)) tile[t][e] += diagonal.skips[e % 2];
        }
      as_factor(weights, tile);
      multiply_columns(out, weights, b);
      // slot s is the block j = nearest - s
      const int nearest = side ? BLOCKS - 2 : of.warp - 1;
      const unsigned rows = shared_address(now) + nearest * BLOCK + of.left;
      const float *sends = at->sends + nearest * T + 2 * of.column, *whole = at->reads + nearest * T + T - 1;
      float reads[2] = {at->reads[i * T + of.group], at->reads[i * T + of.group + 8]};
      const auto take = [&](int slot) {
        const float2 low = *(const float2*)(sends - slot * T), high = *(const float2*)(sends - slot * T + 8);
        const float between = whole[-slot * T];
        load_columns(b, rows - slot * BLOCK);
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float send = t ? (e % 2 ? high.y : high.x) : (e % 2 ? low.y : low.x);
            tile[t][e] = element(scores[slot], t, e) * (reads[e / 2] * send);
          }
        reads[0] *= between, reads[1] *= between;
        as_factor(weights, tile);
        multiply_columns(out, weights, b);
      };
#pragma unroll
      for (int slot = 0; slot < WARPS - 1; ++slot)
        if (is_long(of.warp, slot) == side) take(slot);
      if (side == 1) {
#pragma unroll
        for (int slot = WARPS - 1; slot < SLOTS; ++slot) take(slot);
      }
      out_rows.block(i, out);
    }
    out_rows.rows.next();
  }
}
