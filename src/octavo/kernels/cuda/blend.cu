// Two parts of one softmax become one, in place: acc and lse take in a part's 16-bit output and its log-sum-exp.
// One CTA of D threads a (row, head).
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(HD)
blend(float* acc, float* lse, const u16* part, i64 part_row, i64 part_head, const float* part_lse, int rows) {
  const int row = blockIdx.x, head = blockIdx.y;
  const i64 at = (i64)head * rows + row;
  const float a = lse[at], b = part_lse[at], top = fmaxf(a, b);
  if (b == __int_as_float(0xFF800000)) return;
  const float wa = __expf(a - top), wb = __expf(b - top), sum = wa + wb;
  float* to = acc + at * HD + threadIdx.x;
  *to = (*to * wa + load16(part + row * part_row + head * part_head + threadIdx.x) * wb) / sum;
  __syncthreads();
  if (threadIdx.x == 0) lse[at] = top + __logf(sum);
}
