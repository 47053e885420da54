// Gradients of the short convolution for all its directions in one pass over the tokens.
//
// A program is a warp with 64 channels of an image. At front f its window x[f-3..f] gives the gradient before SiLU of
// token f from the left and of token f-3 from the right, and with the last four of each that of x[f-3]. What lies
// outside of the image is zero, and so are its gradients. Strides are known when it is compiled: no addresses are computed.

struct Sums {  // of a direction's weights and biases over tokens, twice
  float weight[2][4] = {}, bias[2] = {};
  DEVICE void add(int c, float gradient, float x0, float x1, float x2, float x3) {
    weight[c][0] += gradient * x0, weight[c][1] += gradient * x1;
    weight[c][2] += gradient * x2, weight[c][3] += gradient * x3;
    bias[c] += gradient;
  }
  DEVICE void store(float* weights, float* biases) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      ((float4*)weights)[c] =
          make_float4(0.5f * weight[c][0], 0.5f * weight[c][1], 0.5f * weight[c][2], 0.5f * weight[c][3]);
      biases[c] = 0.5f * bias[c];
    }
  }
};

// Twice the gradient of what SiLU is taken of, 2h: gradient (1 + tanh(h)) (1 + h - h tanh(h)).
DEVICE float silu_backward(float half, float gradient) {
  const float tangent = hyperbolic_tangent(half);
  return gradient * (1 + tangent) * (1 + half - half * tangent);
}

// A march over the tokens of an image, for two channels of a run that is WIDTH wide.
template <int WIDTH>
struct March {
  static constexpr int DOUT_TOKEN = 2 * DIRECTIONS * WIDTH, FAR = 2 * WIDTH - 3 * DOUT_TOKEN;  // bytes
  const char *x, *dout;  // of the front
  char* dx;              // of the token three before the front
  int length;
  const Taps &a, &z;
  Sums da, dz;
  float in[2][4] = {}, ga[2][4] = {}, gz[2][4] = {};  // rings: front f is in place f % 4
  unsigned next_x[8], next_a[8], next_z[8] = {};       // rows that are loaded ahead

  DEVICE void load(int t, int place, int left) {  // t fronts behind the pointers, where so many are left
    next_x[place] = load_if(t < left, x + t * X_TOKEN);
    next_a[place] = load_if(t < left, dout + t * DOUT_TOKEN);
    if (DIRECTIONS == 2)
      next_z[place] = load_if((unsigned)(length - left + t - 3) < (unsigned)length, dout + t * DOUT_TOKEN + FAR);
  }
  DEVICE void take_four(int half, int left) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int first = (t + 1) % 4, second = (t + 2) % 4, third = (t + 3) % 4;
      float out[2], near[2] = {low_of(next_a[half + t]), high_of(next_a[half + t])};
      float far[2] = {low_of(next_z[half + t]), high_of(next_z[half + t])};
      in[0][t] = low_of(next_x[half + t]), in[1][t] = high_of(next_x[half + t]);
      load(8 + t, half + t, left);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float x0 = in[c][first], x1 = in[c][second], x2 = in[c][third], x3 = in[c][t];
        ga[c][t] = silu_backward(a.half(c, x0, x1, x2, x3), near[c]);
        da.add(c, ga[c][t], x0, x1, x2, x3);
        out[c] = a.weight[c][3] * ga[c][first] + a.weight[c][2] * ga[c][second] + a.weight[c][1] * ga[c][third] +
                 a.weight[c][0] * ga[c][t];
        if (DIRECTIONS == 2) {
          gz[c][t] = silu_backward(z.half(c, x3, x2, x1, x0), far[c]);
          dz.add(c, gz[c][t], x3, x2, x1, x0);
          out[c] += z.weight[c][3] * gz[c][t] + z.weight[c][2] * gz[c][third] + z.weight[c][1] * gz[c][second] +
                    z.weight[c][0] * gz[c][first];
        }
      }
      if ((unsigned)(length - left + t - 3) < (unsigned)length) *(unsigned*)(dx + t * X_TOKEN) = pair(out[0], out[1]);
    }
    x += 4 * X_TOKEN, dout += 4 * DOUT_TOKEN, dx += 4 * X_TOKEN;
  }
  DEVICE void run() {
#pragma unroll
    for (int t = 0; t < 8; ++t) load(t, t, length);
#pragma unroll 1
    for (int left = length; left > -3; left -= 8) {
      take_four(0, left);
      if (left > 1) take_four(4, left - 4);
    }
  }
};

// Channels are [VALUES | KEYS | as many queries], tokens of x and dx X_TOKEN bytes apart; gradients dense (B, L, R, width).
// `sums` (B, [R, C, 4 | R, C]): the gradients of weights and biases by each image.
template <int WIDTH>
DEVICE void march(const char* x, const float* weights, const float* biases, const char* dout, char* dx, float* sums,
                  int length, int channel) {
  constexpr int CHANNELS = VALUES + 2 * KEYS;
  const int other = (DIRECTIONS - 1) * CHANNELS + channel;
  const Taps a((const float4*)weights + channel, biases + channel), z((const float4*)weights + other, biases + other);
  March<WIDTH> all = {x + 2 * channel, dout, dx + 2 * channel - 3 * X_TOKEN, length, a, z};
  all.run();
  float* of_biases = sums + DIRECTIONS * CHANNELS * 4;
  all.da.store(sums + 4 * channel, of_biases + channel);
  if (DIRECTIONS == 2) all.dz.store(sums + 4 * other, of_biases + other);
}

extern "C" __global__ void __launch_bounds__(32, 16)
    short_conv_backward(const char* x, const float* weights, const float* biases, const char* dvalues,
                        const char* dkeys, const char* dqueries, char* dx, float* sums, int length, long long image_x,
                        long long image_dx) {
  const int channel = 64 * blockIdx.x + 2 * threadIdx.x, of_keys = channel - VALUES, of_queries = of_keys - KEYS;
  const long long image = blockIdx.y, tokens = 2 * DIRECTIONS * image * length;
  x += image * image_x, dx += image * image_dx, sums += image * DIRECTIONS * (VALUES + 2 * KEYS) * 5;
  if (of_keys < 0) {
    march<VALUES>(x, weights, biases, dvalues + tokens * VALUES + 2 * channel, dx, sums, length, channel);
  } else {
    const char* dout = of_queries < 0 ? dkeys + 2 * of_keys : dqueries + 2 * of_queries;
    march<KEYS>(x, weights, biases, dout + tokens * KEYS, dx, sums, length, channel);
  }
}
