// The warps that read tiles: products of 64 rows each four of them, and the rows' softmax.
#pragma once
#include "wide_feed.cuh"

// A thread holds rows c and c + 8 of its warp's sixteen, and of each eight tokens (or channels) two.

constexpr int SCORES = KEY_ROWS / 2, OUT = VALUE_ROWS / 2;  // of a thread: the rows' products with the mean, and their sums, come last
struct Rows {
  u32 q[D / 4];
  float out[OUT], top[2], scale[2];
  int sees[2][2];
  u32 empty;
};

DEV float max_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Queries as halves of each row's largest.
DEV void load_rows(Rows& r, const Asked& asked, const int* codes, int row, int t, float scale) {
  u32 two[2][D / 8];
  int2 sees[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int code = codes[row + 8 * e];
    const u16* from = asked.row(code) + 2 * t;
#pragma unroll
    for (int i = 0; i < D / 8; i++) two[e][i] = code < 0 ? 0u : *(const u32*)(from + 8 * i);
    sees[e] = asked.sight(code);
  }
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float x[D / 8][2], peak = 0.f;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
      const u16 low = two[e][i], high = two[e][i] >> 16;
      x[i][0] = load16(&low);
      x[i][1] = load16(&high);
      peak = fmaxf(peak, fmaxf(fabsf(x[i][0]), fabsf(x[i][1])));
    }
    peak = max_quad(peak);
    const float inverse = peak > 0.f ? 1.f / peak : 0.f;
    r.scale[e] = peak * scale;
#pragma unroll
    for (int i = 0; i < D / 8; i++) r.q[2 * i + e] = pack_f16(x[i][0] * inverse, x[i][1] * inverse);
    r.sees[e][0] = sees[e].x;
    r.sees[e][1] = sees[e].y;
    r.top[e] = 0.f;
  }
  r.empty = 3;
#pragma unroll
  for (int i = 0; i < OUT; i++) r.out[i] = 0.f;
}

DEV void hide(const Rows& r, int t, int first, float (&score)[SCORES]) {
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int e = i / 2 % 2, token = first + i / 4 * 8 + turned(2 * t + i % 2);
    if (token < r.sees[e][0] || token >= r.sees[e][1]) score[i] = __int_as_float(0xFF800000);
  }
}

// Products become probabilities. r.top follows the true maximum at a distance of 6 (64 times).
DEV void soften(Rows& r, int t, int first, float cap, float (&score)[SCORES]) {
  float shift[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    shift[e] = CENTRED ? score[SCORES - 4 + 2 * e] * r.scale[e] : 0.f;
    if (!SOFTCAP) shift[e] -= r.top[e];
  }
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int e = i / 2 % 2;
    score[i] = fmaf(score[i], r.scale[e], shift[e]);
    if (SOFTCAP) score[i] = cap * tanh_(score[i] * (1.f / cap)) - r.top[e];
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
    products_wait();  // of the page before
    settled(r.out);
    float fade[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const float rise = rise_of(max_quad(most[e]), r.empty, 1u << e);
      fade[e] = exp2_(-fmaxf(rise, 0.f));
      r.top[e] += rise;
#pragma unroll
      for (int i = 0; i < 16; i++) score[i / 2 * 4 + 2 * e + i % 2] -= rise;
    }
#pragma unroll
    for (int i = 0; i < OUT; i++) r.out[i] *= fade[i / 2 % 2];
  }
#pragma unroll
  for (int i = 0; i < 32; i++) score[i] = exp2_(score[i]);
}

DEV void ask_scores(const Rows& r, u32 keys, float (&score)[SCORES]) {
#pragma unroll
  for (int s = 0; s < D / 16; s++) multiply(score, r.q + 4 * s, tile_at(keys + s / 4 * KEY_HALF) + 2 * (s % 4), s > 0);
}
DEV void ask_values(Rows& r, u32 values, const u32 (&weights)[16]) {
#pragma unroll
  for (int s = 0; s < 4; s++) multiply(r.out, weights + 4 * s, tile_at(values) + 2 * s, 1);
}

// Of eight channels a thread has two of its own, of 32 channels four times: the four threads of a row exchange them, so that
// each stores eight neighbours. v: of eight channels the thread's first, and that + 4.
DEV void exchange(float (&v)[4][2], int t) {
#pragma unroll
  for (int m = 1; m < 4; m *= 2)
#pragma unroll
    for (int b = 0; b < 4; b++) {
      if (b & m) continue;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float other = __shfl_xor_sync(~0u, t & m ? v[b][i] : v[b | m][i], m);
        if (t & m) v[b][i] = other; else v[b | m][i] = other;
      }
    }
}
// A row's mean of the values it saw, as halves, and what that weighs. Rows that nobody asked for stay as they are.
DEV void store_rows(const Rows& r, int row, int t, u16* part, float2* part_ml) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const bool there = r.sees[e][1] != NO_ROW;
    const float sum = r.out[OUT - 4 + 2 * e], inverse = sum > 0.f ? 1.f / sum : 0.f;
    if (there && t == 0) part_ml[row + 8 * e] = {r.empty >> e & 1 ? NONE : r.top[e], sum};
#pragma unroll
    for (int q = 0; q < D / 32; q++) {
      float v[4][2];
#pragma unroll
      for (int i = 0; i < 8; i++) v[i / 2][i % 2] = r.out[4 * (4 * q + i / 2) + 2 * e + i % 2];
      exchange(v, t);
      u32 two[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        two[i] = pack_f16(v[turned(2 * (i % 2)) / 2][i / 2] * inverse, v[turned(2 * (i % 2) + 1) / 2][i / 2] * inverse);
      if (there) *(Quad*)(part + (row + 8 * e) * D + 32 * q + 8 * t) = {two[0], two[1], two[2], two[3]};
    }
  }
}
