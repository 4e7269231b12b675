// A page becomes tiles of halves for Hopper's products: a row of channels for each token's key, a row of tokens for each
// channel of the values. Rows, and the tokens of a row of values, stand at turned() places: lanes that store together then
// meet in no bank.
#pragma once
#include "hopper.cuh"
#include "page.cuh"

using Keys = PageOf<KF, CENTRED>;
using Values = PageOf<VF, false>;
// Eight rows more: the page's mean key in each, whose product with a query is added to its scores; ones, whose product with
// the weights is their sum.
constexpr int KEY_ROWS = PAGE + (CENTRED ? 8 : 0), VALUE_ROWS = D + 8;
constexpr int KEY_HALF = KEY_ROWS * 128, KEY_TILE = KEY_HALF * D / 64, VALUE_TILE = VALUE_ROWS * 128;  // bytes; a half is of 64 channels

// The token or channel at a place, and the place of one: bits 0 and 2 change over.
__host__ __device__ constexpr int turned(int i) { return (i & ~5) | (i >> 2 & 1) | (i & 1) << 2; }

// Four codes, bytes in order, as halves 1024 + b.
DEV Pair to_halves(u32 word) { return {prmt(word, 0x64646464u, 0x4140), prmt(word, 0x64646464u, 0x4342)}; }
// Words of a run of eight codes, four in each, in order.
template <int F> DEV Pair in_order(u32 a, u32 b) {
  return is_split(F) ? Pair{prmt(a, b, 0x5140), prmt(a, b, 0x7362)} : Pair{a, b};
}
DEV u32 twice(u16 half) { return half | (u32)half << 16; }
DEV u32 half_bits(float x) { return pack_f16(x, x); }
template <int F> DEV u32 times_factor(u32 two) { return factor(F) == 2.f ? add_f16(two, two) : two; }

// Where eight channels of a key begin in its tile; where eight tokens of a channel of the values do.
__host__ __device__ constexpr u32 key_row(Place at) {
  return at.channel / 64 * KEY_HALF + swizzled(turned(at.token), at.channel % 64 / 8);
}
__host__ __device__ constexpr u32 value_row(Place at) { return swizzled(turned(at.channel), at.token / 8); }
// A place of a lane from its first and from lane 0's: each bit of either decides bits of its own, those of the swizzle add up.
__host__ __device__ constexpr u32 along(u32 first, u32 of_lane_0) { return (first ^ of_lane_0 % 128) + of_lane_0 / 128 * 128; }

// A part as it is read. Keys' and values' are read before anything is stored: the compiler cannot know that stores leave the
// packed page alone.
struct KeyWords { u32 codes[Keys::WORDS + 1]; u16 gain[8], least[8]; };
struct ValueWords { u32 codes[Values::WORDS + 1]; u32 gain[8], least[8]; };

DEV void load_keys(const u8* page, int lane, int part, KeyWords& w) {
  load_words<Keys>(page, lane, part, w.codes);
#pragma unroll
  for (int g = 0; g < 8; g++) {
    const Place first = key_place(lane, part, 0), at = key_place(0, 0, g);
    const u8* gains = page + Keys::GAINS + 128 * (at.channel / Keys::SPAN) + 2 * (gain_place(first.token) + gain_place(at.token));
    w.gain[g] = *(const u16*)gains;
    w.least[g] = has_minimum(KF) ? *(const u16*)(gains + Keys::MINS - Keys::GAINS) : (u16)0;
  }
}
DEV void store_keys(const KeyWords& w, int lane, int part, u32 table, u8* tile) {
  constexpr float WHOLE = (int)Keys::ZERO, REST = Keys::ZERO - WHOLE;  // 1024 + half a step is no half
  const Place first = key_place(lane, part, 0);
  Part p;
  spread<Keys>(w.codes, table, p);
  u32 gain[8], least[8];
#pragma unroll
  for (int g = 0; g < 8; g++) {
    gain[g] = times_factor<KF>(twice(w.gain[g]));
    least[g] = twice(w.least[g]);
    if constexpr (REST != 0.f) least[g] = multiply_add_f16(gain[g], half_bits(-REST), least[g]);
  }
  const u32 zero = half_bits(-1024.f - WHOLE);
#pragma unroll
  for (int g = 0; g < 8; g++) {
    const Pair codes = in_order<KF>(p.words[g / 4][2 * (g % 4)], p.words[g / 4][2 * (g % 4) + 1]);
    const Pair low = to_halves(codes.x), high = to_halves(codes.y);
    u32 y[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = multiply_add_f16(add_f16(y[i], zero), gain[g], least[g]);
    *(Quad*)(tile + along(key_row(first), key_row(key_place(0, 0, g)))) = {y[0], y[1], y[2], y[3]};
  }
}

// A warp's share of the rows behind the keys; `page` nullptr: there is no mean.
DEV void store_mean(const u8* page, int lane, int warp, u8* tile) {
  constexpr int QUADS = D / 8, AT_ONCE = 32 / QUADS;  // of eight channels; rows
#pragma unroll
  for (int i = 0; i < 2; i += AT_ONCE) {
    const int quad = lane % QUADS, row = 2 * warp + i + lane / QUADS % 2;
    u32 y[4] = {};
    if (page) {
      const Pair codes = *(const Pair*)(page + Keys::MEAN + 8 * quad);
      const u32 gain = twice(*(const u16*)(page + Keys::MEAN + D)), zero = half_bits(-1152.f);
      const Pair low = to_halves(codes.x ^ 0x80808080u), high = to_halves(codes.y ^ 0x80808080u);
      const u32 two[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
      for (int n = 0; n < 4; n++) y[n] = multiply_add_f16(add_f16(two[n], zero), gain, 0u);
    }
    *(Quad*)(tile + quad / 8 * KEY_HALF + swizzled(PAGE + row, quad % 8)) = {y[0], y[1], y[2], y[3]};
  }
}

// Sixteen tokens of a lane's channel i: word k of each eight holds tokens turned(2k) and that + 4.
DEV void store_channel(u8* tile, Place first, int i, const u32 (&y)[8]) {
#pragma unroll
  for (int n = 0; n < 2; n++)
    *(Quad*)(tile + along(value_row(first), value_row({8 * n, i}))) = {y[4 * n], y[4 * n + 1], y[4 * n + 2], y[4 * n + 3]};
}
// Gains (or minima) of a lane's 16 tokens in the order of store_channel: the even ones lie first.
DEV void read_pairs(const u8* gains, int lane, u32 (&pair)[8]) {
  const Quad* q = (const Quad*)(gains + 32 * (lane % 4));
#pragma unroll
  for (int odd = 0; odd < 2; odd++) {
    const Quad x = q[odd];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      pair[2 * odd + i] = prmt(x.x, x.y, i ? 0x7632 : 0x5410);
      pair[4 + 2 * odd + i] = prmt(x.z, x.w, i ? 0x7632 : 0x5410);
    }
  }
}
// Of eight tokens' codes: 0, 4, 2, 6 and 1, 5, 3, 7.
template <int F> DEV Pair even_odd(u32 a, u32 b) {
  return is_split(F) ? Pair{prmt(a, a, 0x3120), prmt(b, b, 0x3120)} : Pair{prmt(a, b, 0x6240), prmt(a, b, 0x7351)};
}

DEV void load_values(const u8* page, int lane, int part, ValueWords& w) {
  const u8* gains = page + Values::GAINS + 128 * (32 * part / Values::SPAN);
  load_words<Values>(page, lane, part, w.codes);
  read_pairs(gains, lane, w.gain);
#pragma unroll
  for (int i = 0; i < 8; i++) w.least[i] = 0;
  if constexpr (has_minimum(VF)) read_pairs(gains + Values::MINS - Values::GAINS, lane, w.least);
}
DEV void store_values(const ValueWords& w, int lane, int part, u32 table, u8* tile) {
  constexpr float WHOLE = (int)Values::ZERO, REST = Values::ZERO - WHOLE;
  const Place at = value_place(lane, part);
  Part p;
  spread<Values>(w.codes, table, p);
  u32 gain[8], base[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    gain[i] = times_factor<VF>(w.gain[i]);
    base[i] = REST != 0.f ? multiply_add_f16(gain[i], half_bits(-REST), w.least[i]) : w.least[i];
  }
  const u32 zero = half_bits(-1024.f - WHOLE);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 y[8];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const u32* run = p.words[i / 2] + 4 * (i % 2) + 2 * n;
      const Pair codes = even_odd<VF>(run[0], run[1]), even = to_halves(codes.x), odd = to_halves(codes.y);
      const u32 two[4] = {even.x, even.y, odd.x, odd.y};
#pragma unroll
      for (int k = 0; k < 4; k++) y[4 * n + k] = multiply_add_f16(add_f16(two[k], zero), gain[4 * n + k], base[4 * n + k]);
    }
    store_channel(tile, at, i, y);
  }
}

DEV u32 model_halves(u32 two) {  // of the model's type; beyond a half's range: its largest
#if HALF
  return two;
#else
  return pack_f16(fminf(fmaxf(low_bf16(two), -65504.f), 65504.f), fminf(fmaxf(high_bf16(two), -65504.f), 65504.f));
#endif
}
DEV void copy_keys(const u16* page, int lane, int part, u8* tile) {
#pragma unroll
  for (int g = 0; g < 8; g++) {
    const Place at = key_place(lane, part, g);
    const Quad x = *(const Quad*)(page + at.token * D + at.channel);
    *(Quad*)(tile + along(key_row(key_place(lane, part, 0)), key_row(key_place(0, 0, g)))) = {model_halves(x.x), model_halves(x.y), model_halves(x.z), model_halves(x.w)};
  }
}
// Tokens from `end` on hold anything, and count as 0.
DEV void copy_values(const u16* page, int lane, int part, int end, u8* tile) {
  const Place at = value_place(lane, part);
  u32 x[16][2];
#pragma unroll
  for (int j = 0; j < 16; j++) {
    const Pair two = *(const Pair*)(page + (at.token + j) * D + at.channel);
    x[j][0] = at.token + j < end ? two.x : 0u;
    x[j][1] = at.token + j < end ? two.y : 0u;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 y[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int j = turned(2 * k);  // 8 (k / 4) and more
      y[k] = model_halves(prmt(x[j][i / 2], x[j + 4][i / 2], i % 2 ? 0x7632 : 0x5410));
    }
    store_channel(tile, at, i, y);
  }
}
