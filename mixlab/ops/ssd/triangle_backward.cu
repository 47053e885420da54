// The gradients of triangle_forward. Transposed: rows are source tokens j, so that a warp sums up dv by itself, and the
// gradient of the scores over all heads in its registers. What flows from j to i, value times gradient, is summed over i
// for `sent` (4 numbers a token: to others and itself, its dy·v, 0, its dy·v) and over j, across warps, for `read`.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
    triangle_backward(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* steps,
                      const float* skips, bf16* dq, bf16* dk, bf16* dv, float* sent, float* read, Shape shape,
                      long long plane, Strides of_q, Strides of_k, Strides of_v, Strides of_dy, Strides of_dq,
                      long long share) {
  Lane of;
  Program here(shape);
  char *first_half = shared_memory, *second_half = first_half + 2 * BLOCKS * BLOCK;  // each v, then dy
  uint4* scores = (uint4*)(second_half + 2 * BLOCKS * BLOCK);  // (warp, slot, lane), as factors; in the end their gradient
  Decays* decays = (Decays*)((char*)scores + SCORES);
  float* partial = (float*)(decays + 2);  // (2, warp, token): what tokens read, by the warp of what they read
  char* room = (char*)(partial + 2 * WARPS * TOKENS) + of.warp * ROOM;
  uint4* own_scores = scores + of.warp * (SLOTS + 2) * 32 + of.lane;
  const int sides = of.warp < BLOCKS - 1 - of.warp ? 2 : 1;

  clear_ends(first_half, 4, shape.length);
  const Copied queries(q, of_q, here, here.group, shape.length), keys(k, of_k, here, here.group, shape.length);
  queries.to(first_half);
  keys.to(second_half);
  end_group();
  wait_for_groups();
  __syncthreads();
#pragma unroll 1
  for (int side = 0; side < sides; ++side) {
    const int j = side ? BLOCKS - 1 - of.warp : of.warp;
    unsigned sources[4][4], factor[4];
    float tile[2][4];
    load_rows(of, sources, second_half + j * BLOCK);
#pragma unroll 1
    for (int i = j; i < BLOCKS; ++i) {
      multiply_by_rows(of, tile, sources, first_half + i * BLOCK);
      as_factor(factor, tile);
      int slot = i == j ? SLOTS + side : side ? i - 1 : i - of.warp - 1;
      own_scores[slot * 32] = make_uint4(factor[0], factor[1], factor[2], factor[3]);
    }
  }
  __syncthreads();

  float dscores[SLOTS + 2][2][4] = {};  // those on the diagonal come last
  const long long first = (long long)here.batch * shape.num_heads + here.first_head;
  Copied values(v, of_v, here, here.first_head, shape.length), gradients(dy, of_dy, here, here.first_head, shape.length);
  CopiedDecays its_decays(steps, plane, skips, shape, here);
  Rows<bf16> dv_rows(dv, of_dy, here, here.first_head);
  values.to(first_half);
  gradients.to(first_half + BLOCKS * BLOCK);
  its_decays.to(decays);
  end_group();
#pragma unroll 1
  for (int n = 0; n <= shape.heads; ++n) {
    char *now = n % 2 ? second_half : first_half, *dnow = now + BLOCKS * BLOCK;
    const Decays* at = decays + n % 2;
    wait_for_groups();
    __syncthreads();  // this head is there, and the one before is done
    if (n > 0) {
      const float* sums = partial + (n - 1) % 2 * WARPS * TOKENS;
      for (int token = threadIdx.x; token < TOKENS; token += THREADS) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += warp <= token / T ? sums[warp * TOKENS + token] : 0;
        read[(first + n - 1) * TOKENS + token] = sum;
      }
      if (n == shape.heads) break;
    }
    if (n + 1 < shape.heads) {
      char* then = n % 2 ? first_half : second_half;
      values.rows.next(), gradients.rows.next(), its_decays.next();
      values.to(then);
      gradients.to(then + BLOCKS * BLOCK);
      its_decays.to(decays + (n + 1) % 2);
      end_group();
    }
#pragma unroll 1
    for (int side = 0; side < sides; ++side) {
      const int j = side ? BLOCKS - 1 - of.warp : of.warp;
      float* sums_of_reads = partial + (n % 2 * WARPS + of.warp) * TOKENS + j * T + place_of_reads(of);
      unsigned sources[4][4], weights[4], b[4][4];
      float dvalues[8][4] = {}, tile[2][4], sums[2] = {}, same[2] = {}, reads[4] = {};
      load_rows(of, sources, now + j * BLOCK);
      const char* rows = dnow + j * BLOCK;
      {  // the block on the diagonal
        multiply_by_rows(of, tile, sources, rows);
        load_columns(of, b, rows);
        const uint4 block = own_scores[(SLOTS + side) * 32];
        const unsigned own[4] = {block.x, block.y, block.z, block.w};
        const float* of_rows = &at->source[j * T + of.group];
        const float* of_columns = &at->decay[j * T + 2 * of.column];
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            int row = of.group + e / 2 * 8, column = 8 * t + 2 * of.column + e % 2;
            float decay = row <= column ? power_of_2(of_columns[8 * t + e % 2] - of_rows[e / 2 * 8]) : 0;
            float weight = element(own, t, e) * decay, flow = tile[t][e] * weight, add = tile[t][e] * decay;
            if (side) dscores[SLOTS + 1][t][e] += add;
            else dscores[SLOTS][t][e] += add;
            sums[e / 2] += flow, reads[2 * t + e % 2] += flow;
            if (row == column) same[e / 2] += tile[t][e], weight += at->skip;
            tile[t][e] = weight;
          }
        as_factor(weights, tile);
        multiply_columns(dvalues, weights, b);
      }
      float sends[2] = {at->sends[j * T + of.group], at->sends[j * T + of.group + 8]};
      const float* of_columns = &at->reads[(j + 1) * T + 2 * of.column];
      const float* whole = &at->reads[(j + 1) * T + T - 1];
      rows += BLOCK;
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot) {
        if ((slot < SLOTS - of.warp) != (side == 0)) continue;
        const uint4 block = own_scores[slot * 32];
        const unsigned own[4] = {block.x, block.y, block.z, block.w};
        const float2 low = *(const float2*)of_columns, high = *(const float2*)(of_columns + 8);
        const float between = *whole;
        multiply_by_rows(of, tile, sources, rows);
        load_columns(of, b, rows);
        note_reads(of, sums_of_reads, reads, side);  // of the block before, while the product is on its way
        rows += BLOCK, of_columns += T, whole += T, sums_of_reads += T;
#pragma unroll
        for (int e = 0; e < 4; ++e) reads[e] = 0;
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            float scale = t ? (e % 2 ? high.y : high.x) : (e % 2 ? low.y : low.x);
            float factor = sends[e / 2] * scale, weight = element(own, t, e) * factor;
            dscores[slot][t][e] += tile[t][e] * factor;
            sums[e / 2] += tile[t][e] * weight, reads[2 * t + e % 2] += tile[t][e] * weight;
            tile[t][e] = weight;
          }
        sends[0] *= between, sends[1] *= between;
        as_factor(weights, tile);
        multiply_columns(dvalues, weights, b);
      }
      note_reads(of, sums_of_reads, reads, side);
      store_rows(of, room, dv_rows, j, shape.length, dvalues);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] += __shfl_xor_sync(~0u, sums[half], 1), same[half] += __shfl_xor_sync(~0u, same[half], 1);
        sums[half] += __shfl_xor_sync(~0u, sums[half], 2), same[half] += __shfl_xor_sync(~0u, same[half], 2);
        float4* to = (float4*)sent + (first + n) * TOKENS + j * T + of.group + 8 * half;
        if (of.column == 0) *to = make_float4(sums[half], same[half], 0, same[half]);
      }
    }
    dv_rows.next();
  }

  // dk = dscores q, and dq = dscoresᵀ k, whose blocks other warps have.
  queries.to(first_half);
  keys.to(second_half);
  end_group();
#pragma unroll
  for (int slot = 0; slot < SLOTS + 2; ++slot) {
    unsigned factor[4];
    as_factor(factor, dscores[slot]);
    own_scores[slot * 32] = make_uint4(factor[0], factor[1], factor[2], factor[3]);
  }
  wait_for_groups();
  __syncthreads();
  const long long of_share = here.first_head % shape.group_heads / shape.heads * share;
  const Rows<bf16> dq_rows(dq + of_share, of_dq, here, here.group), dk_rows(dk + of_share, of_dq, here, here.group);
#pragma unroll 1
  for (int side = 0; side < sides; ++side) {
    const int j = side ? BLOCKS - 1 - of.warp : of.warp;
    float out[8][4] = {};
#pragma unroll 1
    for (int i = j; i < BLOCKS; ++i) {
      uint4 block = own_scores[(i == j ? SLOTS + side : side ? i - 1 : i - of.warp - 1) * 32];
      const unsigned factor[4] = {block.x, block.y, block.z, block.w};
      multiply_rows(of, out, factor, first_half + i * BLOCK);
    }
    store_rows(of, room, dk_rows, j, shape.length, out);
#pragma unroll
    for (int e = 0; e < 32; ++e) out[e / 4][e % 4] = 0;
#pragma unroll 1
    for (int i = 0; i <= j; ++i) {  // now j reads, and i is the source
      int side_of = i >= WARPS, warp = side_of ? BLOCKS - 1 - i : i;
      int slot = i == j ? SLOTS + side_of : side_of ? j - 1 : j - warp - 1;
      uint4 block = scores[(warp * (SLOTS + 2) + slot) * 32 + of.lane];
      const unsigned factor[4] = {transposed(block.x), transposed(block.z), transposed(block.y), transposed(block.w)};
      multiply_rows(of, out, factor, second_half + i * BLOCK);
    }
    store_rows(of, room, dq_rows, j, shape.length, out);
  }
}
