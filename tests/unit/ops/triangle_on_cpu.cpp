// The programs of mixlab/ops/ssd/triangle*.cu* for a CPU, launched as the driver launches them: by where arguments are.
#include <utility>

#include "cuda_on_cpu.h"
#include "triangle.cuh"
#include "triangle_backward.cu"
#include "triangle_forward.cu"

template <class... Arguments, size_t... INDEX>
static void run(void (*kernel)(Arguments...), unsigned x, unsigned y, size_t bytes, void** at,
                std::index_sequence<INDEX...>) {
  launch({x, y, 1}, THREADS, bytes, [=] { kernel(*(std::remove_reference_t<Arguments>*)at[INDEX]...); });
}
template <class... Arguments>
static void run(void (*kernel)(Arguments...), unsigned x, unsigned y, size_t bytes, void** at) {
  run(kernel, x, y, bytes, at, std::index_sequence_for<Arguments...>());
}

extern "C" {
void set_order(int which) { order = (Order)which; }
int forward_threads() { return THREADS; }
int backward_threads() { return THREADS; }
int forward_bytes() { return FORWARD_BYTES; }
int backward_bytes() { return BACKWARD_BYTES; }
void forward(unsigned x, unsigned y, void** at) { run(triangle_forward, x, y, FORWARD_BYTES, at); }
void backward(unsigned x, unsigned y, void** at) { run(triangle_backward, x, y, BACKWARD_BYTES, at); }
}
