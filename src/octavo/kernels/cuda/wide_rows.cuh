// The warps that read tiles: products of 64 rows each four of them, and the rows' softmax.
#pragma once
#include "wide_feed.cuh"

// A thread holds rows c and c + 8 of its warp's sixteen, and of each eight tokens (or channels) two.

struct Rows {
  u32 q[D / 4];
  float out[D / 2], top[2], sum[2], scale[2];
  int sees[2][2];
  u32 empty;
};

DEV float max_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Queries as halves of each row's largest.
DEV void load_rows(Rows& r, const Asked& asked, const int* codes, int row, int t, float scale) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int code = codes[row + 8 * e];
    const u16* from = asked.row(code) + 2 * t;
    u32 two[D / 8];
    float x[D / 8][2], peak = 0.f;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
      two[i] = code < 0 ? 0u : *(const u32*)(from + 8 * i);
      const u16 low = two[i], high = two[i] >> 16;
      x[i][0] = load16(&low);
      x[i][1] = load16(&high);
      peak = fmaxf(peak, fmaxf(fabsf(x[i][0]), fabsf(x[i][1])));
    }
    peak = max_quad(peak);
    const float inverse = peak > 0.f ? 1.f / peak : 0.f;
    r.scale[e] = peak * scale;
#pragma unroll
    for (int i = 0; i < D / 8; i++) r.q[2 * i + e] = pack_f16(x[i][0] * inverse, x[i][1] * inverse);
    const int2 sees = asked.sight(code);
    r.sees[e][0] = sees.x;
    r.sees[e][1] = sees.y;
    r.top[e] = r.sum[e] = 0.f;
  }
  r.empty = 3;
#pragma unroll
  for (int i = 0; i < D / 2; i++) r.out[i] = 0.f;
}

DEV void hide(const Rows& r, int t, int first, float (&score)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int e = i / 2 % 2, token = first + i / 4 * 8 + turned(2 * t + i % 2);
    if (token < r.sees[e][0] || token >= r.sees[e][1]) score[i] = __int_as_float(0xFF800000);
  }
}

// Products become probabilities. r.top follows the true maximum at a distance of 6 (64 times).
DEV void soften(Rows& r, int t, int first, float cap, float (&score)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int e = i / 2 % 2;
#if SOFTCAP
    score[i] = cap * tanh_(score[i] * r.scale[e] * (1.f / cap)) - r.top[e];
#else
    score[i] = score[i] * r.scale[e] - r.top[e];
#endif
  }
  if (first < max(r.sees[0][0], r.sees[1][0]) || first + PAGE > min(r.sees[0][1], r.sees[1][1])) hide(r, t, first, score);
  float most[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    most[e] = score[2 * e];
#pragma unroll
    for (int i = 0; i < 16; i++) most[e] = fmaxf(most[e], score[i / 2 * 4 + 2 * e + i % 2]);
  }
  if (__any_sync(~0u, r.empty != 0 || most[0] > 6.f || most[1] > 6.f)) {
    float fade[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const float rise = rise_of(max_quad(most[e]), r.empty, 1u << e);
      fade[e] = exp2_(-fmaxf(rise, 0.f));
      r.top[e] += rise;
      r.sum[e] *= fade[e];
#pragma unroll
      for (int i = 0; i < 16; i++) score[i / 2 * 4 + 2 * e + i % 2] -= rise;
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) r.out[i] *= fade[i / 2 % 2];
  }
#pragma unroll
  for (int i = 0; i < 32; i++) {
    score[i] = exp2_(score[i]);
    r.sum[i / 2 % 2] += score[i];
  }
}

DEV void ask_scores(const Rows& r, u32 keys, float (&score)[32]) {
#pragma unroll
  for (int s = 0; s < D / 16; s++)
    multiply_f16(score, r.q + 4 * s, tile_at(keys + s / 4 * (SIDE_TILE * 64 / D)) + 2 * (s % 4), s > 0);
}
DEV void ask_values(Rows& r, u32 values, const u32 (&weights)[16]) {
#pragma unroll
  for (int s = 0; s < 4; s++) multiply_bf16(r.out, weights + 4 * s, tile_at(values) + 2 * s, 1);
}
DEV void store_rows(const Rows& r, int row, int t, float* part, float2* part_ml) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float sum = r.sum[e] + __shfl_xor_sync(~0u, r.sum[e], 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t == 0) part_ml[row + 8 * e] = {r.empty >> e & 1 ? NONE : r.top[e], sum};
#pragma unroll
    for (int i = 0; i < D / 4; i++) part[(row + 8 * e) * D + i / 2 * 8 + turned(2 * t + i % 2)] = r.out[i / 2 * 4 + 2 * e + i % 2];
  }
}
