// Tokens of a page as the quantising kernels read them, and the page's bytes as they write them.
// A CTA has a page of one KV head; each warp takes every eighth token, each lane V channels of every chunk.
#pragma once
#include "pages.cuh"

constexpr int WARPS = 8, V = D >= 128 ? 4 : 2, CHUNK = 32 * V, CHUNKS = D / CHUNK, GROUP = SPAN / V;
constexpr float LARGEST = 65504.f;

enum : int { NORM, MMSE, UNBIASED };

// Which page a CTA has: blockIdx.x counts moves and heads, blockIdx.y layers.
struct Work {
  const u16* plain;
  u8* packed;
  i64 index;
};
DEV Work find_work(const u16* const* plain, const i64* from, u8* const* packed, const i64* to, int heads) {
  const int move = blockIdx.x / heads, head = blockIdx.x % heads, layer = blockIdx.y;
  return {plain[layer] + (from[move] * heads + head) * PAGE * D,
          packed[layer] + (to[move] * heads + head) * PAGE_BYTES, (i64)layer * gridDim.x + blockIdx.x};
}

DEV float sane(float x) { return x == x ? fminf(fmaxf(x, -LARGEST), LARGEST) : 0.f; }

// V values of a token: channels CHUNK * chunk + V * lane on.
DEV void load_values(const u16* page, int token, int chunk, int lane, float (&x)[V]) {
  const u16* at = page + token * D + chunk * CHUNK + V * lane;
  if constexpr (V == 4) {
    const Pair p = *(const Pair*)at;
    two_floats(p.x, x[0], x[1]);
    two_floats(p.y, x[2], x[3]);
  } else two_floats(*(const u32*)at, x[0], x[1]);
#pragma unroll
  for (int i = 0; i < V; i++) x[i] = sane(x[i]);
}
// The same without the page's mean.
DEV void load_rest(const u16* page, const float* mean, int token, int chunk, int lane, float (&x)[V]) {
  load_values(page, token, chunk, lane, x);
  if constexpr (CENTRED) {
#pragma unroll
    for (int i = 0; i < V; i++) x[i] = fminf(fmaxf(x[i] - mean[chunk * CHUNK + V * lane + i], -LARGEST), LARGEST);
  }
}

// Over the lanes whose values share a gain.
DEV float sum_span(float x) {
#pragma unroll
  for (int i = GROUP / 2; i; i /= 2) x += __shfl_xor_sync(~0u, x, i);
  return x;
}
DEV float max_span(float x) {
#pragma unroll
  for (int i = GROUP / 2; i; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
  return x;
}

DEV void store_half(u8* section, int token, int chunk, int lane, float value) {
  const int span = (chunk * CHUNK + V * lane) / SPAN;
  if (lane % GROUP == 0) *(u16*)(section + 128 * span + 2 * gain_place(token)) = to_half(value);
}

// sums of squares of x, of products with the levels c, of squares of c
DEV float fit_gain(float xx, float xc, float cc) {
  const float top = RULE == NORM ? sqrtf(xx) : RULE == MMSE ? xc : xx;
  const float bottom = RULE == NORM ? sqrtf(cc) : RULE == MMSE ? cc : xc;
  const float g = bottom > 0.f ? top / bottom : 0.f;
  return g == g ? fminf(fmaxf(g, 0.f), LARGEST) : 0.f;
}
