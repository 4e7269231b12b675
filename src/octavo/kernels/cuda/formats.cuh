// How the words of a unit (32 codes of one lane, octavo/formats/tile.py) become operands of the tensor core.
// A value is factor * (operand - offset) * gain (+ minimum + offset * gain: codes around 0 suffer least from rounding). SPLIT: of each run of eight codes the first word holds
// the even ones, the second the odd ones; the other operand is then laid out alike.
#pragma once
#include "common.cuh"

enum : int { PLAIN, Q8_0, Q6_0, Q5_1, Q5_0, Q4_0, TURBO8, TURBO4, TURBO3, TURBO2, TCQ4, TCQ3, TCQ2 };

__host__ __device__ constexpr int code_bits(int f) {
  return f == PLAIN ? 16 : f == Q8_0 || f == TURBO8 ? 8 : f == Q6_0 ? 6 : f == Q5_1 || f == Q5_0 ? 5
       : f == TURBO3 || f == TCQ3 ? 3 : f == TURBO2 || f == TCQ2 ? 2 : 4;
}
__host__ __device__ constexpr bool is_trellis(int f) { return f >= TCQ4; }
__host__ __device__ constexpr bool has_minimum(int f) { return f == Q5_1; }
__host__ __device__ constexpr bool is_split(int f) { return f == TURBO2 || f == Q4_0 || f == Q5_0 || f == Q5_1 || f == Q6_0; }
__host__ __device__ constexpr int state_bits(int f) { return f == TCQ3 ? 9 : 8; }
__host__ __device__ constexpr float factor(int f) { return f == TURBO4 ? 2.f : 1.f; }
__host__ __device__ constexpr float offset(int f) { return f == TURBO4 ? 63.5f : f == Q4_0 ? 8.f : f == Q5_0 || f == Q5_1 ? 16.f : f == Q6_0 ? 32.f : 0.f; }
// ggml gives the code of the largest magnitude a sign, by that of the gain.
__host__ __device__ constexpr bool signed_gains(int f) { return f == Q4_0 || f == Q5_0 || f == Q6_0; }
__host__ __device__ constexpr int gain_span(int f, int head_dim) {
  return f >= Q8_0 && f <= Q4_0 ? 32 : head_dim % 128 == 0 ? 128 : head_dim;
}
DEV u32 shift(u32 x, int left) { return left >= 0 ? x << left : x >> -left; }

// Numbers kept in registers: the accumulators' zero and the levels of a table format.
struct Constants {
  int zero[4];
  u32 levels[4];
};
template <int F> DEV u32 level_word(int i) {
  const u32 of[3][4] = {{TURBO4_0, TURBO4_1, TURBO4_2, TURBO4_3}, {TURBO3_0, TURBO3_1, 0, 0}, {TURBO2_0, 0, 0, 0}};
  return F >= TURBO4 && F <= TURBO2 ? of[F - TURBO4][i] : 0;
}
__host__ __device__ constexpr int levels_of(int f) { return f == TURBO4 ? 4 : f == TURBO3 ? 2 : f == TURBO2 ? 1 : 0; }

template <int F> DEV void unpack(const u32* w, const u32 (&level)[4], u32 (&o)[8]) {
  if constexpr (code_bits(F) == 8) {
#pragma unroll
    for (int i = 0; i < 8; i++) o[i] = w[i];
  } else if constexpr (F == TURBO4) {
    // A selector nibble of 8 or more fills its byte with a sign, here always 0: each table answers for its half.
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 low = w[i], high = w[i] ^ 0x88888888u;
      o[2 * i] = prmt(level[0], level[1], low) | prmt(level[2], level[3], high);
      o[2 * i + 1] = prmt(level[0], level[1], low >> 16) | prmt(level[2], level[3], high >> 16);
    }
  } else if constexpr (F == TURBO3) {
    u32 n[4];
#pragma unroll
    for (int i = 0; i < 3; i++) n[i] = w[i] & 0x77777777u;
    n[3] = ((w[0] >> 3) & 0x11111111u) | ((w[1] >> 2) & 0x22222222u) | ((w[2] >> 1) & 0x44444444u);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      o[2 * i] = prmt(level[0], level[1], n[i]);
      o[2 * i + 1] = prmt(level[0], level[1], n[i] >> 16);
    }
  } else if constexpr (F == TURBO2) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const u32 even = w[i] & 0x33333333u, odd = (w[i] >> 2) & 0x33333333u;
      o[4 * i] = prmt(level[0], level[0], even);
      o[4 * i + 1] = prmt(level[0], level[0], odd);
      o[4 * i + 2] = prmt(level[0], level[0], even >> 16);
      o[4 * i + 3] = prmt(level[0], level[0], odd >> 16);
    }
  } else {
    constexpr int extra = code_bits(F) - 4;
#pragma unroll
    for (int q = 0; q < 8; q++) {
      o[q] = shift(w[q / 2], -4 * (q % 2)) & 0x0F0F0F0Fu;
      if constexpr (extra == 1) o[q] |= shift(w[4], 4 - q) & 0x10101010u;
      if constexpr (extra == 2) o[q] |= shift(w[4 + q / 4], 4 - 2 * (q % 4)) & 0x30303030u;
    }
  }
}

// Bytes of a trellis format's table in shared memory, and its way there from the levels.
__host__ __device__ constexpr int table_bytes(int f) { return is_trellis(f) ? 128 << state_bits(f) : 0; }
template <int F> DEV void stage_table(u8* to, const signed char* levels, int threads) {
  if constexpr (is_trellis(F))
    for (int i = threadIdx.x; i < table_bytes(F) / 4; i += threads) ((int*)to)[i] = levels[i / 32];
}

// Trellis: value n of a ring is table[bits n k .. n k + L). The table lies in shared memory once for each lane
// (entry e of a lane at 128 e + 4 lane: no two lanes meet in a bank), a signed byte in each word.
template <int F> DEV u32 look_up(const u32* w, int value, u32 lane_table) {
  constexpr int k = code_bits(F), L = state_bits(F);
  constexpr u32 ones = (1u << L) - 1;
  const int bit = value * k, at = bit % 32;
  u32 place = w[bit / 32] & (ones << at);  // masked first: shift and add are then one instruction
  if (at < 7) place <<= 7 - at;
  else if (at + L <= 32) place >>= at - 7;
  else place = __funnelshift_r(w[bit / 32], w[bit / 32 + 1], at - 7) & (ones << 7);
  return load_shared(place + lane_table);
}
template <int F> DEV void unpack_ring(const u32* w, u32 (&o)[8], u32 lane_table) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    u32 x[4];
#pragma unroll
    for (int n = 0; n < 4; n++) x[n] = look_up<F>(w, 4 * i + n, lane_table);
    o[i] = prmt(prmt(x[0], x[1], 0x0040), prmt(x[2], x[3], 0x0040), 0x5410);
  }
}
// Unit u of a lane whose first quad `codes` is: word i of the lane lies in quad i / 4. RING: the last unit is followed
// by the first, else by what lies behind it.
template <int F, int UNITS, bool RING = true> DEV void read_unit(const Quad* codes, int u, u32 lane_table, const u32 (&level)[4], u32 (&o)[8]) {
  constexpr int BITS = code_bits(F), WORDS = BITS * UNITS;
  u32 w[BITS + 1];
#pragma unroll
  for (int i = 0; i < BITS + is_trellis(F); i++) {  // a ring's last windows run on into the next word
    const int at = RING ? (u * BITS + i) % WORDS : u * BITS + i;
    const Quad q = codes[at / 4 * 32];
    w[i] = at % 4 == 0 ? q.x : at % 4 == 1 ? q.y : at % 4 == 2 ? q.z : q.w;
  }
  if constexpr (is_trellis(F)) unpack_ring<F>(w, o, lane_table);
  else unpack<F>(w, level, o);
}
