// Decode attention over pages, split over the whole device; partial results for merge.cu.
//
// A run is a row of pages that up to ROWS query rows read together. Segment s = (run, KV head, slice of V);
// the pages of all segments in order (behind PAD each) are one line of work, of which each CTA takes an equal stretch; of
// a segment's pages in that stretch warp w takes every WARPS-th. Part (segment, CTA) lies at slot
// segment + CTA: along the line one or the other grows at every step, so no two parts share a slot.
// All lengths come from device memory: a captured graph serves every step.
#include "plain.cuh"
#include "scores.cuh"
#include "values.cuh"

struct Place {  // where a warp stands in its segment
  int run, head, slice, from, to;  // pages [from, to) of the run
};

struct Pool {
  const u8 *k, *v;          // packed pages of this layer: [slots, heads, K_PAGE], [slots, heads, V_PAGE]
  const u16 *k16, *v16;     // plain pages: [slots, heads, 64, D]
  int heads;
};

// Fills one warp's ring of stages: stage i holds the i-th, (i + STAGES)-th, ... of its pages.
struct Feed {
  u32 ring, bars;           // shared addresses of this warp
  const Pool& pool;
  const int* pages;
  int head, slice, lane;

#if BULK
  DEV void send(u32 bar, bool packed, u32 bytes) const { barrier_expect(bar, packed ? bytes : 0u); }
  DEV void keys(int stage, int address, bool page = true) const {
    if (!K_PACKED || !page || !elected()) return;
    const u32 bar = bars + 16 * stage;
    send(bar, address >= 0, K_PAGE);
    if (address >= 0) copy_bulk(ring + stage * K_STAGE, pool.k + ((i64)address * pool.heads + head) * K_PAGE, K_PAGE, bar);
  }
  DEV void values(int stage, int address, bool page = true) const {
    if (!V_PACKED || !page || !elected()) return;
    const u32 bar = bars + 16 * stage + 8, to = ring + STAGES * K_STAGE + stage * V_STAGE;
    const u8* from = pool.v + ((i64)address * pool.heads + head) * V_PAGE;
    send(bar, address >= 0, V_STAGE);
    if (address < 0) return;
    if (SLICES == 1) { copy_bulk(to, from, V_STAGE, bar); return; }
    copy_bulk(to, from + slice * VS_CODES, VS_CODES, bar);
    if (VS_NEXT) copy_bulk(to + VS_CODES, from + (slice + 1) % SLICES * VS_CODES, VS_NEXT, bar);
    copy_bulk(to + VS_CODES + VS_NEXT, from + V_CODES + slice * VS_GAINS, VS_GAINS, bar);
    if (VS_MINS) copy_bulk(to + VS_CODES + VS_NEXT + VS_GAINS, from + V_CODES + V_GAINS + slice * VS_MINS, VS_MINS, bar);
  }
  DEV void wait_keys(int stage, u32 parity) const { if (K_PACKED) barrier_wait(bars + 16 * stage, parity); }
  DEV void wait_values(int stage, u32 parity) const { if (V_PACKED) barrier_wait(bars + 16 * stage + 8, parity); }
#else
  // Keys and values of a page are two groups; while page n is read, those of the STAGES - 1 next are under way.
  DEV void keys(int stage, int address, bool page = true) const {
    if (K_PACKED && page && address >= 0)
      copy_lanes(ring + stage * K_STAGE, pool.k + ((i64)address * pool.heads + head) * K_PAGE, K_PAGE, lane);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  DEV void values(int stage, int address, bool page = true) const {
    const u32 to = ring + STAGES * K_STAGE + stage * V_STAGE;
    const u8* from = pool.v + ((i64)address * pool.heads + head) * V_PAGE;
    if (V_PACKED && page && address >= 0) {
      copy_lanes(to, from + slice * VS_CODES, VS_CODES, lane);
      copy_lanes(to + VS_CODES, from + (slice + 1) % SLICES * VS_CODES, VS_NEXT, lane);
      copy_lanes(to + VS_CODES + VS_NEXT, from + V_CODES + slice * VS_GAINS, VS_GAINS, lane);
      copy_lanes(to + VS_CODES + VS_NEXT + VS_GAINS, from + V_CODES + V_GAINS + slice * VS_MINS, VS_MINS, lane);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  DEV void wait_keys(int, u32) const { asm volatile("cp.async.wait_group %0;" ::"n"(2 * STAGES - 1) : "memory"); __syncwarp(); }
  DEV void wait_values(int, u32) const { asm volatile("cp.async.wait_group %0;" ::"n"(2 * STAGES - 1) : "memory"); __syncwarp(); }
#endif
  DEV void skip(int stage, int ahead, bool more) const {  // past a page that was never asked for
    keys(stage, ahead, more);
    values(stage, ahead, more);
  }
};

// One row of queries, as int8 in operand order and as it came, with its scale and the tokens it may see.
DEV void stage_query(u8* shared, int row, const u16* query, int2 sees, float scale, int lane) {
  float x[D / 32], peak = 0.f;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    const u16 bits = query ? query[32 * i + lane] : (u16)0;
    ((u16*)(shared + S_QUERY))[row * D + 32 * i + lane] = bits;
    x[i] = load16(&bits);
    peak = fmaxf(peak, fabsf(x[i]));
  }
#pragma unroll
  for (int i = 16; i > 0; i /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, i));
  const float inverse = peak > 0.f ? __fdividef(127.f, peak) : 0.f;
  const int place = is_split(KF) ? (lane & ~7) + (lane & 1) * 4 + (lane & 7) / 2 : lane;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    const float h = rintf(x[i] * inverse);
    ((signed char*)(shared + S_HIGH))[row * D + 32 * i + place] = (signed char)(int)h;
    if (K_FINE) ((signed char*)(shared + S_LOW))[row * D + 32 * i + place] = (signed char)(int)rintf((x[i] * inverse - h) * 254.f);
    if (offset(KF) == 0.f) continue;
    float sum = h;
#pragma unroll
    for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (lane == 0) ((float*)(shared + S_SUMS))[row * STEPS + i] = sum;
  }
  if (lane == 0) {
    ((float*)(shared + S_SCALE))[row] = peak * (1.f / 127.f) * scale * factor(KF);
    ((int*)(shared + S_FROM))[row] = sees.x;
    ((int*)(shared + S_TO))[row] = sees.y;
  }
}

template <int F> DEV void stage_table(u8* to, const signed char* table) {
  for (int i = threadIdx.x; i < 32 << state_bits(F); i += 32 * WARPS) ((int*)to)[i] = table[i / 32];
}

DEV void hide(const u8* shared, int lane, int first, float (&score)[R][8][2]) {
  const int *from = (const int*)(shared + S_FROM), *to = (const int*)(shared + S_TO);
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = 2 * (lane & 3) + e + 8 * r;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const int token = first + token_of(lane >> 2) + 2 * j;
        if (token < from[row] || token >= to[row]) score[r][j][e] = __int_as_float(0xFF800000);
      }
    }
}

// Scores, relative to s.top, become probabilities. s.top follows the true maximum at a distance of 6 (64 times).
DEV void soften(float (&score)[R][8][2], Sums& s) {
  float most[R][2];
  bool over = s.empty != 0;
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      most[r][e] = score[r][0][e];
#pragma unroll
      for (int j = 1; j < 8; j++) most[r][e] = fmaxf(most[r][e], score[r][j][e]);
      over |= most[r][e] > 6.f;
    }
  if (__any_sync(~0u, over))
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const u32 bit = 1u << (2 * r + e);
        float rise = max_tokens(most[r][e]);
        if (!(s.empty & bit)) rise = fmaxf(rise, 0.f);
        if (!(rise > NONE)) rise = 0.f;
        else s.empty &= ~bit;
        const float fade = exp2_(-fmaxf(rise, 0.f));
        s.top[r][e] += rise;
        s.sum[r][e] *= fade;
        s.bias[r][e] *= fade;
#pragma unroll
        for (int j = 0; j < 8; j++) score[r][j][e] -= rise;
#pragma unroll
        for (int i = 0; i < VD / 16; i++) { s.acc[r][i][e] *= fade; s.acc[r][i][2 + e] *= fade; }
        if constexpr (has_minimum(VF))
          for (int b = 0; b < VSPANS; b++) s.low[b][r][e] *= fade;
      }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int j = 0; j < 8; j++) {
        score[r][j][e] = exp2_(score[r][j][e]);
        s.sum[r][e] += score[r][j][e];
      }
}

// The warps' sums become one part: maximum and denominator of each row, and its ROWS × VD accumulators.
DEV void store_part(u8* shared, u8* ring, Sums& s, int warp, int lane, float* part, float2* part_ml) {
  const int t = lane & 3, c = lane >> 2;
  float *tops = (float*)(shared + S_MAX), *sums = (float*)(shared + S_SUM);
  settle(s);
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if (s.empty >> (2 * r + e) & 1) s.top[r][e] = NONE;
      const int at = warp * ROWS + 2 * t + e + 8 * r;
      const float sum = sum_tokens(s.sum[r][e]);
      if (c == 0) { tops[at] = s.top[r][e]; sums[at] = sum; }
    }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = 2 * t + e + 8 * r;
      float top = NONE;
      for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w * ROWS + row]);
      const float fade = exp2_(s.top[r][e] - top);
#pragma unroll
      for (int i = 0; i < VD / 32; i++) {
        float add = 0.f;
        if constexpr (has_minimum(VF)) add = sum_tokens(s.low[i][r][e]);
        *(float4*)((float*)ring + row * VD + 32 * i + 4 * c) =
            {fade * (s.acc[r][2 * i][e] + add), fade * (s.acc[r][2 * i][2 + e] + add),
             fade * (s.acc[r][2 * i + 1][e] + add), fade * (s.acc[r][2 * i + 1][2 + e] + add)};
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * VD; i += 32 * WARPS) {
    float sum = 0.f;
    for (int w = 0; w < WARPS; w++) sum += ((const float*)(shared + S_RING + w * WARP_BYTES))[i];
    part[i] = sum;
  }
  for (int row = threadIdx.x; row < ROWS; row += 32 * WARPS) {
    float top = NONE, sum = 0.f;
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w * ROWS + row]);
    for (int w = 0; w < WARPS; w++) sum += sums[w * ROWS + row] * exp2_(tops[w * ROWS + row] - top);
    part_ml[row] = {top, sum};
  }
  fence_async();
  __syncthreads();
}

#include "walk.cuh"
