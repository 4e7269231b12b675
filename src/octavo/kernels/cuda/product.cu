// One row times up to four matrices: out = x · Wᵀ. The weights stream past once, the first of them while the kernel
// before this one still runs. A warp takes a row of the weights at a time, each lane 16 bytes of it in turn.
#include "common.cuh"

struct Weights { const Quad* at[4]; };
struct Ends { int row[4]; };  // rows of this matrix and those before

DEV Quad stream(const Quad* p) {
  Quad w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "l"(p));
  return w;
}
DEV void multiply(float (&sum)[2], u32 w, u32 x) {
  sum[0] = fmaf(low_bf16(w), low_bf16(x), sum[0]);
  sum[1] = fmaf(high_bf16(w), high_bf16(x), sum[1]);
}

// Where a warp reads next: rows `step` apart, `depth` quads each.
struct Reader {
  const Weights& weights;
  const Ends& ends;
  const int depth, step, lane;
  int row, at;
  const Quad* line;
  DEV void find() {
    line = 0;
#pragma unroll
    for (int m = 3, first; m >= 0; m--) {
      first = m ? ends.row[m - 1] : 0;
      if (row >= first && row < ends.row[m]) line = weights.at[m] + (i64)(row - first) * depth;
    }
  }
  DEV void next(Quad (&w)[UNROLL]) {
#pragma unroll
    for (int i = 0; i < UNROLL; i++) w[i] = line && at + 32 * i < depth ? stream(line + at + 32 * i) : Quad{0, 0, 0, 0};
    at += 32 * UNROLL;
    if (at - lane < depth) return;
    at = lane, row += step;
    find();
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, CTAS)
product(const Quad* x, Weights weights, Ends ends, u16* out, int depth) {
  extern __shared__ Quad shared[];
  const int lane = threadIdx.x & 31, warps = gridDim.x * (THREADS / 32);
  const int first = (threadIdx.x >> 5) * gridDim.x + blockIdx.x, stretches = (depth + 32 * UNROLL - 1) / (32 * UNROLL);
  Reader reader = {weights, ends, depth, warps, lane, first, lane};
  Quad now[UNROLL], next[UNROLL];
  reader.find();
  reader.next(now);
  wait_for_previous();
  launch_dependents();  // only now: who comes next may count on all that came before us
  for (int i = threadIdx.x; i < stretches * 32 * UNROLL; i += THREADS) shared[i] = i < depth ? x[i] : Quad{0, 0, 0, 0};
  __syncthreads();
  for (int row = first; row < ends.row[3]; row += warps) {
    float sum[2] = {};
    for (int s = 0; s < stretches; s++) {
      reader.next(next);
#pragma unroll
      for (int i = 0; i < UNROLL; i++) {
        const Quad v = shared[(s * UNROLL + i) * 32 + lane];
        multiply(sum, now[i].x, v.x), multiply(sum, now[i].y, v.y);
        multiply(sum, now[i].z, v.z), multiply(sum, now[i].w, v.w);
        now[i] = next[i];
      }
    }
    float total = sum[0] + sum[1];
#pragma unroll
    for (int i = 16; i; i /= 2) total += __shfl_xor_sync(~0u, total, i);
    if (lane == 0) out[row] = store16(total);
  }
}
