// The programs of mixlab/ops/ssd/triangle*.cu* for a CPU.
#include "cuda_on_cpu.h"
//
#include "ssd/triangle.cuh"
#include "ssd/triangle_rows.cuh"
#include "ssd/triangle_backward.cu"
#include "ssd/triangle_forward.cu"
#include "short_conv/short_conv.cuh"
#include "ssd/triangle_convolved.cu"

PROGRAM(triangle_forward, THREADS, FORWARD_BYTES)
PROGRAM(triangle_convolved, THREADS, CONVOLVED_BYTES)
PROGRAM(triangle_backward, THREADS, BACKWARD_BYTES)
