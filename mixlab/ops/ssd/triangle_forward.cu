// y = triangle v, for every head of a program.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
    triangle_forward(const bf16* q, const bf16* k, const bf16* v, const float* steps, const float* skips, bf16* y,
                     Shape shape, long long plane, Strides of_q, Strides of_k, Strides of_v, Strides of_y) {
  Lane of;
  Program here(shape);
  char *first_half = shared_memory, *second_half = first_half + BLOCKS * BLOCK;
  Decays* decays = (Decays*)(second_half + BLOCKS * BLOCK);
  char* room = (char*)(decays + 2) + of.warp * ROOM;
  const int sides = of.warp < BLOCKS - 1 - of.warp ? 2 : 1;

  clear_ends(first_half, 2, shape.length);
  Copied(q, of_q, here, here.group, shape.length).to(first_half);
  Copied(k, of_k, here, here.group, shape.length).to(second_half);
  end_group();
  wait_for_groups();
  __syncthreads();
  unsigned scores[SLOTS + 2][4];  // those on the diagonal come last
#pragma unroll 1
  for (int side = 0; side < sides; ++side) {
    const int i = side ? BLOCKS - 1 - of.warp : of.warp;
    unsigned queries[4][4], factor[4];
    float tile[2][4];
    load_rows(of, queries, first_half + i * BLOCK);
    multiply_by_rows(of, tile, queries, second_half + i * BLOCK);
    as_factor(factor, tile);
#pragma unroll
    for (int e = 0; e < 4; ++e) (side ? scores[SLOTS + 1][e] : scores[SLOTS][e]) = factor[e];
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
      if ((slot < of.warp) != (side == 0)) continue;
      multiply_by_rows(of, tile, queries, second_half + ((side ? BLOCKS - 2 : of.warp - 1) - slot) * BLOCK);
      as_factor(scores[slot], tile);
    }
  }
  __syncthreads();

  Copied sources(v, of_v, here, here.first_head, shape.length);
  CopiedDecays its_decays(steps, plane, skips, shape, here);
  Rows<bf16> out_rows(y, of_y, here, here.first_head);
  sources.to(first_half);
  its_decays.to(decays);
  end_group();
#pragma unroll 1
  for (int n = 0; n < shape.heads; ++n) {
    const char* now = n % 2 ? second_half : first_half;
    const Decays* at = decays + n % 2;
    wait_for_groups();
    __syncthreads();  // this head is there, and nobody reads the one before any more
    if (n + 1 < shape.heads) {
      sources.rows.next(), its_decays.next();
      sources.to(n % 2 ? first_half : second_half);
      its_decays.to(decays + (n + 1) % 2);
      end_group();
    }
#pragma unroll 1
    for (int side = 0; side < sides; ++side) {
      const int i = side ? BLOCKS - 1 - of.warp : of.warp;
      const float* of_rows = &at->decay[i * T + of.group];
      const float* of_columns = &at->source[i * T + 2 * of.column];
      float out[8][4] = {};
      float tile[2][4];
      unsigned weights[4], own[4], b[4][4];
      load_columns(of, b, now + i * BLOCK);
#pragma unroll
      for (int e = 0; e < 4; ++e) own[e] = side ? scores[SLOTS + 1][e] : scores[SLOTS][e];
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          int row = of.group + e / 2 * 8, column = 8 * t + 2 * of.column + e % 2;
          float decay = power_of_2(of_rows[e / 2 * 8] - of_columns[8 * t + e % 2]);
          tile[t][e] = column <= row ? element(own, t, e) * decay : 0;
          if (column == row) tile[t][e] += at->skip;
        }
      as_factor(weights, tile);
      multiply_columns(out, weights, b);
      float reads[2] = {at->reads[i * T + of.group], at->reads[i * T + of.group + 8]};
      const char* rows = now + (i - 1) * BLOCK;
      const float* sends = &at->sends[(i - 1) * T + 2 * of.column];
      const float* whole = &at->reads[(i - 1) * T + T - 1];
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot) {
        if ((slot < of.warp) != (side == 0)) continue;
        load_columns(of, b, rows);
        float2 low = *(const float2*)sends, high = *(const float2*)(sends + 8);
        float between = *whole;
        rows -= BLOCK, sends -= T, whole -= T;
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
      }
      store_rows(of, room, out_rows, i, shape.length, out);
    }
    out_rows.next();
  }
}
