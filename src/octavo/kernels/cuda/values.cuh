// Adds probabilities × one packed value page to the accumulators. Values are the A operand, 16 channels a tile, weights are
// B: probabilities × |gains| as unsigned bytes against the page's peak. A code whose gain is negative changes sign.
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

// p · |gain| / step rounded; `low` takes what rounding left, 254 times finer.
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

// Sixteen channels: the first and the last 32 tokens.
DEV void value_operands(const u32 (&unit)[8], Quad (&o)[2]) {
  o[0] = {unit[0], unit[4], unit[1], unit[5]};
  o[1] = {unit[2], unit[6], unit[3], unit[7]};
}

template <bool UNSIGNED = true> DEV void multiply(const Quad (&o)[2], const u32 (&p)[4], const int (&from)[4], int (&sum)[4]) {
  const u32 first[2] = {p[0], p[1]}, second[2] = {p[2], p[3]};
  imma<UNSIGNED>(sum, o[0].x, o[0].y, o[0].z, o[0].w, first, from);
  imma<UNSIGNED>(sum, o[1].x, o[1].y, o[1].z, o[1].w, second, sum);
}

// Codes c whose gain is negative become 2^bits - 1 - c, an exclusive or, which stands for the other sign of their level
// around an offset of one less: words of a lane's 16 tokens as unit words have them, of one span.
struct Flips { u32 word[4]; };
DEV Flips flips_of(const u8* gains, int lane) {
  Flips flips = {};
  if constexpr (signed_gains(VF)) {
    const Quad *q = (const Quad*)(gains + 32 * (lane & 3)), even = q[0], odd = q[1];
    const u32 ones = 0x01010101u * ((1 << VBITS) - 1);
    flips = {prmt(even.x, even.y, 0xFDB9) & ones, prmt(odd.x, odd.y, 0xFDB9) & ones,
             prmt(even.z, even.w, 0xFDB9) & ones, prmt(odd.z, odd.w, 0xFDB9) & ones};
  }
  return flips;
}

// Formats with an offset owe it times the sum of the weights: each weight times a byte of `each`, which is one more where
// codes flip. A product gives that to every lane without a shuffle.
DEV void sum_weights(const Flips& flips, u32 each, const u32 (&p)[4], const int (&from)[4], int (&sum)[4]) {
  u32 w[4];
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = each ^ (flips.word[i] & 0x01010101u);
  const Quad o[2] = {{w[0], w[0], w[1], w[1]}, {w[2], w[2], w[3], w[3]}};
  multiply(o, p, from, sum);
}
DEV void sum_weights(const u32 (&p)[4], int (&sum)[4]) {
  const int none[4] = {0, 0, 0, 0};
  sum_weights({}, 0x01010101u, p, none, sum);
}
// With several spans of gains accumulators start where they will read MAGIC for a sum of 0.
constexpr bool V_STARTS = VSPANS > 1 && offset(VF) != 0.f;
static_assert(V_STARTS || !signed_gains(VF), "one span's offset is owed without a sign");
DEV void start_span(const Constants& k, const Flips& flips, const u32 (&p)[4], int (&start)[4]) {
  constexpr int twice = (int)(2.f * offset(VF));
  if constexpr (twice % 2 == 0) return sum_weights(flips, 0x01010101u * (256 - twice / 2), p, k.zero, start);
  sum_weights(p, start);
#pragma unroll
  for (int i = 0; i < 4; i++) start[i] = MAGIC_BITS - (twice * start[i] >> 1);  // turbo4's half is rounded
}

struct Weights {  // probabilities × gains as bytes, and what a byte is worth
  u32 high[R][4], low[V_FINE ? R : 1][4];
  int start[V_STARTS ? R : 1][4];
  float step[R][2];
};

// What the accumulators get too much of each page goes to the bias.
DEV void note_bias(const Weights& w, int r, Sums& s) {
  float much[2] = {MAGIC, MAGIC};
  if constexpr (offset(VF) != 0.f && !V_STARTS) {
    int sum[4];
    sum_weights(w.high[r], sum);
#pragma unroll
    for (int e = 0; e < 2; e++) much[e] += offset(VF) * (float)sum[e];
  }
#pragma unroll
  for (int e = 0; e < 2; e++) s.bias[r][e] += (V_FINE ? much[e] + MAGIC * LOW : much[e]) * w.step[r][e];
}

// The weights of a page whose values have one gain a token.
DEV void weigh_coarsely(const u8* page, int lane, const float (&p)[R][8][2], Weights& w, Sums& s) {
  float g[8];
  load_gains(page + VS_CODES + VS_NEXT, lane, g);
#pragma unroll
  for (int r = 0; r < R; r++) {
    quantise_pairs(p[r], g, w.high[r], w.step[r]);
    note_bias(w, r, s);
  }
}

// Adds weights × the values of one span.
DEV void add_values(const Constants& k, const u8* values, const u8* shared, int lane, int span, const Flips& flips, const Weights& w, Sums& s) {
  const Quad* codes = (const Quad*)values + lane;
  const u32 table = shared_address(shared) + S_VTABLE + 4 * lane;
#pragma unroll
  for (int n = 0; n < VSPAN / 16; n++) {
    const int tile = span * VSPAN / 16 + n;
    u32 unit[8];
    Quad o[2];
    read_unit<VF, 2 * VD / 32, VS_NEXT == 0>(codes, tile, table, k.levels, unit);
    if constexpr (signed_gains(VF))
#pragma unroll
      for (int i = 0; i < 8; i++) unit[i] ^= flips.word[i % 4];
    value_operands(unit, o);
#pragma unroll
    for (int r = 0; r < R; r++) {
      int sum[4], fine[4];
      multiply(o, w.high[r], V_STARTS ? w.start[V_STARTS ? r : 0] : k.zero, sum);
      if constexpr (V_FINE) multiply<false>(o, w.low[r], k.zero, fine);
#pragma unroll
      for (int v = 0; v < 4; v++) {
        float x = __int_as_float(sum[v]);
        if constexpr (V_FINE) x += __int_as_float(fine[v]) * LOW;
        s.acc[r][tile][v] += x * w.step[r][v % 2];
      }
    }
  }
}

DEV void packed_values(const Constants& k, const u8* values, const u8* shared, int lane, float (&p)[R][8][2], Sums& s) {
  Weights w;
  if constexpr (V_COARSE) {
    weigh_coarsely(values, lane, p, w, s);
    add_values(k, values, shared, lane, 0, {}, w, s);
    return;
  }
  const u8* gains = values + VS_CODES + VS_NEXT;
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
    for (int e = 0; e < 2; e++) {  // after this p is in steps of the page's peak / 255, gains within where VSPANS is 1
      float peak = 0.f;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float x = p[r][j][e] * fabsf(g[j]);
        if (VSPANS == 1) p[r][j][e] = x;
        peak = fmaxf(peak, x);
      }
      peak = fmaxf(max_tokens(peak), 1e-30f);
      const float scale = 255.f * rcp_(peak);
      w.step[r][e] = peak * (factor(VF) / 255.f);
#pragma unroll
      for (int j = 0; j < 8; j++) p[r][j][e] *= scale;
    }
#pragma unroll
  for (int b = 0; b < VSPANS; b++) {
    if (VSPANS > 1) load_gains(gains + 128 * b, lane, g);
    const Flips flips = flips_of(gains + 128 * b, lane);
#pragma unroll
    for (int r = 0; r < R; r++) {
      float x[8][2];
#pragma unroll
      for (int i = 0; i < 16; i++) x[i / 2][i % 2] = VSPANS > 1 ? p[r][i / 2][i % 2] * fabsf(g[i / 2]) : p[r][i / 2][i % 2];
      quantise(x, w.high[r], w.low[V_FINE ? r : 0]);
      if constexpr (V_STARTS) start_span(k, flips, w.high[r], w.start[r]);
      if (b == 0) note_bias(w, r, s);
    }
    add_values(k, values, shared, lane, b, flips, w, s);
  }
}
