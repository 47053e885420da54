// y = triangle v of q, k and v as they are.
constexpr int FORWARD_BYTES = 2 * BLOCKS * BLOCK + 2 * (int)sizeof(Decays) + WARPS * ROOM;

struct Given {
  Copied queries, keys, values;
  CopiedDecays its_decays;
  char *first_half, *second_half;  // where the heads lie, in turn
  Decays* decays;
  DEVICE void scores_from(const char*& q, const char*& k) const {
    queries.to(first_half), keys.to(second_half);
    end_group();
    wait_for_groups();
    q = first_half, k = second_half;
  }
  DEVICE void begin() const {
    values.to(first_half);
    its_decays.to(decays);
    end_group();
  }
  DEVICE const char* values_of(int n, bool has_next) {
    wait_for_groups();
    __syncthreads();  // this head is there, and nobody reads the one before any more
    if (has_next) {
      values.rows.next(), its_decays.next();
      values.to(n % 2 ? first_half : second_half);
      its_decays.to(decays + (n + 1) % 2);
      end_group();
    }
    return n % 2 ? second_half : first_half;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
    triangle_forward(const bf16* q, const bf16* k, const bf16* v, const float* steps, const float* skips, bf16* y,
                     Shape shape, long long plane, Strides of_q, Strides of_k, Strides of_v, Strides of_y) {
  Lane of;
  Program here(shape);
  char *first_half = shared_memory, *second_half = first_half + BLOCKS * BLOCK;
  Decays* decays = (Decays*)(second_half + BLOCKS * BLOCK);
  const char* room = (char*)(decays + 2) + of.warp * ROOM;
  clear_ends(first_half, 2, shape.length);
  Given source = {Copied(q, of_q, here, here.group, shape.length),
                  Copied(k, of_k, here, here.group, shape.length),
                  Copied(v, of_v, here, here.first_head, shape.length),
                  CopiedDecays(steps, plane, skips, shape, here),
                  first_half,
                  second_half,
                  decays};
  const Stored out_rows(of, y, of_y, here, here.first_head, room, shape.length);
  multiply_triangles(of, source, decays, out_rows, shape.heads);
}
