// The program of mixlab/ops/short_conv/short_conv*.cu* for a CPU.
#include "cuda_on_cpu.h"
//
#include "short_conv/short_conv.cuh"
#include "short_conv/short_conv_backward.cu"

PROGRAM(short_conv_backward, 32, 0)
