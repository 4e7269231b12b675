// From codes in shared memory, token by token, to what lanes own of a page.
#pragma once
#include "seal.cuh"

// Codes of a page in shared memory, token by token; wider while the walk is to come.
template <bool> struct Kept { typedef u8 Type; };
template <> struct Kept<true> { typedef short Type; };
typedef Kept<is_trellis(FORMAT)>::Type Code;
constexpr int ROW = D + 8;

// Codes in a lane's order, four a word, from rows of codes.
DEV void gather(const u8* codes, int lane, int part, u32 (&o)[2][8]) {
  if constexpr (KEYS) {
#pragma unroll
    for (int g = 0; g < 8; g++) {
      const Place at = key_place(lane, part, g);
      const Pair p = *(const Pair*)(codes + at.token * ROW + at.channel);
      o[g / 4][2 * (g % 4)] = p.x; o[g / 4][2 * (g % 4) + 1] = p.y;
    }
  } else {
    const Place at = value_place(lane, part);
#pragma unroll
    for (int q = 0; q < 4; q++) {
      u32 x[4];
#pragma unroll
      for (int n = 0; n < 4; n++) x[n] = *(const u32*)(codes + (at.token + 4 * q + n) * ROW + at.channel);
      transpose_bytes(x);
#pragma unroll
      for (int i = 0; i < 4; i++) o[i / 2][4 * (i % 2) + q] = x[i];
    }
  }
}

// 32 codes, four a word, → the BITS words of their unit (octavo/formats/tile.py).
DEV void pack_unit(const u32 (&o)[8], u32* w) {
  u32 even[4], odd[4], nibbles[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    even[i] = prmt(o[2 * i], o[2 * i + 1], 0x6420);
    odd[i] = prmt(o[2 * i], o[2 * i + 1], 0x7531);
    nibbles[i] = (even[i] & 0x0F0F0F0Fu) | (odd[i] & 0x0F0F0F0Fu) << 4;
  }
  if constexpr (BITS == 8) {
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = o[i];
  } else if constexpr (BITS == 2) {
#pragma unroll
    for (int i = 0; i < 4; i++) nibbles[i] = (nibbles[i] | nibbles[i] >> 2) & 0x0F0F0F0Fu;
#pragma unroll
    for (int i = 0; i < 4; i++) nibbles[i] |= nibbles[i] >> 4;
    w[0] = prmt(nibbles[0], nibbles[1], 0x6420);
    w[1] = prmt(nibbles[2], nibbles[3], 0x6420);
  } else if constexpr (BITS == 3) {
#pragma unroll
    for (int i = 0; i < 3; i++) w[i] = nibbles[i] | (nibbles[3] >> i & 0x11111111u) << 3;
  } else {
    constexpr u32 high = BITS == 5 ? 0x10101010u : BITS == 6 ? 0x30303030u : 0u;
#pragma unroll
    for (int i = 0; i < BITS; i++) w[i] = i < 4 ? nibbles[i] : 0;
#pragma unroll
    for (int i = 0; i < 4 && high; i++) {
      if constexpr (BITS == 5) w[4] |= (even[i] & high) >> 4 << 2 * i | (odd[i] & high) >> 4 << 2 * i + 1;
      if constexpr (BITS == 6) w[4 + i / 2] |= (even[i] & high) >> 4 << 4 * (i % 2) | (odd[i] & high) >> 4 << 4 * (i % 2) + 2;
    }
  }
}
DEV void store_part(const u8* codes, u8* out, int lane, int part) {
  u32 o[2][8], w[WORDS];
  gather(codes, lane, part, o);
  pack_unit(o[0], w);
  pack_unit(o[1], w + BITS);
#pragma unroll
  for (int i = 0; i < WORDS; i += 2) *(Pair*)(out + word_at(part * WORDS + i, lane)) = {w[i], w[i + 1]};
}

// A lane's stream, eight values at a time: [2 D / 8][lane][8].
DEV void store_stream(const short* codes, Quad* stream, int lane, int part) {
#pragma unroll
  for (int g = 0; g < 8; g++) {
    const Place k = key_place(lane, part, g), v = value_place(lane, part);
    u32 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if constexpr (KEYS) x[i] = ((const u32*)(codes + k.token * ROW + k.channel))[i];
      else {
        const short* at = codes + (v.token + 8 * (g % 2) + 2 * i) * ROW + v.channel + g / 2;
        x[i] = (u16)at[0] | (u32)(u16)at[ROW] << 16;
      }
    }
    stream[(8 * part + g) * 32 + lane] = {x[0], x[1], x[2], x[3]};
  }
}
