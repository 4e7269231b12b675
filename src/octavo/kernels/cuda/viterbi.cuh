// Trellis formats: the walk to the closest symbols (octavo/formats/viterbi.py has the definition), a stream a thread.
#pragma once
#include "pages.cuh"
#include "viterbi_levels.cuh"

constexpr int K = BITS, FAN = 1 << K, STATES = 1 << state_bits(FORMAT), OVERLAPS = STATES / FAN;
constexpr int STEPS = 2 * D, EIGHTS = STEPS / 8, RIDES = OVERLAPS * K / 32;
constexpr int RUN_IN = 32, OUT_OF_REACH = 1 << 18;

// Costs are whole numbers times FAN; the oldest symbol of a walk rides in the bits below.
// A branch into `state` costs slope(state) * value + square(state), both immediates of the instructions: from memory,
// the constant bank included, they would be most of the walk's time.
__host__ __device__ constexpr int level(int state) { return K == 4 ? LEVELS4[state] : K == 3 ? LEVELS3[state] : LEVELS2[state]; }
__host__ __device__ constexpr int slope(int state) { return -2 * level(state) * FAN; }
__host__ __device__ constexpr int square(int state) { return 4 * level(state) * level(state) * FAN + state % FAN; }

// min(a + b, c): one instruction on Hopper.
DEV int min_sum(int a, int b, int c) {
#if __CUDA_ARCH__ >= 900
  return __viaddmin_s32(a, b, c);
#else
  return min(a + b, c);
#endif
}

// One value more: the least cost of the walks to each overlap, and the oldest symbol of each, K bits apiece.
DEV void walk_on(int (&cost)[OVERLAPS], int value, u32 (&ride)[RIDES]) {
  int least[OVERLAPS];
#pragma unroll
  for (int i = 0; i < RIDES; i++) ride[i] = 0;
#pragma unroll
  for (int o = 0; o < OVERLAPS; o++) {
    least[o] = 0x7FFFFFFF;
#pragma unroll
    for (int f = 0; f < FAN; f++) {
      const int state = o * FAN + f;
      least[o] = min_sum(cost[state % OVERLAPS] + slope(state) * value, square(state), least[o]);
    }
  }
#pragma unroll
  for (int o = 0; o < OVERLAPS; o++) {
    const u32 oldest = least[o] & (FAN - 1);
    const int at = o * K;
    ride[at / 32] += oldest << at % 32;
    if (at % 32 + K > 32) ride[at / 32 + 1] += oldest >> (32 - at % 32);
    cost[o] = least[o] - oldest;
  }
}

// The oldest symbol of the walk to `overlap`. A shift by selects: indexed by a variable, `ride` would leave registers.
DEV u32 oldest_symbol(u32 (&ride)[RIDES], u32 overlap) {
  const u32 at = overlap * K;
#pragma unroll
  for (int by = 4; by; by /= 2)
#pragma unroll
    for (int i = 0; i + by < RIDES; i++) ride[i] = at & 32 * by ? ride[i + by] : ride[i];
  return __funnelshift_r(ride[0], ride[1], at) & (FAN - 1);
}

// Scratch of a warp: [STEPS][RIDES / 2][lane], two words each.
DEV void keep_rides(Pair* scratch, int step, int lane, const u32 (&ride)[RIDES]) {
#pragma unroll
  for (int i = 0; i < RIDES; i += 2) scratch[(step * (RIDES / 2) + i / 2) * 32 + lane] = {ride[i], ride[i + 1]};
}
DEV void load_rides(const Pair* scratch, int step, int lane, u32 (&ride)[RIDES]) {
#pragma unroll
  for (int i = 0; i < RIDES; i += 2) {
    const Pair p = scratch[(step * (RIDES / 2) + i / 2) * 32 + lane];
    ride[i] = p.x; ride[i + 1] = p.y;
  }
}
// Back by one step: the symbol that left there; `overlap` becomes the one before.
DEV u32 step_back(const Pair* scratch, int step, int lane, u32& overlap) {
  u32 ride[RIDES];
  load_rides(scratch, step, lane, ride);
  const u32 symbol = oldest_symbol(ride, overlap);
  overlap = (overlap << K | symbol) & (OVERLAPS - 1);
  return symbol;
}

// The overlap with the least cost, oldest symbols deciding between equals.
DEV u32 best_overlap(const int (&cost)[OVERLAPS], const u32 (&ride)[RIDES]) {
  int least = 0x7FFFFFFF;
  u32 best = 0;
#pragma unroll
  for (int o = 0; o < OVERLAPS; o++) {
    const int at = o * K, full = cost[o] + (__funnelshift_r(ride[at / 32], at / 32 + 1 < RIDES ? ride[at / 32 + 1] : 0, at) & (FAN - 1));
    if (full < least) { least = full; best = o; }
  }
  return best;
}
