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
  int left, right;                // where it reads the next 16 x 16 numbers of a left factor, or of a right one, by rows
  DEVICE Lane() {
    warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so that the compiler knows that a warp agrees
    lane = threadIdx.x % 32, group = lane / 4, column = lane % 4;
    left = lane % 16 * ROW + lane / 16 * 16;
    right = (lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 16;
  }
};

// 16 rows as the right factor of a product; loaded apart, so that other work hides the way.
DEVICE void load_columns(const Lane& of, unsigned (&b)[4][4], const char* rows) {
#pragma unroll
  for (int step = 0; step < 4; ++step) load_matrices_transposed(b[step], rows + of.left + step * 32);
}

// tile (16 x 64) += A (16 x 16) times these rows.
DEVICE void multiply_columns(float (&tile)[8][4], const unsigned (&A)[4], const unsigned (&b)[4][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    multiply_add(tile[2 * step], A, b[step][0], b[step][1]);
    multiply_add(tile[2 * step + 1], A, b[step][2], b[step][3]);
  }
}
DEVICE void multiply_rows(const Lane& of, float (&tile)[8][4], const unsigned (&A)[4], const char* rows) {
  unsigned b[4][4];
  load_columns(of, b, rows);
  multiply_columns(tile, A, b);
}

// tile (16 x 16) = A (16 x 64) times 16 rows, transposed; in two halves that need not wait for each other.
DEVICE void multiply_by_rows(const Lane& of, float (&tile)[2][4], const unsigned (&A)[4][4], const char* rows) {
  float half[2][2][4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    unsigned b[4];
    load_matrices(b, rows + of.right + step * 32);
    multiply_add(half[step % 2][0], A[step], b[0], b[1]);
    multiply_add(half[step % 2][1], A[step], b[2], b[3]);
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) tile[e / 4][e % 4] = half[0][e / 4][e % 4] + half[1][e / 4][e % 4];
}

DEVICE void load_rows(const Lane& of, unsigned (&A)[4][4], const char* rows) {
#pragma unroll
  for (int step = 0; step < 4; ++step) load_matrices(A[step], rows + of.left + step * 32);
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

constexpr int ROOM = 8 * ROW;  // of a warp, to turn its results into rows
constexpr int SCORES = WARPS * (SLOTS + 2) * 32 * 16;
constexpr int FORWARD_BYTES = 2 * BLOCKS * BLOCK + 2 * (int)sizeof(Decays) + WARPS * ROOM;
constexpr int BACKWARD_BYTES = 2 * FORWARD_BYTES - 2 * (int)sizeof(Decays) - WARPS * ROOM + SCORES + 2 * WARPS * TOKENS * 4;

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

// A 16 x 64 matrix in fragments to rows of 64 numbers, eight at a time by way of shared memory of the warp's own.
DEVICE void store_rows(const Lane& of, char* room, const Rows<bf16>& rows, int block, int length,
                       const float (&tile)[8][4]) {
  bf16* to = rows.block(block) + of.lane / 8 * rows.step + of.lane % 8 * 8;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int t = 0; t < 8; ++t)
      *(unsigned*)(room + of.group * ROW + t * 16 + of.column * 4) = pair(tile[t][2 * half], tile[t][2 * half + 1]);
    __syncwarp();
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      int row = of.lane / 8 + 4 * turn;
      if (block * T + 8 * half + row < length) *(uint4*)to = *(const uint4*)(room + row * ROW + of.lane % 8 * 16);
      to += 4 * rows.step;
    }
    __syncwarp();
  }
}

// Columns of a 16 x 16 result, added up over its rows: four numbers of a lane, then eight lanes share the sums.
DEVICE int place_of_reads(const Lane& of) { return of.lane / 16 * 8 + 2 * of.column + of.lane / 8 % 2; }
DEVICE void note_reads(const Lane& of, float* to, const float (&reads)[4], bool add) {
  bool high = of.lane & 16, odd = of.lane & 8;
  float a = high ? reads[2] : reads[0], b = high ? reads[3] : reads[1];
  a += __shfl_xor_sync(~0u, high ? reads[0] : reads[2], 16);
  b += __shfl_xor_sync(~0u, high ? reads[1] : reads[3], 16);
  float sum = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 8);
  sum += __shfl_xor_sync(~0u, sum, 4);
  if (!(of.lane & 4)) *to = add ? *to + sum : sum;
}
