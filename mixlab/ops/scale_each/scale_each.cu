// Many tensors, each times its own factor, in place: a program takes NUMBERS numbers of one of them.
constexpr int TENSORS = 128, NUMBERS = 4096;

struct Many {  // where each begins, how long it is, and behind which program it ends; those behind the last have no program
  float* begin[TENSORS];
  long long numbers[TENSORS];
  int end[TENSORS];
};

extern "C" __global__ void __launch_bounds__(256) scale_each(Many many, const float* factors) {
  const int program = blockIdx.x;
  int tensor = 0;  // the first that does not end before this program
#pragma unroll
  for (int step = TENSORS / 2; step > 0; step /= 2)
    if (many.end[tensor + step - 1] <= program) tensor += step;
  const float factor = factors[tensor];
  if (factor == 1) return;
  const long long first = (long long)(program - (tensor ? many.end[tensor - 1] : 0)) * NUMBERS;
  const long long left = many.numbers[tensor] - first;
  float* numbers = many.begin[tensor] + first;
  const bool aligned = (size_t)numbers % sizeof(float4) == 0;  // a slice of another tensor may not be
#pragma unroll
  for (int at = 4 * threadIdx.x; at < NUMBERS; at += 4 * 256) {
    if (aligned && at + 4 <= left) {
      float4 four = *(float4*)(numbers + at);
      four.x *= factor, four.y *= factor, four.z *= factor, four.w *= factor;
      *(float4*)(numbers + at) = four;
    } else {
      for (int i = at; i < at + 4 && i < left; ++i) numbers[i] *= factor;
    }
  }
}
