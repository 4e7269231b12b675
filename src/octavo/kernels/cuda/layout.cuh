// Sizes of one variant, from the macros compile-time options set:
// KF, VF formats; HD head dim; ROWS 8 or 16; WARPS; STAGES; CENTRED keys; SLICE channels of V a warp keeps;
// SHARED_BYTES as the host computed them.
#pragma once
#include "formats.cuh"

constexpr int D = HD, R = ROWS / 8, PAGE = 64;
constexpr int VD = SLICE, SLICES = D / VD, STEPS = D / 32;
// A lane 4c + t holds scores of rows 2t + e + 8r (e < 2, r < R) and tokens token_of(c) + 2j (j < 8).
__host__ __device__ constexpr int token_of(int c) { return 16 * (c / 2) + c % 2; }
constexpr bool K_PACKED = KF != PLAIN, V_PACKED = VF != PLAIN, PLAIN_PAIR = !K_PACKED && !V_PACKED;
constexpr int KBITS = code_bits(KF), VBITS = code_bits(VF);
constexpr int KSPAN = gain_span(KF, D), VSPAN = gain_span(VF, D);
constexpr int KSPANS = D / KSPAN, VSPANS = VD / VSPAN, SPAN_STEPS = KSPAN / 32;
constexpr bool K_FINE = KBITS == 8, V_FINE = VBITS == 8;  // high + low int8 of queries, of probabilities
constexpr bool V_COARSE = V_PACKED && !V_FINE && VSPANS == 1;  // one gain >= 0 a token: bf16 pairs will do
// Zeros of accumulators are added as they are, which saves an operation on every value, and taken out after so many pages:
// as many as acc has bits to spare for.
constexpr int SETTLED = V_COARSE ? 16 : 4;
constexpr float LOW = 1.f / 254.f;                        // one step of the low part in steps of the high

__host__ __device__ constexpr int span_bytes(int spans) { return PAGE * 2 * spans; }
constexpr int K_CODES = PAGE * D * KBITS / 8, K_GAINS = K_PACKED ? span_bytes(KSPANS) : 0;
constexpr int K_MINS = has_minimum(KF) ? K_GAINS : 0, K_MEAN = K_CODES + K_GAINS + K_MINS;
constexpr int K_PAGE = K_MEAN + (CENTRED ? D + 16 : 0);
constexpr int V_CODES = PAGE * D * VBITS / 8, V_GAINS = V_PACKED ? span_bytes(D / VSPAN) : 0;
constexpr int V_MINS = has_minimum(VF) ? V_GAINS : 0, V_PAGE = V_CODES + V_GAINS + V_MINS;
// The part of a V page that one slice of channels needs.
// A slice of a trellis ends in windows that run on into the next slice: one more quad a lane.
constexpr int VS_NEXT = is_trellis(VF) && SLICES > 1 ? 512 : 0;
constexpr int VS_CODES = V_CODES / SLICES, VS_GAINS = V_GAINS / SLICES, VS_MINS = V_MINS / SLICES;

constexpr int K_STAGE = K_PACKED ? K_PAGE : 0;
constexpr int V_STAGE = V_PACKED ? VS_CODES + VS_NEXT + VS_GAINS + VS_MINS : 0;

constexpr int S_KTABLE = 0, S_VTABLE = KF == VF ? 0 : table_bytes(KF);
constexpr int S_HIGH = S_VTABLE + table_bytes(VF);
constexpr int S_LOW = S_HIGH + ROWS * D, S_QUERY = S_LOW + (K_FINE ? ROWS * D : 0);
constexpr int S_SUMS = S_QUERY + 2 * ROWS * D, S_BASE = S_SUMS + 4 * ROWS * STEPS;
constexpr int S_SCALE = S_BASE + 8 * ROWS * STEPS;
constexpr int S_FROM = S_SCALE + 4 * ROWS, S_TO = S_FROM + 4 * ROWS;
// Where channel k of a row's int8 queries lies: each lane's eight channels of a step together, lane by lane, since rows one
// behind the other would meet in the same banks.
DEV int query_at(int row, int k) { return ((row / 8 * STEPS + k / 32) * 32 + 4 * (row % 8) + k % 32 / 8) * 8 + k % 8; }
constexpr int S_MAX = S_TO + 4 * ROWS, S_SUM = S_MAX + 4 * ROWS * WARPS;
constexpr int S_CONSTANTS = S_SUM + 4 * ROWS * WARPS, S_BARS = S_CONSTANTS + 1536;
constexpr int S_RING = (S_BARS + 16 * WARPS * STAGES + 127) / 128 * 128;
constexpr int RING = STAGES * (K_STAGE + V_STAGE), MERGE = 4 * ROWS * VD;
constexpr int WARP_BYTES = RING > MERGE ? RING : MERGE;
static_assert(S_RING + WARPS * WARP_BYTES == SHARED_BYTES, "variants.py and layout.cuh disagree on shared memory");
static_assert(VD % VSPAN == 0 && D % VD == 0, "a slice of V holds whole spans of gains");
