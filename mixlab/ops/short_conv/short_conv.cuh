// The short convolution with bias and SiLU: four taps, the last for the token itself. A lane has two channels side by side.

struct Taps {  // of one direction, halved: SiLU(2h) = h + h tanh(h)
  float weight[2][4], bias[2];
  DEVICE Taps(const float4* weights, const float* biases) {  // of the lane's channels
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float4 w = weights[c];
      weight[c][0] = 0.5f * w.x, weight[c][1] = 0.5f * w.y, weight[c][2] = 0.5f * w.z, weight[c][3] = 0.5f * w.w;
      bias[c] = 0.5f * biases[c];
    }
  }
  DEVICE float half(int c, float x0, float x1, float x2, float x3) const {
    return bias[c] + weight[c][0] * x0 + weight[c][1] * x1 + weight[c][2] * x2 + weight[c][3] * x3;
  }
};

DEVICE float silu_of_half(float half) { return half * hyperbolic_tangent(half) + half; }
