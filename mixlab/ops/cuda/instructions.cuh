// The instructions of a GPU (compute capability 8.0 and later) that CUDA C++ has no word for, each as one function.
// tests/unit/ops/cuda_on_cpu.h has the same functions for threads on a CPU.

typedef unsigned short bf16;  // its bits

#define DEVICE __device__ __forceinline__
extern __shared__ __align__(128) char shared_memory[];

// C (16 x 8, float32) += A (16 x 16) B (16 x 8). Of lane (g, c) = (lane / 4, lane % 4) are
//   C: rows g, g, g+8, g+8 and columns 2c, 2c+1, 2c, 2c+1;
//   A: rows g, g+8, g, g+8 and columns 2c, 2c, 2c+8, 2c+8, each with the next;    B: rows 2c and 2c+8, column g, likewise.
DEVICE void multiply_add(float (&C)[4], const unsigned (&A)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(C[0]), "+f"(C[1]), "+f"(C[2]), "+f"(C[3])
      : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(b0), "r"(b1));
}

// Where something lies in shared memory, as the instructions below want it.
DEVICE unsigned shared_address(const void* at) { return static_cast<unsigned>(__cvta_generic_to_shared(at)); }

// Four 8 x 8 matrices out of shared memory; lane i gives the address of row i % 8 of matrix i / 8.
// Lane (g, c) gets of each row g, columns 2c and 2c+1; transposed: column g, rows 2c and 2c+1.
DEVICE void load_matrices(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
DEVICE void load_matrices_transposed(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// The way back, of four matrices side by side: where a lane begins to write, in rows so far apart, and the writing.
DEVICE int place_to_store(int lane, int row_bytes) {
#if __CUDA_ARCH__ >= 900
  return lane % 8 * row_bytes + lane / 8 * 16;
#else
  return lane / 4 * row_bytes + lane % 4 * 4;
#endif
}
DEVICE void store_matrices(unsigned place, const unsigned (&from)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(place), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
#else
#pragma unroll
  for (int m = 0; m < 4; ++m) asm volatile("st.shared.b32 [%0], %1;" ::"r"(place + 16 * m), "r"(from[m]) : "memory");
#endif
}
// An 8 x 8 matrix in the registers of a warp, transposed.
DEVICE unsigned transposed(unsigned matrix) {
  unsigned to;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(matrix));
  return to;
}

// 16 bytes, or one number, from global to shared memory while the program runs on; a group of copies at a time.
DEVICE void copy_ahead(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void copy_number_ahead(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void wait_for_groups() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Two numbers of 16 bits from global memory, or zeros.
DEVICE unsigned load_if(bool there, const char* from) {
  unsigned both;
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %1, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%2]; }"
      : "=r"(both)
      : "r"((int)there), "l"(from));
  return both;
}

DEVICE float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float hyperbolic_tangent(float x) {  // to 2^-11 of its value
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE unsigned pair(float low, float high) {  // both rounded to bfloat16
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// One of the two. Volatile: hoisted out of a loop, what is unpacked would take twice the registers.
DEVICE float low_of(unsigned both) {
  float low;
  asm volatile("shl.b32 %0, %1, 16;" : "=f"(low) : "r"(both));
  return low;
}
DEVICE float high_of(unsigned both) {
  float high;
  asm volatile("and.b32 %0, %1, 0xffff0000;" : "=f"(high) : "r"(both));
  return high;
}
