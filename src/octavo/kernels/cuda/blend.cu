// Two parts of one softmax become one, in place: acc [heads, rows, D] and lse [heads, rows] take in a part's 16-bit output
// and its log-sum-exp.
#include "vector.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
blend(float* acc, float* lse, const u16* part, i64 part_row, i64 part_head, const float* part_lse, int rows, int heads) {
  const i64 at = warp_vector();
  const int head = at / rows, row = at - (i64)head * rows, c = lane_channel();
  if (head >= heads) return;
  const float a = lse[at], b = part_lse[at], top = fmaxf(a, b);
  if (b == __int_as_float(0xFF800000)) return;
  const float wa = __expf(a - top), wb = __expf(b - top), sum = wa + wb;
  Floats *to = (Floats*)(acc + at * D + c), total = *to;
  const Floats more = load_vector(part + row * part_row + head * part_head + c);
#pragma unroll
  for (int i = 0; i < LANE; i++) total.x[i] = (total.x[i] * wa + more.x[i] * wb) / sum;
  *to = total;
  __syncwarp();
  if (c == 0) lse[at] = top + __logf(sum);
}
