// The program of mixlab/ops/scale_each/scale_each.cu for a CPU.
#include "cuda_on_cpu.h"
//
#include "scale_each/scale_each.cu"

PROGRAM(scale_each, 256, 0)
