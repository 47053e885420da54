// The scan of up to 16 BLOCKS tokens as what it is, one lower triangle per head; derivation and costs: README.md.
//
// A block is 16 tokens. Scores q_i·k_j are the same for all heads of a group, so a program computes them once and then
// takes one head after the other. Warp w has the rows (forward) or columns (backward) w and BLOCKS-1-w: BLOCKS+1 blocks
// in all, two of them on the diagonal, the others in "slots". What token i reads of token j is
//   inside a block     scores exp2(decay_i - source_j)
//   of another block   scores [exp2(decay_i)] exp2(sum of the decays of the blocks between) [exp2(block's decay - source_j)]
// where no exponent is above 0 but for the logarithm of dt, and the brackets are made once per token.

constexpr int T = 16;                // tokens of a block
constexpr int ROW = 144;             // bytes from row to row: 64 numbers, and 16 so that eight rows lie in different banks
constexpr int BLOCK = T * ROW;
constexpr int TOKENS = BLOCKS * T;
constexpr int WARPS = (BLOCKS + 1) / 2;
constexpr int THREADS = 32 * WARPS;
constexpr int SLOTS = BLOCKS - 1;
constexpr int COPIED = THREADS / 8;  // rows that all threads copy at once
constexpr int COPIES = (TOKENS + COPIED - 1) / COPIED;

struct Lane {
  int warp, lane, group, column;  // row and half the column of the lane's first number in a fragment
  int left, right;                // where it reads 16 x 16 numbers of a left factor, or of a right one, by rows
  DEVICE Lane() {
    warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so that the compiler knows that a warp agrees
    lane = threadIdx.x % 32, lane = kept(lane), group = lane / 4, column = lane % 4;
    left = kept(lane % 16 * ROW + lane / 16 * 16);
    right = kept((lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 16);
  }
  // Computed once: what goes by way of another lane is not computed again to save a register.
  DEVICE int kept(int value) const { return __shfl_sync(~0u, value, lane); }
};

// What follows reads 16 rows of shared memory by where the lane begins: their address and `left` or `right`.

// As the right factor of a product; loaded apart, so that other work hides the way.
DEVICE void load_columns(unsigned (&b)[4][4], unsigned left) {
#pragma unroll
  for (int step = 0; step < 4; ++step) load_matrices_transposed(b[step], left + step * 32);
}

// tile (16 x 64) += A (16 x 16) times these rows.
DEVICE void multiply_columns(float (&tile)[8][4], const unsigned (&A)[4], const unsigned (&b)[4][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    multiply_add(tile[2 * step], A, b[step][0], b[step][1]);
    multiply_add(tile[2 * step + 1], A, b[step][2], b[step][3]);
  }
}
DEVICE void multiply_rows(float (&tile)[8][4], const unsigned (&A)[4], unsigned left) {
  unsigned b[4][4];
  load_columns(b, left);
  multiply_columns(tile, A, b);
}

// tile (16 x 16) = A (16 x 64) times 16 rows, transposed.
DEVICE void multiply_by_rows(float (&tile)[2][4], const unsigned (&A)[4][4], unsigned right) {
#pragma unroll
  for (int e = 0; e < 8; ++e) tile[e / 4][e % 4] = 0;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    unsigned b[4];
    load_matrices(b, right + step * 32);
    multiply_add(tile[0], A[step], b[0], b[1]);
    multiply_add(tile[1], A[step], b[2], b[3]);
  }
}

DEVICE void load_rows(unsigned (&A)[4][4], unsigned left) {
#pragma unroll
  for (int step = 0; step < 4; ++step) load_matrices(A[step], left + step * 32);
}

// A 16 x 16 result as the left factor of the next product.
DEVICE void as_factor(unsigned (&A)[4], const float (&tile)[2][4]) {
  A[0] = pair(tile[0][0], tile[0][1]), A[1] = pair(tile[0][2], tile[0][3]);
  A[2] = pair(tile[1][0], tile[1][1]), A[3] = pair(tile[1][2], tile[1][3]);
}
DEVICE float element(const unsigned (&A)[4], int t, int e) {  // of a factor, by its place in the result
  unsigned both = A[2 * t + e / 2];
  return e % 2 ? high_of(both) : low_of(both);
}

struct Decays {  // of all tokens of a head; as in the planes of `steps`, without dt
  float decay[TOKENS], source[TOKENS], reads[TOKENS], sends[TOKENS], skip, unused[3];
};

// The decays of a block on the diagonal: none above it or, transposed, below it.
template <bool TRANSPOSED>
struct Diagonal {
  float rows[2], columns[4], skips[2];
  bool has[2], itself[2];  // in even and odd columns of the two 8 x 8 blocks that the diagonal crosses
  DEVICE Diagonal(const Lane& of, const float* of_rows, const float* of_columns, float skip) {
    of_columns += 2 * of.column;
    rows[0] = of_rows[of.group], rows[1] = of_rows[of.group + 8];
    columns[0] = of_columns[0], columns[1] = of_columns[1], columns[2] = of_columns[8], columns[3] = of_columns[9];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      int column = 2 * of.column + odd;
      has[odd] = TRANSPOSED ? of.group <= column : column <= of.group;
      itself[odd] = column == of.group;
      skips[odd] = itself[odd] ? skip : 0;
    }
  }
  DEVICE static bool crossed(int t, int e) { return t == e / 2; }
  DEVICE static bool empty(int t, int e) { return TRANSPOSED ? t < e / 2 : t > e / 2; }
  DEVICE bool is_itself(int t, int e) const { return crossed(t, e) && itself[e % 2]; }
  DEVICE float decay(int t, int e) const {
    const float row = rows[e / 2], column = columns[2 * t + e % 2];
    if (crossed(t, e) ? !has[e % 2] : empty(t, e)) return 0;
    return power_of_2(TRANSPOSED ? column - row : row - column);
  }
};

constexpr int ROOM = 8 * ROW;  // of a warp, to turn its results into rows

struct Shape {
  int length, num_heads, group_heads, first_reverse, heads;  // `heads` to a program, all of one group
};
struct Strides {
  long long batch, token, head;
};

// Where a program begins, in scan order.
struct Program {
  int first_head, group, batch, sign;
  long long begin;
  DEVICE Program(const Shape& shape) {
    first_head = blockIdx.x * shape.heads, group = first_head / shape.group_heads, batch = blockIdx.y;
    bool reverse = first_head >= shape.first_reverse;
    sign = reverse ? -1 : 1, begin = reverse ? shape.length - 1 : 0;
  }
};

// The rows of one head or group in scan order.
template <class Number>
struct Rows {
  Number* first;
  long long step, head;
  DEVICE Rows(Number* of, const Strides& strides, const Program& here, int of_head) {
    first = of + here.batch * strides.batch + of_head * strides.head + here.begin * strides.token;
    step = here.sign * strides.token, head = strides.head;
  }
  DEVICE void next() { first += head; }
  DEVICE Number* block(int i) const { return first + i * T * step; }
};

// Rows of 64 numbers to shared memory; a thread copies the same 16 bytes of every head. Nothing behind the last row.
struct Copied {
  Rows<const bf16> rows;
  int length;
  DEVICE Copied(const bf16* of, const Strides& strides, const Program& here, int head, int length)
      : rows(of, strides, here, head), length(length) {
    rows.first += threadIdx.x / 8 * rows.step + threadIdx.x % 8 * 8;
  }
  DEVICE void to(char* shared) const {
    int row = threadIdx.x / 8;
    const bf16* from = rows.first;
    shared += row * ROW + threadIdx.x % 8 * 16;
#pragma unroll
    for (int turn = 0; turn < COPIES; ++turn) {
      bool full = (turn + 1) * COPIED <= TOKENS - T + 1;  // known when compiled: only the last block may end early
      if (full || row + turn * COPIED < length) copy_ahead(shared + turn * COPIED * ROW, from);
      from += COPIED * rows.step;
    }
  }
  DEVICE void from(const char* shared) const {  // the way back
    int row = threadIdx.x / 8;
    bf16* to = (bf16*)rows.first;
    shared += row * ROW + threadIdx.x % 8 * 16;
#pragma unroll
    for (int turn = 0; turn < COPIES; ++turn) {
      bool full = (turn + 1) * COPIED <= TOKENS - T + 1;
      if (full || row + turn * COPIED < length) *(uint4*)to = *(const uint4*)(shared + turn * COPIED * ROW);
      to += COPIED * rows.step;
    }
  }
};

// Zeros behind the last row, where nothing is copied.
DEVICE void clear_ends(char* shared, int halves, int length) {
  for (int at = threadIdx.x; at < (TOKENS - length) * 8; at += THREADS)
    for (int half = 0; half < halves; ++half)
      *(uint4*)(shared + half * BLOCKS * BLOCK + (length + at / 8) * ROW + at % 8 * 16) = make_uint4(0, 0, 0, 0);
}

// The decays of a head: 16 bytes of one plane by each thread.
struct CopiedDecays {
  const float *from, *skip;
  int place;
  DEVICE CopiedDecays(const float* steps, long long plane, const float* skips, const Shape& shape, const Program& here) {
    int which = threadIdx.x / (TOKENS / 4);
    place = threadIdx.x < TOKENS ? threadIdx.x * 16 : -1;
    from = steps + ((long long)here.batch * shape.num_heads + here.first_head) * TOKENS;
    from += (which < 2 ? which : which + 1) * plane + threadIdx.x % (TOKENS / 4) * 4;
    skip = skips + here.first_head;
  }
  DEVICE void to(Decays* shared) const {
    if (place >= 0) copy_ahead((char*)shared + place, from);
    if (threadIdx.x == THREADS - 1) copy_number_ahead(&shared->skip, skip);
  }
  DEVICE void next() { from += TOKENS, skip += 1; }
};

// 16 x 64 matrices in fragments to rows of 64 numbers, eight at a time by way of shared memory of the warp's own.
struct Stored {
  Rows<bf16> rows;
  unsigned write;
  int read, length;
  DEVICE Stored(const Lane& of, bf16* to, const Strides& strides, const Program& here, int head, const char* room,
                int length)
      : rows(to, strides, here, head), length(length - of.lane / 8) {
    rows.first += of.lane / 8 * rows.step + of.lane % 8 * 8;
    write = of.kept(shared_address(room) + place_to_store(of.lane, ROW));
    read = of.kept(int(room - shared_memory) + of.lane / 8 * ROW + of.lane % 8 * 16);
  }
  DEVICE void block(int block, const float (&tile)[8][4]) const {
    bf16* to = rows.block(block);
    const int left = length - block * T;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int t = 0; t < 8; t += 4) {
        unsigned both[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) both[m] = pair(tile[t + m][2 * half], tile[t + m][2 * half + 1]);
        store_matrices(write + t * 16, both);
      }
      __syncwarp();
#pragma unroll
      for (int turn = 0; turn < 2; ++turn) {
        if (8 * half + 4 * turn < left) *(uint4*)to = *(const uint4*)(shared_memory + read + 4 * turn * ROW);
        to += 4 * rows.step;
      }
      __syncwarp();
    }
  }
};

// Columns of a 16 x 16 result, added up over its rows: four numbers of a lane, then eight lanes share the sums.
DEVICE int place_of_reads(const Lane& of) { return of.lane / 16 * 8 + 2 * of.column + of.lane / 8 % 2; }
DEVICE void note_reads(const Lane& of, float* to, const float (&reads)[4]) {
  bool high = of.lane & 16, odd = of.lane & 8;
  float a = high ? reads[2] : reads[0], b = high ? reads[3] : reads[1];
  a += __shfl_xor_sync(~0u, high ? reads[0] : reads[2], 16);
  b += __shfl_xor_sync(~0u, high ? reads[1] : reads[3], 16);
  float sum = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 8);
  sum += __shfl_xor_sync(~0u, sum, 4);
  if (!(of.lane & 4)) *to = sum;
}
