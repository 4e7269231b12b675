// The kernel itself: a CTA walks its stretch of the line of work, segment by segment.
#pragma once

struct Stage { int index; u32 parity; };
DEV void next(Stage& s) { if (++s.index == STAGES) { s.index = 0; s.parity ^= 1; } }

// Where packed pages are the rule, plain ones go through calls: inlined they would cost the rule its registers.
struct Scores { float of[R][8][2]; };
struct Acc { float of[R][VD / 16][4]; };
struct Scale { float of[R][2]; };
__device__ __noinline__ void call_scores(const u16* page, const u8* shared, int lane, Scale scale, Scores* to) {
  plain_scores(page, (const u16*)(shared + S_QUERY), lane, scale.of, to->of);
}
__device__ __noinline__ void call_values(const u16* page, int lane, int live, const Scores* p, Acc* acc) {
  plain_values(page, lane, live, p->of, acc->of);
}
template <typename A> DEV void copy(A& to, const A& from) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int i = 0; i < sizeof(to[0]) / sizeof(to[0][0]); i++)
#pragma unroll
      for (int x = 0; x < sizeof(to[0][0]) / 4; x++) to[r][i][x] = from[r][i][x];
}
DEV void rare_scores(const u16* page, const u8* shared, int lane, const Scale& scale, float (&score)[R][8][2]) {
  Scores to;
  call_scores(page, shared, lane, scale, &to);
  copy(score, to.of);
}
DEV void rare_values(const u16* page, int lane, int live, const float (&p)[R][8][2], float (&acc)[R][VD / 16][4]) {
  Scores from;
  Acc to;
  copy(from.of, p);
  copy(to.of, acc);
  call_values(page, lane, live, &from, &to);
  copy(acc, to.of);
}

// One page of a warp: scores, probabilities, values. The stage is refilled as soon as each half is read.
DEV void read_page(const Feed& feed, const Query& query, const Constants& kc, const Constants& vc, u8* shared,
                   const u8* ring, Sums& s, Stage at, int address, int ahead, bool more, int first,
                   const int (&bounds)[3], float scale, float cap) {
  const int lane = feed.lane;
  float score[R][8][2];
  feed.wait_keys(at.index, at.parity);
  if (K_PACKED && address >= 0) packed_scores(query, kc, ring + at.index * K_STAGE, shared, lane, score);
  else {
    Scale scales;
    for (int r = 0; r < R; r++) scales.of[r][0] = scales.of[r][1] = scale;
    if (K_PACKED) rare_scores(feed.plain_keys(address), shared, lane, scales, score);
    else plain_scores(feed.plain_keys(address), (const u16*)(shared + S_QUERY), lane, scales.of, score);
  }
  __syncwarp();
  feed.keys(at.index, ahead, more);
#if SOFTCAP
#pragma unroll
  for (int i = 0; i < 16 * R; i++) {
    float& x = score[i / 16][i / 2 % 8][i % 2];
    x = cap * tanh_(x * (1.f / cap));
  }
#endif
  if (first < bounds[0] || first + PAGE > bounds[1]) hide(shared, lane, first, score);
  soften(score, s);
  feed.wait_values(at.index, at.parity);
  if (V_PACKED && address >= 0) packed_values(vc, ring + STAGES * K_STAGE + at.index * V_STAGE, shared, lane, score, s);
  else if (V_PACKED) rare_values(feed.plain_values(address), lane, bounds[2] - first, score, s.acc);
  else plain_values(feed.plain_values(address), lane, bounds[2] - first, score, s.acc);
  __syncwarp();
  feed.values(at.index, ahead, more);
}

DEV void clear(Sums& s) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      s.top[r][e] = NONE;
      s.sum[r][e] = 0.f;
      if constexpr (has_minimum(VF))
        for (int b = 0; b < VSPANS; b++) s.low[b][r][e] = 0.f;
#pragma unroll
      for (int i = 0; i < VD / 16; i++) s.acc[r][i][e] = s.acc[r][i][2 + e] = 0.f;
    }
}

// A format's numbers, by way of shared memory so that they stay in registers: a word for each lane, lest the
// compiler take them for uniform and move them from a uniform register at each use.
template <int F> DEV void load_constants(Constants& c, u8* shared, int at, int lane) {
  u32* words = (u32*)(shared + S_CONSTANTS) + lane;
  words[0] = MAGIC_BITS;
  for (int i = 0; i < levels_of(F); i++) words[32 * (at + i)] = level_word<F>(i);
  __syncwarp();
  for (int i = 0; i < 4; i++) c.zero[i] = from_shared(shared_address(words));
  for (int i = 0; i < levels_of(F); i++) c.levels[i] = from_shared(shared_address(words + 32 * (at + i)));
}

// runs: x first entry in `addresses`, y pages, z position of the first token. ends[r]: pages of runs before r.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
decode(const u16* __restrict__ q, const u8* k, const u8* v, const u16* k16, const u16* v16,
       const int* __restrict__ addresses, const int4* __restrict__ runs, const int* __restrict__ rows,
       const int* __restrict__ ends, const int* __restrict__ num_runs, const int2* __restrict__ sees,
       const signed char* ktable, const signed char* vtable, float* parts, float2* parts_ml,
       i64 q_token, i64 q_head, int heads, int group, float scale, float cap) {
  extern __shared__ __align__(128) u8 shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = *num_runs, lines = heads * SLICES;
  const i64 total = (i64)ends[n] * lines, stretch = (total + gridDim.x - 1) / gridDim.x;
  const i64 begin = stretch * blockIdx.x, end = min(begin + stretch, total);
  if (begin >= end) return;
  const Pool pool = {k, v, k16, v16, heads};
  if constexpr (is_trellis(KF)) stage_table<KF>(shared + S_KTABLE, ktable);
  if constexpr (is_trellis(VF)) stage_table<VF>(shared + S_VTABLE, vtable);
  const u32 bars = shared_address(shared) + S_BARS + 16 * STAGES * warp;
  u8* ring = shared + S_RING + warp * WARP_BYTES;
#if BULK
  if (lane == 0) for (int i = 0; i < 2 * STAGES; i++) barrier_init(bars + 8 * i);
  fence_async();
  __syncwarp();
#endif
  Constants kc, vc;
  load_constants<KF>(kc, shared, 4, lane);
  if (KF == VF) vc = kc;
  else load_constants<VF>(vc, shared, 8, lane);
  Stage at = {0, 0};
  int run = 0;
  for (int low = 0, high = n; low < high;) {  // the run in which `begin` lies
    run = (low + high) / 2;
    if ((i64)ends[run + 1] * lines <= begin) low = run + 1; else high = run;
    run = low;
  }
  for (i64 start = begin; start < end; run++) {
    const int4 span = runs[run];
    const i64 before = (i64)ends[run] * lines;
    for (int line = span.y ? (int)((start - before) / span.y) : lines; line < lines && start < end; line++) {
      const i64 first = before + (i64)line * span.y;
      const int from = (int)(start - first), to = (int)min((i64)span.y, end - first);
      start = first + to;
      const Feed feed = {shared_address(ring), bars, pool, addresses + span.x, line / SLICES, line % SLICES, lane};
      int page = from + warp;
      Stage fill = at;
#pragma unroll
      for (int i = 0; i < STAGES; i++) {
        const bool some = page + i * WARPS < to;
        const int address = some ? feed.pages[page + i * WARPS] : 0;
        feed.keys(fill.index, address, some);
        feed.values(fill.index, address, some);
        next(fill);
      }
      for (int row = warp; row < ROWS; row += WARPS) {
        const int code = rows[run * 16 + row];
        const u16* query = code < 0 ? nullptr : q + (code / group) * q_token + (feed.head * group + code % group) * q_head;
        stage_query(shared, row, query, code < 0 ? make_int2(0, 0x7FFFFFFF) : sees[code / group], scale, lane);
      }
      __syncthreads();
      Query query;
      load_query(query, shared, lane);
      int bounds[3] = {0, 0x7FFFFFFF, 0};  // latest start and earliest end of what rows see; latest end
      for (int row = 0; row < ROWS; row++) {
        const int stop = ((const int*)(shared + S_TO))[row];
        bounds[0] = max(bounds[0], ((const int*)(shared + S_FROM))[row]);
        bounds[1] = min(bounds[1], stop);
        if (rows[run * 16 + row] >= 0) bounds[2] = max(bounds[2], stop);
      }
      Sums s;
      clear(s);
      int address = page < to ? feed.pages[page] : 0;
      int ahead = page + STAGES * WARPS < to ? feed.pages[page + STAGES * WARPS] : 0;
      for (; page < to; page += WARPS) {
        const int following = page + WARPS < to ? feed.pages[page + WARPS] : 0;
        const int farther = page + (STAGES + 1) * WARPS < to ? feed.pages[page + (STAGES + 1) * WARPS] : 0;
        read_page(feed, query, kc, vc, shared, ring, s, at, address, ahead,
                  page + STAGES * WARPS < to, span.z + PAGE * page, bounds, scale, cap);
        next(at);
        address = following;
        ahead = farther;
      }
      const i64 slot = ((i64)run * lines + line) + blockIdx.x;
      store_part(shared, ring, s, warp, lane, parts + slot * ROWS * VD, parts_ml + slot * ROWS);
    }
  }
}
