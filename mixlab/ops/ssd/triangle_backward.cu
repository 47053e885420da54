// The gradients of triangle_forward. Transposed: rows are source tokens j, so that a warp sums up dv by itself, and the
// gradient of the scores over all heads in its registers. What flows from j to i, value times gradient, is summed over i
// for `sent` (4 numbers a token: to others and itself, its dy·v, 0, its dy·v) and over j, across warps, for `read`.
DEVICE int column_of(int j) { return j * BLOCKS - j * (j - 1) / 2; }  // where column j of the triangle begins, in blocks

constexpr int TRIANGLE = BLOCKS * (BLOCKS + 1) / 2 * 512;                                     // bytes, 16 of each lane
constexpr int READS = (BLOCKS * WARPS - WARPS * (WARPS - 1) / 2) * 512;  // likewise: the columns of one side
constexpr int BACKWARD_BYTES = 4 * BLOCKS * BLOCK + TRIANGLE + READS + 2 * (int)sizeof(Decays) + WARPS * ROOM;

// Whether a slot is one of the short column's (side 1), which come last; the first half never are.
DEVICE bool is_short(int warp, int slot) { return slot >= BLOCKS - WARPS && slot >= SLOTS - warp; }

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
    triangle_backward(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* steps,
                      const float* skips, bf16* dq, bf16* dk, bf16* dv, float* sent, float* read, Shape shape,
                      long long plane, Strides of_q, Strides of_k, Strides of_v, Strides of_dy, Strides of_dq,
                      long long share) {
  Lane of;
  Program here(shape);
  char *first_half = shared_memory, *second_half = first_half + 2 * BLOCKS * BLOCK;  // each v, then dy
  uint4* scores = (uint4*)(second_half + 2 * BLOCKS * BLOCK) + of.lane;  // as factors; in the end their gradient
  float4* reads_by_warp = (float4*)((char*)(scores - of.lane) + TRIANGLE) + of.lane;
  Decays* decays = (Decays*)((char*)(reads_by_warp - of.lane) + READS);
  const char* room = (char*)(decays + 2) + of.warp * ROOM;
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
    load_rows(sources, shared_address(second_half) + j * BLOCK + of.left);
#pragma unroll 1
    for (int i = j; i < BLOCKS; ++i) {
      multiply_by_rows(tile, sources, shared_address(first_half) + i * BLOCK + of.right);
      as_factor(factor, tile);
      scores[(column_of(j) + i - j) * 32] = make_uint4(factor[0], factor[1], factor[2], factor[3]);
    }
  }
  __syncthreads();

  float dscores[SLOTS + 2][2][4] = {};  // those on the diagonal come last
  const long long first = (long long)here.batch * shape.num_heads + here.first_head;
  Copied values(v, of_v, here, here.first_head, shape.length), gradients(dy, of_dy, here, here.first_head, shape.length);
  CopiedDecays its_decays(steps, plane, skips, shape, here);
  Stored dv_rows(of, dv, of_dy, here, here.first_head, room, shape.length);
  float4* its_sent = (float4*)sent + first * TOKENS + of.group;
  float* its_read = read + first * TOKENS + place_of_reads(of);
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
    if (n > 0) {  // what tokens of the head before have read
#pragma unroll 1
      for (int i = of.warp; i < BLOCKS; i += WARPS) {
        float sums[4] = {};
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) {
          if (warp > i) continue;
          const float4 more = reads_by_warp[(column_of(warp) + i - warp) * 32];
          sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
        }
        note_reads(of, its_read + i * T, sums);
      }
      its_read += TOKENS;
      if (n == shape.heads) break;
      __syncthreads();
    }
#pragma unroll 1
    for (int side = 0; side < sides; ++side) {
      const int j = side ? BLOCKS - 1 - of.warp : of.warp;
      const int start = side ? 1 : of.warp + 1;  // slot s is the block i = start + s
      if (n + 1 < shape.heads) {  // the next head is copied in two turns: one would fill the queue
        char* then = n % 2 ? first_half : second_half;
        if (side == 0) {
          values.rows.next(), its_decays.next();
          values.to(then);
          its_decays.to(decays + (n + 1) % 2);
        }
        if (side == sides - 1) {
          gradients.rows.next();
          gradients.to(then + BLOCKS * BLOCK);
          end_group();
        }
      }
      const unsigned blocks_of_dy = shared_address(dnow);
      unsigned sources[4][4], weights[4], b[4][4];
      float dvalues[8][4] = {}, tile[2][4], sums[2] = {}, same[2] = {};
      load_rows(sources, shared_address(now) + j * BLOCK + of.left);
      float4* its_reads = reads_by_warp + (column_of(of.warp) - of.warp) * 32;  // by block
      {  // the block on the diagonal
        const uint4 block = scores[column_of(j) * 32];
        const unsigned own[4] = {block.x, block.y, block.z, block.w};
        float4 so_far = make_float4(0, 0, 0, 0);
        if (side) so_far = its_reads[j * 32];
        float reads[4] = {so_far.x, so_far.y, so_far.z, so_far.w};
        multiply_by_rows(tile, sources, blocks_of_dy + j * BLOCK + of.right);
        load_columns(b, blocks_of_dy + j * BLOCK + of.left);
        const Diagonal<true> diagonal(of, at->source + j * T, at->decay + j * T, at->skip);
#pragma unroll
        for (int t = 0; t < 2; ++t)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float dweight = tile[t][e];
            tile[t][e] = 0;
            if (diagonal.empty(t, e)) continue;
            const float decay = diagonal.decay(t, e), weight = element(own, t, e) * decay;
            if (side) dscores[SLOTS + 1][t][e] += dweight * decay;
            else dscores[SLOTS][t][e] += dweight * decay;
            sums[e / 2] += dweight * weight, reads[2 * t + e % 2] += dweight * weight;
            if (diagonal.is_itself(t, e)) same[e / 2] = dweight;
            tile[t][e] = diagonal.crossed(t, e) ? weight + diagonal.skips[e % 2] : weight;
          }
        as_factor(weights, tile);
        multiply_columns(dvalues, weights, b);
        its_reads[j * 32] = make_float4(reads[0], reads[1], reads[2], reads[3]);
      }
      float sends[2] = {at->sends[j * T + of.group], at->sends[j * T + of.group + 8]};
      const uint4* its_scores = scores + (column_of(j) + start - j) * 32;
      const float *scales = at->reads + start * T + 2 * of.column, *whole = at->reads + start * T + T - 1;
      const unsigned right = blocks_of_dy + start * BLOCK + of.right, left = blocks_of_dy + start * BLOCK + of.left;
      its_reads += start * 32;
      const auto take = [&](int slot) {
        const uint4 block = its_scores[slot * 32];
        const unsigned own[4] = {block.x, block.y, block.z, block.w};
        const float2 low = *(const float2*)(scales + slot * T), high = *(const float2*)(scales + slot * T + 8);
        const float between = whole[slot * T];
        float4 so_far = make_float4(0, 0, 0, 0);
        if (side) so_far = its_reads[slot * 32];
        float reads[4] = {so_far.x, so_far.y, so_far.z, so_far.w};
        multiply_by_rows(tile, sources, right + slot * BLOCK);
        load_columns(b, left + slot * BLOCK);
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
        its_reads[slot * 32] = make_float4(reads[0], reads[1], reads[2], reads[3]);
      };
      if (side == 0) {
#pragma unroll
        for (int slot = 0; slot < BLOCKS - WARPS; ++slot) take(slot);
      }
#pragma unroll
      for (int slot = BLOCKS - WARPS; slot < SLOTS; ++slot)
        if (is_short(of.warp, slot) == side) take(slot);
      dv_rows.block(j, dvalues);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] += __shfl_xor_sync(~0u, sums[half], 1), same[half] += __shfl_xor_sync(~0u, same[half], 1);
        sums[half] += __shfl_xor_sync(~0u, sums[half], 2), same[half] += __shfl_xor_sync(~0u, same[half], 2);
        if (of.column == 0) its_sent[j * T + 8 * half] = make_float4(sums[half], same[half], 0, same[half]);
      }
    }
    dv_rows.rows.next();
    its_sent += TOKENS;
  }

  // dk = dscores q, and dq = dscoresᵀ k, whose blocks other warps have.
  queries.to(first_half);
  keys.to(second_half);
  end_group();
#pragma unroll
  for (int slot = 0; slot < SLOTS + 2; ++slot) {
    const int side = slot < SLOTS ? is_short(of.warp, slot) : slot - SLOTS;
    if (side >= sides) continue;
    const int j = side ? BLOCKS - 1 - of.warp : of.warp;
    const int below = slot < SLOTS ? slot + (side ? 1 : of.warp + 1) - j : 0;
    unsigned factor[4];
    as_factor(factor, dscores[slot]);
    scores[(column_of(j) + below) * 32] = make_uint4(factor[0], factor[1], factor[2], factor[3]);
  }
  wait_for_groups();
  __syncthreads();
  const long long of_share = here.first_head % shape.group_heads / shape.heads * share;
  const Stored dq_rows(of, dq + of_share, of_dq, here, here.group, room, shape.length);
  const Stored dk_rows(of, dk + of_share, of_dq, here, here.group, room, shape.length);
#pragma unroll 1
  for (int side = 0; side < sides; ++side) {
    const int j = side ? BLOCKS - 1 - of.warp : of.warp;
    float out[8][4] = {};
#pragma unroll 1
    for (int i = j; i < BLOCKS; ++i) {
      const uint4 block = scores[(column_of(j) + i - j) * 32];
      const unsigned factor[4] = {block.x, block.y, block.z, block.w};
      multiply_rows(out, factor, shared_address(first_half) + i * BLOCK + of.left);
    }
    dk_rows.block(j, out);
#pragma unroll
    for (int e = 0; e < 32; ++e) out[e / 4][e % 4] = 0;
#pragma unroll 1
    for (int i = 0; i <= j; ++i) {  // now j reads, and i is the source
      const uint4 block = scores[(column_of(i) + j - i) * 32];
      const unsigned factor[4] = {transposed(block.x), transposed(block.z), transposed(block.y), transposed(block.w)};
      multiply_rows(out, factor, shared_address(second_half) + i * BLOCK + of.left);
    }
    dq_rows.block(j, out);
  }
}
