// A page becomes tiles for Hopper's products: keys as float16, a row of channels for each token; values as bfloat16, a row of
// tokens for each channel. Rows, and the tokens of a row of values, stand at turned() places: lanes that store together then
// meet in no bank.
#pragma once
#include "hopper.cuh"
#include "page.cuh"

using Keys = PageOf<KF, CENTRED>;
using Values = PageOf<VF, false>;
constexpr int SIDE_TILE = PAGE * D * 2;  // bytes

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

// The mean of a lane's eight channels from `channel` on.
DEV void read_mean(const u8* page, int channel, u32 (&mean)[4]) {
  const Pair codes = *(const Pair*)(page + Keys::MEAN + channel);
  const u32 gain = twice(*(const u16*)(page + Keys::MEAN + D)), zero = half_bits(-1152.f);
  const Pair low = to_halves(codes.x ^ 0x80808080u), high = to_halves(codes.y ^ 0x80808080u);
  const u32 two[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
  for (int i = 0; i < 4; i++) mean[i] = multiply_add_f16(add_f16(two[i], zero), gain, 0u);
}

DEV u32 key_row(Place at) { return at.channel / 64 * (SIDE_TILE * 64 / D) + swizzled(turned(at.token), at.channel % 64 / 8); }

DEV void unpack_keys(const u8* page, int lane, int part, u32 table, u8* tile) {
  constexpr float WHOLE = (int)Keys::ZERO, REST = Keys::ZERO - WHOLE;  // 1024 + half a step is no half
  Part p;
  read_part<Keys>(page, lane, part, table, p);
  u32 mean[D / 32][4] = {};
#pragma unroll
  for (int s = 0; CENTRED && s < D / 32; s++) read_mean(page, 32 * s + 8 * (lane % 4), mean[s]);
  const u32 zero = half_bits(-1024.f - WHOLE);
#pragma unroll
  for (int g = 0; g < 8; g++) {
    const Place at = key_place(lane, part, g);
    const u8* gains = page + Keys::GAINS + 128 * (at.channel / Keys::SPAN) + 2 * gain_place(at.token);
    const float gain = factor(KF) * from_half(*(const u16*)gains);
    const u32 by = half_bits(gain);
    u32 least = 0;
    if constexpr (has_minimum(KF)) least = twice(*(const u16*)(gains + Keys::MINS - Keys::GAINS));
    if constexpr (REST != 0.f) least = half_bits(-REST * gain);
    const Pair codes = in_order<KF>(p.words[g / 4][2 * (g % 4)], p.words[g / 4][2 * (g % 4) + 1]);
    const Pair low = to_halves(codes.x), high = to_halves(codes.y);
    u32 y[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 base = CENTRED ? mean[8 * g % (D / 4) / 8][i] : least;
      if constexpr (CENTRED && (has_minimum(KF) || REST != 0.f)) base = add_f16(base, least);
      y[i] = multiply_add_f16(add_f16(y[i], zero), by, base);
    }
    *(Quad*)(tile + key_row(at)) = {y[0], y[1], y[2], y[3]};
  }
}

// Sixteen tokens of one channel: word k of each eight holds tokens turned(2k) and that + 4.
DEV void store_values(u8* tile, Place at, const u32 (&y)[8]) {
  const int quad = at.token / 8;
  *(Quad*)(tile + swizzled(turned(at.channel), quad)) = {y[0], y[1], y[2], y[3]};
  *(Quad*)(tile + swizzled(turned(at.channel), quad + 1)) = {y[4], y[5], y[6], y[7]};
}

DEV void unpack_values(const u8* page, int lane, int part, u32 table, u8* tile) {
  Part p;
  read_part<Values>(page, lane, part, table, p);
  const Place at = value_place(lane, part);
  float gain[16], base[16] = {};
  read_gains(page + Values::GAINS + 128 * (32 * part / Values::SPAN), lane, factor(VF), gain);
  if constexpr (has_minimum(VF)) read_gains(page + Values::MINS + 128 * (32 * part / Values::SPAN), lane, 1.f, base);
#pragma unroll
  for (int j = 0; j < 16; j++) base[j] -= (BYTE_ONE + Values::ZERO) * gain[j];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 y[8];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const u32* w = p.words[i / 2] + 4 * (i % 2) + 2 * n;
      const Pair codes = in_order<VF>(w[0], w[1]);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const int b = turned(2 * k), j = 8 * n + b;
        y[4 * n + k] = pack_bf16(fmaf(biased(codes.x, b), gain[j], base[j]), fmaf(biased(codes.y, b), gain[j + 4], base[j + 4]));
      }
    }
    store_values(tile, {at.token, at.channel + i}, y);
  }
}

DEV u32 key_halves(u32 two) {  // of the model's type; beyond a half's range: its largest
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
    *(Quad*)(tile + key_row(at)) = {key_halves(x.x), key_halves(x.y), key_halves(x.z), key_halves(x.w)};
  }
}
// Tokens from `end` on hold anything, and count as 0.
DEV void copy_values(const u16* page, int lane, int part, int end, u8* tile) {
  const Place at = value_place(lane, part);
  u16 x[16][4];
#pragma unroll
  for (int j = 0; j < 16; j++) {
    const Pair two = *(const Pair*)(page + (at.token + j) * D + at.channel);
    const u32 words[2] = {two.x, two.y};
#pragma unroll
    for (int i = 0; i < 4; i++) x[j][i] = at.token + j < end ? (u16)(words[i / 2] >> 16 * (i % 2)) : (u16)0;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 y[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int j = turned(2 * k);  // 8 (k / 4) and more
#if HALF
      y[k] = pack_bf16(from_half(x[j][i]), from_half(x[j + 4][i]));
#else
      y[k] = x[j][i] | (u32)x[j + 4][i] << 16;
#endif
    }
    store_values(tile, {at.token, at.channel + i}, y);
  }
}
