// Adds probabilities × one packed value page to the accumulators. Values are the A operand, 16 channels a tile,
// probabilities as int8 against the page's peak are B.
#pragma once
#include "layout.cuh"
#include "scores.cuh"

struct Sums {
  float top[R][2], sum[R][2];  // of rows 2t + e + 8r: reference of exponents (log2), this lane's part of the denominator
  float acc[R][VD / 16][4];    // tile 2s + m: channels 32s + 4c + 2m and + 1 (pairs) of rows e = 0, 1
  float bias[R][2];            // what acc has too much: the zeros of accumulators that were added as they are
  u32 empty;                   // bit 2r + e: the row has seen nothing so far
  float low[has_minimum(VF) ? VSPANS : 1][R][2];  // this lane's part of sum(p · minimum)
};

DEV u32 low_bytes(float a, float b, float c, float d) {
  return prmt(prmt(__float_as_uint(a), __float_as_uint(b), 0x0040), prmt(__float_as_uint(c), __float_as_uint(d), 0x0040), 0x5410);
}

// w[i]: tokens 2i and 2i + 1 of the lane's eight as bytes, of row e = 0, then of row 1 → B of both products: row c's
// tokens 16t .. + 15.
DEV void to_operand(u32 (&w)[4], u32 (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = transpose(w[i]);  // bytes now: tokens 4i, 4i + 2, 4i + 1, 4i + 3
#pragma unroll
  for (int i = 0; i < 4; i++)
    b[i] = is_split(VF) ? prmt(w[i / 2 * 2], w[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410) : prmt(w[i], w[i], 0x3120);
}

// p · gain / step rounded; `low` takes what rounding left, 254 times finer.
DEV void quantise(const float (&x)[8][2], u32 (&high)[4], u32 (&low)[4]) {
  u32 w[4], l[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float h[4], f[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const float value = x[2 * i + n % 2][n / 2];
      h[n] = value + MAGIC;
      if constexpr (V_FINE) f[n] = (value - (h[n] - MAGIC)) * 254.f + MAGIC;
    }
    w[i] = low_bytes(h[0], h[1], h[2], h[3]);
    if constexpr (V_FINE) l[i] = low_bytes(f[0], f[1], f[2], f[3]);
  }
  to_operand(w, high);
  if constexpr (V_FINE) to_operand(l, low);
}

// The same in pairs of bf16, p · gain in, steps out: 128 + n has n in its low byte.
DEV void quantise_pairs(const float (&p)[8][2], const float (&g)[8], u32 (&high)[4], float (&step)[2]) {
  u32 y[4][2], peak[2], scale[2], w[4];
#pragma unroll
  for (int e = 0; e < 2; e++) {
#pragma unroll
    for (int i = 0; i < 4; i++) y[i][e] = pack_bf16(p[2 * i][e] * g[2 * i], p[2 * i + 1][e] * g[2 * i + 1]);
    peak[e] = max_bf16(max_bf16(y[0][e], y[1][e]), max_bf16(y[2][e], y[3][e]));
  }
  u32 both = max_bf16(prmt(peak[0], peak[1], 0x5410), prmt(peak[0], peak[1], 0x7632));
#pragma unroll
  for (int i = 4; i < 32; i *= 2) both = max_bf16(both, __shfl_xor_sync(~0u, both, i));
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const float most = fmaxf(e ? high_bf16(both) : low_bf16(both), 1e-30f), inverse = 126.4f * rcp_(most);
    scale[e] = pack_bf16(inverse, inverse);
    step[e] = rcp_(low_bf16(scale[e])) * factor(VF);
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
    w[i] = prmt(fma_bf16(y[i][0], scale[0], 0x43004300u), fma_bf16(y[i][1], scale[1], 0x43004300u), 0x6420);
  to_operand(w, high);
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

// Sixteen channels: the first and the last 32 tokens.
DEV void value_operands(const u32 (&unit)[8], Quad (&o)[2]) {
  o[0] = {unit[0], unit[4], unit[1], unit[5]};
  o[1] = {unit[2], unit[6], unit[3], unit[7]};
}

DEV void multiply(const Quad (&o)[2], const u32 (&p)[4], const int (&from)[4], int (&sum)[4]) {
  const u32 first[2] = {p[0], p[1]}, second[2] = {p[2], p[3]};
  imma(sum, o[0].x, o[0].y, o[0].z, o[0].w, first, from);
  imma(sum, o[1].x, o[1].y, o[1].z, o[1].w, second, sum);
}

constexpr bool V_LOW_BASE = V_FINE && offset(VF) != 0.f;

struct Weights {  // probabilities × gains as bytes, and what a byte is worth
  u32 high[R][4], low[V_FINE ? R : 1][4];
  float base[R][2], step[R][2];  // base: what the accumulators read for a sum of 0
  float low_base[V_LOW_BASE ? R : 1][2];
};

// The weights of a page whose values have one gain a token; what the accumulators get too much goes to the bias.
DEV void weigh_coarsely(const u8* page, int lane, const float (&p)[R][8][2], Weights& w, Sums& s) {
  float g[8];
  load_gains(page + VS_CODES + VS_NEXT, lane, g);
#pragma unroll
  for (int r = 0; r < R; r++) {
    quantise_pairs(p[r], g, w.high[r], w.step[r]);
    zero_levels(w.high[r], w.base[r]);
    for (int e = 0; e < 2; e++) s.bias[r][e] += w.base[r][e] * w.step[r][e];
  }
}

// Adds weights × the values of one span.
DEV void add_values(const Constants& k, const u8* values, const u8* shared, int lane, int span, const Weights& w, Sums& s) {
  const Quad* codes = (const Quad*)values + lane;
  const u32 table = shared_address(shared) + S_VTABLE + 4 * lane;
#pragma unroll
  for (int n = 0; n < VSPAN / 16; n++) {
    const int tile = span * VSPAN / 16 + n;
    u32 unit[8];
    Quad o[2];
    read_unit<VF, 2 * VD / 32, VS_NEXT == 0>(codes, tile, table, k.levels, unit);
    value_operands(unit, o);
#pragma unroll
    for (int r = 0; r < R; r++) {
      int sum[4], fine[4];
      multiply(o, w.high[r], k.zero, sum);
      if constexpr (V_FINE) multiply(o, w.low[r], k.zero, fine);
#pragma unroll
      for (int v = 0; v < 4; v++) {
        float x = __int_as_float(sum[v]);
        if constexpr (!V_COARSE) x -= w.base[r][v % 2];  // else left to the bias, which saves this on every value
        if constexpr (V_FINE) x += (__int_as_float(fine[v]) - (V_LOW_BASE ? w.low_base[r][v % 2] : MAGIC)) * LOW;
        s.acc[r][tile][v] += x * w.step[r][v % 2];
      }
    }
  }
}

DEV void packed_values(const Constants& k, const u8* values, const u8* shared, int lane, float (&p)[R][8][2], Sums& s) {
  Weights w;
  if constexpr (V_COARSE) {
    weigh_coarsely(values, lane, p, w, s);
    add_values(k, values, shared, lane, 0, w, s);
    return;
  }
  const u8* gains = values + VS_CODES + VS_NEXT;
  float g[8];
  if constexpr (V_OWN_STEPS) {
#pragma unroll
    for (int b = 0; b < VSPANS; b++) {
      load_gains(gains + 128 * b, lane, g);
#pragma unroll
      for (int r = 0; r < R; r++) {
        float x[8][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float peak = 1e-30f;
#pragma unroll
          for (int j = 0; j < 8; j++) {
            x[j][e] = p[r][j][e] * g[j];
            peak = fmaxf(peak, fabsf(x[j][e]));
          }
          peak = max_tokens(peak);
          const float scale = 127.f * rcp_(peak);
          w.step[r][e] = peak * (factor(VF) / 127.f);
#pragma unroll
          for (int j = 0; j < 8; j++) x[j][e] *= scale;
        }
        quantise(x, w.high[r], w.low[0]);
        zero_levels(w.high[r], w.base[r]);
      }
      add_values(k, values, shared, lane, b, w, s);
    }
    return;
  }
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
      float least[8], gain[8];
      load_gains(gains + VS_GAINS + 128 * b, lane, least);
      load_gains(gains + 128 * b, lane, gain);
#pragma unroll
      for (int j = 0; j < 8; j++) least[j] += offset(VF) * gain[j];
#pragma unroll
      for (int x = 0; x < 16 * R; x++) s.low[b][x / 16][x % 2] += p[x / 16][x / 2 % 8][x % 2] * least[x / 2 % 8];
    }
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
      w.step[r][e] = peak * (factor(VF) / 127.f);
#pragma unroll
      for (int j = 0; j < 8; j++) p[r][j][e] *= scale;
    }
#pragma unroll
  for (int b = 0; b < VSPANS; b++) {
    if (VSPANS > 1) load_gains(gains + 128 * b, lane, g);
#pragma unroll
    for (int r = 0; r < R; r++) {
      float x[8][2];
#pragma unroll
      for (int i = 0; i < 16; i++) x[i / 2][i % 2] = VSPANS > 1 ? p[r][i / 2][i % 2] * g[i / 2] : p[r][i / 2][i % 2];
      quantise(x, w.high[r], w.low[V_FINE ? r : 0]);
      zero_levels(w.high[r], w.base[r]);
      if constexpr (V_LOW_BASE) zero_levels(w.low[r], w.low_base[r]);
    }
    add_values(k, values, shared, lane, b, w, s);
  }
}

// Takes the bias out; often enough, acc has bits to spare for it.
DEV void settle(Sums& s) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
      for (int i = 0; i < VD / 16; i++) { s.acc[r][i][e] -= s.bias[r][e]; s.acc[r][i][2 + e] -= s.bias[r][e]; }
      s.bias[r][e] = 0.f;
    }
}
