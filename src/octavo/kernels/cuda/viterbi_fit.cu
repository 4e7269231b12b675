// The gains of trellis pages, once their codes and means are written. Macros: those of seal.cu.
#include "seal.cuh"

constexpr int ROW = D + 8, L = state_bits(FORMAT);

// Levels of a part, four a word in the lane's order.
DEV void read_levels(const u8* codes, const signed char* table, int lane, int part, u32 (&o)[2][8]) {
  u32 w[WORDS + 1];
  load_words<Pages>(codes, lane, part, w);
#pragma unroll
  for (int i = 0; i < 16; i++) {
    u32 four = 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int bit = (4 * i + n) * BITS;
      const u32 state = __funnelshift_r(w[bit / 32], w[bit / 32 + (bit % 32 + L > 32)], bit % 32) & ((1 << L) - 1);
      four |= (u32)(u8)table[state] << 8 * n;
    }
    o[i / 8][i % 8] = four;
  }
}
// They go to rows of levels, token by token.
DEV void scatter(u8* levels, int lane, int part, const u32 (&o)[2][8]) {
  if constexpr (KEYS) {
#pragma unroll
    for (int g = 0; g < 8; g++) {
      const Place at = key_place(lane, part, g);
      *(Pair*)(levels + at.token * ROW + at.channel) = {o[g / 4][2 * (g % 4)], o[g / 4][2 * (g % 4) + 1]};
    }
  } else {
    const Place at = value_place(lane, part);
#pragma unroll
    for (int q = 0; q < 4; q++) {
      u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; i++) x[i] = o[i / 2][4 * (i % 2) + q];
      transpose_bytes(x);
#pragma unroll
      for (int n = 0; n < 4; n++) *(u32*)(levels + (at.token + 4 * q + n) * ROW + at.channel) = x[n];
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
fit(const u16* const* __restrict__ plain, const i64* __restrict__ from, u8* const* packed,
    const i64* __restrict__ to, int heads, const signed char* __restrict__ table) {
  extern __shared__ __align__(16) u8 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Work work = find_work(plain, from, packed, to, heads);
  float* mean = (float*)shared;
  signed char* states = (signed char*)(shared + 4 * D);
  u8* levels = shared + 4 * D + (1 << L);
  for (int i = threadIdx.x; i < 1 << L; i += 32 * WARPS) states[i] = table[i];
  if constexpr (CENTRED)
    for (int d = threadIdx.x; d < D; d += 32 * WARPS)
      mean[d] = (float)(signed char)work.packed[MEAN + d] * from_half(*(const u16*)(work.packed + MEAN + D));
  __syncthreads();
  for (int part = warp; part < PARTS; part += WARPS) {
    u32 o[2][8];
    read_levels(work.packed, states, lane, part, o);
    scatter(levels, lane, part, o);
  }
  __syncthreads();
  for (int token = warp; token < PAGE; token += WARPS)
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      float x[V], xx = 0.f, xc = 0.f, cc = 0.f;
      load_rest(work.plain, mean, token, chunk, lane, x);
#pragma unroll
      for (int i = 0; i < V; i++) {
        const float c = (signed char)levels[token * ROW + chunk * CHUNK + V * lane + i];
        xx += x[i] * x[i];
        xc += x[i] * c;
        cc += c * c;
      }
      store_half(work.packed + GAINS, token, chunk, lane, fit_gain(sum_span(xx), sum_span(xc), sum_span(cc)));
    }
}
