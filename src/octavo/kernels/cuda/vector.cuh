// A warp per vector of D channels (a head of a token), of which a lane has LANE neighbours.
#pragma once
#include "common.cuh"

constexpr int D = HD, LANE = D / 32;

struct alignas(LANE < 8 ? 2 * LANE : 16) Packed { u16 x[LANE]; };
struct alignas(LANE < 4 ? 4 * LANE : 16) Floats { float x[LANE]; };

// The lane's first channel, and the vector of its warp.
DEV int lane_channel() { return threadIdx.x % 32 * LANE; }
DEV i64 warp_vector() { return (i64)blockIdx.x * WARPS + threadIdx.x / 32; }

DEV Floats load_vector(const u16* from) {
  const Packed in = *(const Packed*)from;
  Floats out;
#pragma unroll
  for (int i = 0; i < LANE; i++) out.x[i] = load16(in.x + i);
  return out;
}
DEV void store_vector(u16* to, const Floats& row) {
  Packed out;
#pragma unroll
  for (int i = 0; i < LANE; i++) out.x[i] = store16(row.x[i]);
  *(Packed*)to = out;
}
