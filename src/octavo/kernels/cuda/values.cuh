// Adds probabilities × one packed value page to the accumulators. Values are the A operand, 16 channels a tile,
// probabilities as int8 against the page's peak are B.
#pragma once
#include "layout.cuh"
#include "scores.cuh"

struct Sums {
  float top[R][2], sum[R][2];  // of rows 2t + e + 8r: running maximum (log2 units), this lane's part of the denominator
  float acc[R][VD / 16][4];    // tile 2s + m: channels 32s + 4c + 2m and + 1 (pairs) of rows e = 0, 1
  float low[has_minimum(VF) ? VSPANS : 1][R][2];  // this lane's part of sum(p · minimum)
};

DEV u32 low_bytes(float a, float b, float c, float d) {
  return prmt(prmt(__float_as_uint(a), __float_as_uint(b), 0x0040), prmt(__float_as_uint(c), __float_as_uint(d), 0x0040), 0x5410);
}

// x[j][e] in ±127 → B of both products: row c's tokens 16t .. + 15. Lanes hold other rows' tokens before.
DEV void to_operand(const float (&x)[8][2], u32 (&b)[4]) {
  u32 w[4];
#pragma unroll
  for (int i = 0; i < 4; i++)  // bytes after: tokens 4i, 4i + 2, 4i + 1, 4i + 3
    w[i] = transpose(low_bytes(x[2 * i][0], x[2 * i + 1][0], x[2 * i][1], x[2 * i + 1][1]));
#pragma unroll
  for (int i = 0; i < 4; i++)
    b[i] = is_split(VF) ? prmt(w[i / 2 * 2], w[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410) : prmt(w[i], w[i], 0x3120);
}

// p · gain / step rounded; `low` takes what rounding left, 254 times finer.
DEV void quantise(const float (&x)[8][2], u32 (&high)[4], u32 (&low)[4]) {
  float h[8][2], l[8][2];
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      h[j][e] = x[j][e] + MAGIC;
      if constexpr (V_FINE) l[j][e] = (x[j][e] - (h[j][e] - MAGIC)) * 254.f + MAGIC;
    }
  to_operand(h, high);
  if constexpr (V_FINE) to_operand(l, low);
}

// What the accumulators read for a sum of 0: formats with an offset owe offset · sum(p), which a product with
// ones gives to every lane without a shuffle.
DEV void zero_levels(const u32 (&p)[4], float (&base)[2]) {
  base[0] = base[1] = MAGIC;
  if constexpr (offset(VF) != 0.f) {
    const u32 one = 0x01010101u, first[2] = {p[0], p[1]}, second[2] = {p[2], p[3]};
    int sum[4] = {0, 0, 0, 0};
    imma(sum, one, one, one, one, first, sum);
    imma(sum, one, one, one, one, second, sum);
    base[0] += offset(VF) * (float)sum[0];
    base[1] += offset(VF) * (float)sum[1];
  }
}

DEV void packed_values(const Constants& k, const u8* page, const u8* shared, int lane, float (&p)[R][8][2], Sums& s) {
  const u8* gains = page + VS_CODES;
  float g[8];
  if (VSPANS == 1) load_gains(gains, lane, g);
  else
#pragma unroll
    for (int b = 0; b < VSPANS; b++) {  // the largest |gain| over the spans, per token
      float x[8];
      load_gains(gains + 128 * b, lane, x);
#pragma unroll
      for (int j = 0; j < 8; j++) g[j] = b == 0 ? fabsf(x[j]) : fmaxf(g[j], fabsf(x[j]));
    }
  if constexpr (has_minimum(VF))
#pragma unroll
    for (int b = 0; b < VSPANS; b++) {
      float least[8];
      load_gains(gains + VS_GAINS + 128 * b, lane, least);
#pragma unroll
      for (int x = 0; x < 16 * R; x++) s.low[b][x / 16][x % 2] += p[x / 16][x / 2 % 8][x % 2] * least[x / 2 % 8];
    }
  float step[R][2];
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {  // after this p is in steps of the page's peak / 127, gains within where VSPANS is 1
      float peak = 0.f;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float x = p[r][j][e] * g[j];
        if (VSPANS == 1) p[r][j][e] = x;
        peak = fmaxf(peak, x);
      }
      peak = fmaxf(max_tokens(peak), 1e-30f);
      const float scale = 127.f * rcp_(peak);
      step[r][e] = peak * (factor(VF) / 127.f);
#pragma unroll
      for (int j = 0; j < 8; j++) p[r][j][e] *= scale;
    }
  const Quad* codes = (const Quad*)page + lane;
  const u32 table = shared_address(shared) + S_VTABLE + 4 * lane;
#pragma unroll
  for (int b = 0; b < VSPANS; b++) {
    u32 high[R][4], low[R][4];
    float base[R][2];
    if (VSPANS > 1) load_gains(gains + 128 * b, lane, g);
#pragma unroll
    for (int r = 0; r < R; r++) {
      float x[8][2];
#pragma unroll
      for (int i = 0; i < 16; i++) x[i / 2][i % 2] = VSPANS > 1 ? p[r][i / 2][i % 2] * g[i / 2] : p[r][i / 2][i % 2];
      quantise(x, high[r], low[r]);
      zero_levels(high[r], base[r]);
    }
#pragma unroll
    for (int tile = b * VSPAN / 16; tile < (b + 1) * VSPAN / 16; tile++) {
      u32 o[8];
      read_unit<VF, 2 * VD / 32>(codes, tile, table, k.levels, o);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const u32 first[2] = {high[r][0], high[r][1]}, second[2] = {high[r][2], high[r][3]};
        int sum[4], fine[4];
        imma(sum, o[0], o[4], o[1], o[5], first, k.zero);
        imma(sum, o[2], o[6], o[3], o[7], second, sum);
        if constexpr (V_FINE) {
          const u32 third[2] = {low[r][0], low[r][1]}, fourth[2] = {low[r][2], low[r][3]};
          imma(fine, o[0], o[4], o[1], o[5], third, k.zero);
          imma(fine, o[2], o[6], o[3], o[7], fourth, fine);
        }
#pragma unroll
        for (int v = 0; v < 4; v++) {
          float x = __int_as_float(sum[v]) - base[r][v % 2];
          if constexpr (V_FINE) x += (__int_as_float(fine[v]) - MAGIC) * LOW;
          s.acc[r][tile][v] += x * step[r][v % 2];
        }
      }
    }
  }
}
