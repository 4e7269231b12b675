// Decode attention over pages, split over the whole device; partial results for merge.cu. Of a segment's pages in a CTA's
// stretch of the line of work (line.cuh) warp w takes every WARPS-th.
#include "line.cuh"
#include "trace.cuh"

// A page: scores, probabilities, values. The stage is refilled as soon as each half is read.
DEV void read_page(const Feed& feed, const Row& row, const Query& query, const Constants& kc, const Constants& vc,
                   const u8* shared, const u8* ring, Sums& s, Stage at, int address, int ahead, bool more, int first) {
  float score[R][8][2];
  const u8 *keys = ring + at.index * K_STAGE, *values = ring + STAGES * K_STAGE + at.index * V_STAGE;
  feed.wait_keys(at.index, at.parity);
  if constexpr (K_PACKED) packed_scores(query, kc, keys, shared, feed.lane, s.top, score);
  else score_plain<4>(row, shared, feed.lane, feed.plain_keys(address), score, s);
  __syncwarp();
  feed.keys(at.index, ahead, more);
  weigh(row, shared, feed.lane, first, score, s);
  feed.wait_values(at.index, at.parity);
  if constexpr (V_PACKED) packed_values(vc, values, shared, feed.lane, score, s);
  else plain_values<4>(feed.plain_values(address), feed.lane, row.bounds[2] - first, score, s.acc);
  __syncwarp();
  feed.values(at.index, ahead, more);
}

// The plain pages among [from, to): warps share them by quarters, lest all wait for one. In a loop of their own: within the
// packed one they would cost it its registers.
DEV void read_plain(const Feed& fed, const Row& row, const u8* shared, Sums& s, int from, int to, int first) {
  const u32 thread = kept(threadIdx.x);  // made anew: what the packed loop keeps would have to last
  const Feed feed = {fed.ring, fed.bars, fed.pool, fed.pages, fed.head, fed.slice, (int)thread % 32};
  int turn = thread / 32;
  for (int some = from; some < to; some += 32) {
    const bool there = some + feed.lane < to;
    const int mine = there ? feed.pages[some + feed.lane] : 0;
    for (u32 left = __ballot_sync(~0u, there && (PLAIN_PAIR || mine < 0)); left; left &= left - 1) {
      const int page = __ffs(left) - 1, address = __shfl_sync(~0u, mine, page);
      for (; turn < 4; turn += WARPS) read_quarter(feed, row, shared, s, address, first + PAGE * (some + page), turn);
      turn -= 4;
    }
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

// rows: token << 8 | query head of the group; -1 where there is none.
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
  const Stretch mine = stretch_of(all, lines);
  launch_dependents();
  if (mine.begin >= mine.end) return;
  const Pool pool = {k, v, k16, v16, heads};
  stage_constants(shared);
  stage_table<KF>(shared + S_KTABLE, ktable, 32 * WARPS);
  stage_table<VF>(shared + S_VTABLE, vtable, 32 * WARPS);
  const u32 bars = shared_address(shared) + S_BARS + 16 * STAGES * warp;
  u8* ring = shared + S_RING + warp * WARP_BYTES;
#if BULK
  if (lane == 0) for (int i = 0; i < 2 * STAGES; i++) barrier_init(bars + 8 * i);
  fence_async();
  __syncwarp();
#endif
  Stage at = {0, 0};
  each_segment<PAD>(runs, all.x, lines, mine, [&](const int run, const int line, const int4& span, const int from, const int to) {
    const Feed feed = {shared_address(ring), bars, pool, addresses + span.x, line / SLICES, line % SLICES, lane};
    int page = from + warp;
    const int code = warp < ROWS ? rows[run * TILE + warp] : -1;
    const int soonest = page < to ? feed.pages[page] : 0;
    const Asked asked = {q, q_token, q_head, feed.head * group, sees};
    const int2 sight = asked.sight(code);
    Stage fill = at;
    feed.keys(fill.index, soonest, page < to);
    feed.values(fill.index, soonest, page < to);
    bool plain = !PLAIN_PAIR && feed.announce_plain(from, to);
    wait_for_previous();  // so far only the plan and packed pages were read
    for (int row = warp; row < ROWS; row += WARPS) {
      const int one = row == warp ? code : rows[run * TILE + row];
      u16 bits[D / 32];
      read_row(asked, one, lane, bits);
      stage_query(shared, row, bits, row == warp ? sight : asked.sight(one), scale, lane);
    }
    MARK(1);
    plain = __syncthreads_or(plain);
    if (PLAIN_PAIR && 2 * (to - from) <= WARPS) { plain = true; page = to; }
    Query query;
    load_query(query, shared, lane);
    Constants kc, vc;
    load_constants(shared, lane, kc, vc);
    const Row row = bounds_of(shared, scale, cap);
    Sums s;
    clear(s);
    // The other stages are asked for behind every warp's first: all warps then start early.
#pragma unroll
    for (int i = 1; i < STAGES; i++) {
      next(fill, STAGES);
      const bool some = page + i * WARPS < to;
      const int address = some ? feed.pages[page + i * WARPS] : 0;
      feed.keys(fill.index, address, some);
      feed.values(fill.index, address, some);
    }
    int address = soonest;
    int ahead = page + STAGES * WARPS < to ? feed.pages[page + STAGES * WARPS] : 0;
    MARK(2);
    for (int since = 0; page < to; page += WARPS) {
      const int following = page + WARPS < to ? feed.pages[page + WARPS] : 0;
      const int farther = page + (STAGES + 1) * WARPS < to ? feed.pages[page + (STAGES + 1) * WARPS] : 0;
      const bool more = page + STAGES * WARPS < to;
      if (PLAIN_PAIR || address >= 0) {
        read_page(feed, row, query, kc, vc, shared, ring, s, at, address, ahead, more, span.z + PAGE * page);
        if (V_PACKED && ++since == SETTLED) { settle(s); since = 0; }
      } else {
        feed.skip(at.index, ahead, more);
      }
      next(at, STAGES);
      address = following;
      ahead = farther;
    }
    if (plain) read_plain(feed, row, shared, s, from, to, span.z);
    MARK(4);
    const i64 slot = (i64)run * lines + line + blockIdx.x;
    store_part(shared, ring, s, warp, lane, parts + slot * ROWS * VD, parts_ml + slot * ROWS);
    MARK(5);
  });
}
