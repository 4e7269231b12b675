// Streams of values become the symbols of a closed walk: the codes of a trellis page, a warp a page.
#include "viterbi.cuh"

// One value of eight, and the others move up.
DEV int take(Quad& q) {
  const int value = (short)q.x;
  q.x = __funnelshift_r(q.x, q.y, 16);
  q.y = __funnelshift_r(q.y, q.z, 16);
  q.z = __funnelshift_r(q.z, q.w, 16);
  q.w >>= 16;
  return value;
}

// The walk over `eights` groups of eight values from group `first` of the ring on.
DEV void walk(const Quad* values, int first, int eights, int lane, int (&cost)[OVERLAPS],
              u32 (&ride)[RIDES], Pair* scratch) {
  Quad ahead = values[first % EIGHTS * 32];
#pragma unroll 1
  for (int e = 0; e < eights; e++) {
    Quad q = ahead;
    ahead = values[(first + e + 1) % EIGHTS * 32];
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
      walk_on(cost, take(q), ride);
      keep_rides(scratch, 8 * e + i, lane, ride);
    }
    if (e % 4 != 3) continue;
    const int base = cost[0];  // lest costs grow without end
#pragma unroll
    for (int o = 0; o < OVERLAPS; o++) cost[o] -= base;
  }
}

// Back along the closed walk, 32 symbols and K words at a time.
DEV void write_symbols(const Pair* scratch, u32 overlap, int lane, u8* codes) {
#pragma unroll 1
  for (int b = STEPS / 32 - 1; b >= 0; b--) {
    u32 word[K] = {};
#pragma unroll
    for (int i = 31; i >= 0; i--) {
      const u32 symbol = step_back(scratch, 32 * b + i, lane, overlap);
      const int at = i * K;
      word[at / 32] |= symbol << at % 32;
      if (at % 32 + K > 32) word[at / 32 + 1] |= symbol >> (32 - at % 32);
    }
#pragma unroll
    for (int i = 0; i < K; i++) *(u32*)(codes + word_at(K * b + i, lane)) = word[i];
  }
}

// streams [layers, moves, heads, EIGHTS, lane, 8] in quarters of a level's unit; scratch: a stretch a CTA.
extern "C" __global__ void __launch_bounds__(32)
viterbi(const Quad* __restrict__ streams, u8* const* packed, const i64* __restrict__ to, int moves, int heads, int pages,
        Pair* scratch) {
  const int lane = threadIdx.x;
  Pair* own = scratch + (i64)blockIdx.x * STEPS * (RIDES / 2) * 32;
#pragma unroll 1
  for (int page = blockIdx.x; page < pages; page += gridDim.x) {
    const Quad* values = streams + (i64)page * EIGHTS * 32 + lane;
    u32 overlap = 0, ride[RIDES];
#pragma unroll 1
    for (int closed = 0; closed < 2; closed++) {  // first over the seam, to find the state the ring is closed in
      int cost[OVERLAPS];
#pragma unroll
      for (int o = 0; o < OVERLAPS; o++) cost[o] = closed && o != overlap ? OUT_OF_REACH * FAN : 0;
      walk(values, closed ? 0 : EIGHTS - RUN_IN / 8, closed ? EIGHTS : RUN_IN / 4, lane, cost, ride, own);
      if (closed) break;
      overlap = best_overlap(cost, ride);
#pragma unroll 1
      for (int step = 2 * RUN_IN - 1; step >= RUN_IN; step--) step_back(own, step, lane, overlap);
    }
    const int head = page % heads, move = page / heads % moves, layer = page / heads / moves;
    write_symbols(own, overlap, lane, packed[layer] + (to[move] * heads + head) * PAGE_BYTES);
  }
}
