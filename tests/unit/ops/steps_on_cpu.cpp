// The program of mixlab/ops/ssd/triangle_steps.cu for a CPU.
#include "cuda_on_cpu.h"
//
#include "ssd/triangle_steps.cu"

PROGRAM(triangle_steps_backward, 32 * STEPS_WARPS, STEPS_BYTES)
