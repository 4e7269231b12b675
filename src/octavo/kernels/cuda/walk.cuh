// The kernel itself: a CTA walks its stretch of the line of work, segment by segment. Each segment begins with PAD
// pages that are not there: what it costs a CTA to change over, so that all end together.
#pragma once
#ifdef TRACE
__device__ unsigned long long trace_at[132 * 16 * 8];
DEV unsigned long long now_ns() { unsigned long long t; asm volatile("mov.u64 %0,%globaltimer;" : "=l"(t)); return t; }
#define MARK(i) if ((threadIdx.x & 31) == 0) trace_at[(blockIdx.x * 16 + (threadIdx.x >> 5)) * 8 + i] = now_ns()
#else
#define MARK(i)
#endif

struct Stage { int index; u32 parity; };
DEV void next(Stage& s) { if (++s.index == STAGES) { s.index = 0; s.parity ^= 1; } }

struct Row {  // what a row of pages asks of its reader
  int bounds[3];  // latest start and earliest end of what the tile's rows see; latest end
  float scale, cap;
};

// Scores relative to s.top → probabilities, capped and masked. `first`: position of the page's first token.
DEV void weigh(const Row& row, const u8* shared, int lane, int first, float (&score)[R][8][2], Sums& s) {
#if SOFTCAP
#pragma unroll
  for (int i = 0; i < 16 * R; i++) {
    float& x = score[i / 16][i / 2 % 8][i % 2];
    const float top = s.top[i / 16][i % 2];
    x = row.cap * tanh_((x + top) * (1.f / row.cap)) - top;
  }
#endif
  if (first < row.bounds[0] || first + PAGE > row.bounds[1]) hide(shared, lane, first, score);
  soften(score, s);
}

DEV const u16* plain_keys(const Feed& feed, int address) {
  if (!K_PACKED && address >= 0) return (const u16*)(feed.pool.k + ((i64)address * feed.pool.heads + feed.head) * K_PAGE);
  return feed.pool.k16 + ((i64)~address * feed.pool.heads + feed.head) * PAGE * D;
}
DEV const u16* plain_values(const Feed& feed, int address) {
  const u16* page = feed.pool.v16 + ((i64)~address * feed.pool.heads + feed.head) * PAGE * D;
  if (!V_PACKED && address >= 0) page = (const u16*)(feed.pool.v + ((i64)address * feed.pool.heads + feed.head) * V_PAGE);
  return page + feed.slice * VD;
}
DEV void score_plain(const Feed& feed, const Row& row, const u8* shared, int address, float (&score)[R][8][2], const Sums& s) {
  plain_scores(plain_keys(feed, address), (const u16*)(shared + S_QUERY), feed.lane, row.scale, score);
#pragma unroll
  for (int i = 0; i < 16 * R; i++) score[i / 16][i / 2 % 8][i % 2] -= s.top[i / 16][i % 2];
}

// A packed page: scores, probabilities, values. The stage is refilled as soon as each half is read.
DEV void read_packed(const Feed& feed, const Row& row, const Query& query, const Constants& kc, const Constants& vc,
                     const u8* shared, const u8* ring, Sums& s, Stage at, int address, int ahead, bool more, int first) {
  float score[R][8][2];
  feed.wait_keys(at.index, at.parity);
  if constexpr (K_PACKED) packed_scores(query, kc, ring + at.index * K_STAGE, shared, feed.lane, s.top, score);
  else score_plain(feed, row, shared, address, score, s);
  __syncwarp();
  feed.keys(at.index, ahead, more);
  weigh(row, shared, feed.lane, first, score, s);
  feed.wait_values(at.index, at.parity);
  if constexpr (V_PACKED) packed_values(vc, ring + STAGES * K_STAGE + at.index * V_STAGE, shared, feed.lane, score, s);
  else plain_values(plain_values(feed, address), feed.lane, row.bounds[2] - first, score, s.acc);
  __syncwarp();
  feed.values(at.index, ahead, more);
}

DEV void read_plain(const Feed& feed, const Row& row, const u8* shared, Sums& s, int address, int first) {
  float score[R][8][2];
  score_plain(feed, row, shared, address, score, s);
  weigh(row, shared, feed.lane, first, score, s);
  plain_values(plain_values(feed, address), feed.lane, row.bounds[2] - first, score, s.acc);
}

DEV void clear(Sums& s) {
  s.empty = (1u << 2 * R) - 1;
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      s.top[r][e] = s.sum[r][e] = s.bias[r][e] = 0.f;
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

// runs: x first entry in `addresses`, y pages, z position of the first token, w pages up to this run's end.
// header: runs, and their pages. rows: token << 8 | query head of the group.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
decode(const u16* __restrict__ q, const u8* k, const u8* v, const u16* k16, const u16* v16,
       const int* __restrict__ addresses, const int4* __restrict__ runs, const int* __restrict__ rows,
       const int2* __restrict__ header, const int2* __restrict__ sees,
       const signed char* ktable, const signed char* vtable, float* parts, float2* parts_ml,
       i64 q_token, i64 q_head, int heads, int group, float scale, float cap) {
  extern __shared__ __align__(128) u8 shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, lines = heads * SLICES;
  MARK(0);
  const int2 all = *header;
  const u32 total = (u32)(all.y + PAD * all.x) * lines, stretch = (total + gridDim.x - 1) / gridDim.x;
  const u32 begin = stretch * blockIdx.x, end = min(begin + stretch, total);
  launch_dependents();
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
  Stage at = {0, 0};
  int run = 0;
  for (int low = 0, high = all.x - 1; low < high; run = low) {  // the run in which `begin` lies
    const int middle = (low + high) / 2;
    if ((u32)(runs[middle].w + PAD * (middle + 1)) * lines <= begin) low = middle + 1; else high = middle;
  }
  for (u32 start = begin; start < end; run++) {
    const int4 span = runs[run];
    const u32 length = span.y + PAD, before = (u32)(span.w - span.y + PAD * run) * lines;
    for (int line = (int)((start - before) / length); line < lines && start < end; line++) {
      const u32 first = before + (u32)line * length + PAD;
      const int from = max((int)(start - first), 0), to = (int)min((u32)span.y, (u32)max((int)(end - first), 0));
      start = first + span.y;
      if (from >= to) continue;
      const Feed feed = {shared_address(ring), bars, pool, addresses + span.x, line / SLICES, line % SLICES, lane};
      int page = from + warp;
      const int code = warp < ROWS ? rows[run * 16 + warp] : -1;
      const int soonest = page < to ? feed.pages[page] : 0;
      wait_for_previous();  // so far only the plan was read, which no kernel writes
      Stage fill = at;
      feed.keys(fill.index, soonest, page < to);
      feed.values(fill.index, soonest, page < to);
      for (int row = warp; row < ROWS; row += WARPS) {
        const int one = row == warp ? code : rows[run * 16 + row];
        const u16* query = one < 0 ? nullptr : q + (one >> 8) * q_token + (feed.head * group + (one & 255)) * q_head;
        stage_query(shared, row, query, one < 0 ? make_int2(0, 0x7FFFFFFF) : sees[one >> 8], scale, lane);
      }
      MARK(1);
      __syncthreads();
      Query query;
      load_query(query, shared, lane);
      Constants kc, vc;
      load_constants<KF>(kc, shared, 4, lane);
      if (KF == VF) vc = kc;
      else load_constants<VF>(vc, shared, 8, lane);
      Row row = {{0, 0x7FFFFFFF, 0}, scale, cap};
      for (int i = 0; i < ROWS; i++) {
        const int stop = ((const int*)(shared + S_TO))[i];
        row.bounds[0] = max(row.bounds[0], ((const int*)(shared + S_FROM))[i]);
        row.bounds[1] = min(row.bounds[1], stop);
        if (stop != 0x7FFFFFFF) row.bounds[2] = max(row.bounds[2], stop);
      }
      Sums s;
      clear(s);
      // The other stages are asked for behind every warp's first: all warps then start early.
#pragma unroll
      for (int i = 1; i < STAGES; i++) {
        next(fill);
        const bool some = page + i * WARPS < to;
        const int address = some ? feed.pages[page + i * WARPS] : 0;
        feed.keys(fill.index, address, some);
        feed.values(fill.index, address, some);
      }
      int address = soonest;
      int ahead = page + STAGES * WARPS < to ? feed.pages[page + STAGES * WARPS] : 0;
      MARK(2);
      bool plain = false;  // read in a loop of their own: within this one they would cost it its registers
      for (int since = 0; page < to; page += WARPS) {
        const int following = page + WARPS < to ? feed.pages[page + WARPS] : 0;
        const int farther = page + (STAGES + 1) * WARPS < to ? feed.pages[page + (STAGES + 1) * WARPS] : 0;
        const bool more = page + STAGES * WARPS < to;
        if (address >= 0) {
          read_packed(feed, row, query, kc, vc, shared, ring, s, at, address, ahead, more, span.z + PAGE * page);
          if (V_COARSE && ++since == 16) { settle(s); since = 0; }
        } else {
          plain = true;
          feed.skip(at.index, ahead, more);
        }
        next(at);
        address = following;
        ahead = farther;
      }
      if (plain)
        for (page = from + warp; page < to; page += WARPS)
          if (feed.pages[page] < 0) read_plain(feed, row, shared, s, feed.pages[page], span.z + PAGE * page);
      MARK(4);
      const i64 slot = (i64)run * lines + line + blockIdx.x;
      store_part(shared, ring, s, warp, lane, parts + slot * ROWS * VD, parts_ml + slot * ROWS);
      MARK(5);
    }
  }
}
