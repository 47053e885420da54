// CUDA C++ on a CPU, for tests: every thread of a block is a fiber, and those of a warp meet at each instruction that
// they execute together. Copies that run ahead arrive only when a program waits for them.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

struct dim3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define DEVICE inline
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

typedef unsigned short bf16;

struct Copy { void* to; const void* from; size_t bytes; };
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false;
  std::vector<Copy> open;
};
constexpr size_t STACK = 256 * 1024;

static dim3 threadIdx, blockIdx, blockDim, gridDim;
static char* shared_memory;
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned current;
struct Meeting { unsigned arrived = 0, round = 0; };
static std::vector<Meeting> warps;
static Meeting barrier;
static std::vector<std::vector<unsigned>> board;  // what the lanes of a warp show each other

static inline void pause_fiber() {
  unsigned me = current;
  swapcontext(&fibers[me].context, &scheduler);
  threadIdx.x = current = me;
}
static inline void meet(Meeting& meeting, unsigned all) {
  unsigned round = meeting.round;
  if (++meeting.arrived == all) {
    meeting.arrived = 0;
    meeting.round++;
  } else {
    while (meeting.round == round) pause_fiber();
  }
}
static inline void meet_warp() { meet(warps[current / 32], 32); }
static inline void __syncwarp() { meet_warp(); }
static inline void __syncthreads() { meet(barrier, blockDim.x); }

static inline float as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline unsigned as_bits(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static inline float low_of(unsigned both) { return as_float(both << 16); }
static inline float high_of(unsigned both) { return as_float(both & 0xffff0000u); }
static inline unsigned rounded(float x) {
  unsigned bits = as_bits(x);
  if (std::isnan(x)) return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
static inline unsigned pair(float low, float high) { return rounded(low) | rounded(high) << 16; }
static inline float power_of_2(float x) { return exp2f(x); }
static inline float hyperbolic_tangent(float x) { return tanhf(x); }
// Every lane shows some words, then all read what they need of the others.
template <int WORDS>
static inline const std::vector<unsigned>& show(const unsigned (&words)[WORDS]) {
  auto& shown = board[current / 32];
  meet_warp();
  shown.resize(32 * 16);
  for (int i = 0; i < WORDS; ++i) shown[(current % 32) * 16 + i] = words[i];
  meet_warp();
  return shown;
}
template <class Number>
static inline Number __shfl_sync(unsigned, Number value, int lane) {
  static_assert(sizeof(Number) == 4);
  unsigned words[1];
  memcpy(words, &value, 4);
  memcpy(&value, &show(words)[lane * 16], 4);
  return value;
}
static inline float __shfl_down_sync(unsigned, float value, int by) {
  unsigned words[1] = {as_bits(value)};
  unsigned lane = current % 32;
  return as_float(show(words)[(lane + by < 32 ? lane + by : lane) * 16]);
}
static inline float __shfl_xor_sync(unsigned, float value, int mask) {
  unsigned words[1] = {as_bits(value)};
  return as_float(show(words)[(current % 32 ^ mask) * 16]);
}

static inline void multiply_add(float (&C)[4], const unsigned (&A)[4], unsigned b0, unsigned b1) {
  unsigned words[6] = {A[0], A[1], A[2], A[3], b0, b1};
  const auto& shown = show(words);
  int g = current % 32 / 4, c = current % 4;
  for (int e = 0; e < 4; ++e) {
    int row = g + (e >= 2 ? 8 : 0), column = 2 * c + e % 2;
    double sum = 0;
    for (int k = 0; k < 16; ++k) {
      unsigned a = shown[(row % 8 * 4 + k % 8 / 2) * 16 + (row >= 8) + 2 * (k >= 8)];
      unsigned b = shown[(column * 4 + k % 8 / 2) * 16 + 4 + (k >= 8)];
      sum += (double)(k % 2 ? high_of(a) : low_of(a)) * (k % 2 ? high_of(b) : low_of(b));
    }
    C[e] += (float)sum;
  }
}
static inline unsigned shared_address(const void* at) { return (unsigned)((const char*)at - shared_memory); }
static inline void load_any(unsigned (&to)[4], unsigned row, bool transposed) {
  unsigned words[1] = {row};
  if (row % 16) { fprintf(stderr, "a row of a matrix is not aligned\n"); abort(); }
  const auto& shown = show(words);
  int g = current % 32 / 4, c = current % 4;
  for (int m = 0; m < 4; ++m) {
    bf16 both[2];
    for (int e = 0; e < 2; ++e) {
      int r = transposed ? 2 * c + e : g, column = transposed ? g : 2 * c + e;
      both[e] = ((const bf16*)(shared_memory + shown[(8 * m + r) * 16]))[column];
    }
    to[m] = both[0] | both[1] << 16;
  }
}
static inline void load_matrices(unsigned (&to)[4], unsigned row) { load_any(to, row, false); }
static inline void load_matrices_transposed(unsigned (&to)[4], unsigned row) { load_any(to, row, true); }
static inline int place_to_store(int lane, int row_bytes) { return lane / 4 * row_bytes + lane % 4 * 4; }
static inline void store_matrices(unsigned place, const unsigned (&from)[4]) {
  for (int m = 0; m < 4; ++m) memcpy(shared_memory + place + 16 * m, &from[m], 4);
}

static inline unsigned transposed(unsigned matrix) {
  unsigned words[1] = {matrix};
  const auto& shown = show(words);
  int g = current % 32 / 4, c = current % 4;
  unsigned low = shown[(8 * c + g / 2) * 16], high = shown[(8 * c + 4 + g / 2) * 16];  // rows 2c and 2c+1, column g
  return g % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
}

static inline unsigned load_if(bool there, const char* from) {
  unsigned both = 0;
  if (there) memcpy(&both, from, 4);
  return both;
}
static inline void copy_later(void* to, const void* from, size_t bytes) {
  if (((uint64_t)to | (uint64_t)from) % bytes) { fprintf(stderr, "%zu bytes are not aligned\n", bytes); abort(); }
  memset(to, 0xff, bytes);  // NaN until it is there
  fibers[current].open.push_back({to, from, bytes});
}
static inline void copy_ahead(void* to, const void* from) { copy_later(to, from, 16); }
static inline void copy_number_ahead(float* to, const float* from) { copy_later(to, from, 4); }
static inline void end_group() {}
static inline void wait_for_groups() {
  auto& open = fibers[current].open;
  for (auto& copy : open) memcpy(copy.to, copy.from, copy.bytes);
  open.clear();
}

static std::function<void()> program;
static void run_fiber() {
  program();
  fibers[current].done = true;
  swapcontext(&fibers[current].context, &scheduler);
}

// Which threads run first; results that depend on it are races. Where it is not EVENLY, each warp runs on until the whole
// block must meet, and only then the next one.
enum Order { EVENLY, FIRST_AHEAD, LAST_AHEAD };
static Order order = EVENLY;

// Whether any of the threads that may run has: forwards or backwards.
static inline bool run_threads(unsigned begin, unsigned end) {
  bool busy = false;
  for (unsigned i = begin; i < end; ++i) {
    unsigned me = order == LAST_AHEAD ? end - 1 - (i - begin) : i;
    if (fibers[me].done) continue;
    busy = true;
    threadIdx.x = current = me;
    swapcontext(&scheduler, &fibers[me].context);
  }
  return busy;
}
static inline bool run_warp(unsigned warp) {  // until it waits for others
  bool busy = false;
  for (;;) {
    unsigned meetings = warps[warp].round, arrived = warps[warp].arrived;
    if (!run_threads(32 * warp, 32 * warp + 32)) return busy;
    busy = true;
    if (warps[warp].round == meetings && warps[warp].arrived == arrived) return busy;
  }
}
static inline bool run_block(unsigned threads) {
  if (order == EVENLY) return run_threads(0, threads);
  bool busy = false;
  for (unsigned w = 0; w < threads / 32; ++w) busy |= run_warp(order == LAST_AHEAD ? threads / 32 - 1 - w : w);
  return busy;
}

// Memory that ends where a page begins that nobody may touch.
static inline char* fenced_memory(size_t bytes) {
  static char* end = nullptr;
  constexpr size_t MOST = 1 << 20;
  if (!end) {
    char* area = (char*)mmap(nullptr, MOST + getpagesize(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED || mprotect(area + MOST, getpagesize(), PROT_NONE) || bytes % 16 || bytes > MOST) abort();
    end = area + MOST;
  }
  return end - bytes;
}

static inline void launch(dim3 grid, unsigned threads, size_t shared_bytes, std::function<void()> kernel) {
  program = kernel;
  blockDim = {threads, 1, 1}, gridDim = grid;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        fibers.clear();
        fibers.resize(threads);
        warps.assign(threads / 32, Meeting());
        board.assign(threads / 32, {});
        barrier = Meeting();
        shared_memory = fenced_memory(shared_bytes);
        memset(shared_memory, 0xff, shared_bytes);
        for (auto& fiber : fibers) {
          fiber.stack.reset(new char[STACK]);
          getcontext(&fiber.context);
          fiber.context.uc_stack.ss_sp = fiber.stack.get();
          fiber.context.uc_stack.ss_size = STACK;
          fiber.context.uc_link = &scheduler;
          makecontext(&fiber.context, run_fiber, 0);
        }
        while (run_block(threads)) {}
      }
}

// A program for ctypes, launched as the driver launches it: by where its arguments are.
template <class... Arguments, size_t... INDEX>
static void run(void (*kernel)(Arguments...), dim3 grid, unsigned threads, size_t bytes, void** at,
                std::index_sequence<INDEX...>) {
  launch(grid, threads, bytes, [=] { kernel(*(std::remove_reference_t<Arguments>*)at[INDEX]...); });
}
template <class... Arguments>
static void run(void (*kernel)(Arguments...), dim3 grid, unsigned threads, size_t bytes, void** at) {
  run(kernel, grid, threads, bytes, at, std::index_sequence_for<Arguments...>());
}
extern "C" void set_order(int which) { order = (Order)which; }
#define PROGRAM(name, threads, bytes)                 \
  extern "C" int name##_threads() { return threads; } \
  extern "C" int name##_bytes() { return bytes; }     \
  extern "C" void run_##name(unsigned x, unsigned y, void** at) { run(name, {x, y, 1}, threads, bytes, at); }
