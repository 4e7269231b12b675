// Decode attention for many query rows on the same pages: a team. All warps of a CTA read the same page, each for a tile
// of its own: together they unpack it once into shared memory, as operands of the tensor core.
//
// A run has TILES tiles of ROWS rows. Warps unpack one page ahead of the one they read and wait for one another only where
// they must, so that while one loads operands another computes exponentials.
#include "walk.cuh"
#if BULK

constexpr int KEY_JOBS = STEPS >= 4 ? D / 32 : 2 * D / 32;  // units whose codes meet in an operand are unpacked together
constexpr int LAG = 2;  // a page's stage is needed until the next page's scores are there
static_assert(STAGES > LAG, "the page that is unpacked needs a stage too");
constexpr int FIRST = K_SPREAD ? KEY_JOBS % WARPS : 0;      // of the warps that unpack values

// This warp's part of a page: operand (i, step s) of keys at quads 32 (i STEPS + s), of values two a tile.
DEV void spread_keys(const u8* from, u8* to, u32 table, const u32 (&level)[4], int warp, int lane) {
#pragma unroll
  for (int job = 0; job < KEY_JOBS; job++) {
    if (job % WARPS != warp) continue;
    constexpr int quarter = STEPS >= 4 ? STEPS / 4 : 1;
    const int i = job / quarter, even = STEPS >= 4 ? 2 * i * quarter + job % quarter : job;
    u32 x[8], y[8];
    read_unit<KF, 2 * D / 32>((const Quad*)from + lane, even, table + 4 * lane, level, x);
    if (STEPS >= 4) read_unit<KF, 2 * D / 32>((const Quad*)from + lane, even + quarter, table + 4 * lane, level, y);
#pragma unroll
    for (int s = 0; s < (STEPS >= 4 ? 4 : STEPS); s++)
      ((Quad*)to)[32 * (i * STEPS + 4 * (job % quarter) + s) + lane] = key_operand(x, STEPS >= 4 ? y : x, s);
  }
}
DEV void spread_values(const u8* from, u8* to, u32 table, const u32 (&level)[4], int warp, int lane) {
#pragma unroll
  for (int tile = 0; tile < VD / 16; tile++) {
    if (FIRST + tile % (WARPS - FIRST) != warp) continue;
    u32 x[8];
    Quad o[2];
    read_unit<VF, 2 * VD / 32, VS_NEXT == 0>((const Quad*)from + lane, tile, table + 4 * lane, level, x);
    value_operands(x, o);
    ((Quad*)to)[64 * tile + lane] = o[0];
    ((Quad*)to)[64 * tile + 32 + lane] = o[1];
  }
}

// A tile's sums: maximum and denominator of each row, and ROWS × VD accumulators.
DEV void store_tile(Sums& s, int lane, float* part, float2* part_ml) {
  const int t = lane & 3, c = lane >> 2;
  settle(s);
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = 2 * t + e + 8 * r;
      const float sum = sum_tokens(s.sum[r][e]);
      if (c == 0) part_ml[row] = {s.empty >> (2 * r + e) & 1 ? NONE : s.top[r][e], sum};
#pragma unroll
      for (int i = 0; i < VD / 32; i++) {
        float add = 0.f;
        if constexpr (has_minimum(VF)) add = sum_tokens(s.low[i][r][e]);
        *(float4*)(part + row * VD + 32 * i + 4 * c) =
            {s.acc[r][2 * i][e] + add, s.acc[r][2 * i][2 + e] + add, s.acc[r][2 * i + 1][e] + add, s.acc[r][2 * i + 1][2 + e] + add};
      }
    }
}

// A tile's rows, eight at a time: their loads are under way together.
DEV void stage_tile(u8* tile, const Asked& asked, const int* own, float scale, int lane) {
  const int code = lane < ROWS ? own[lane] : -1;
  const int2 sight = asked.sight(code);
#pragma unroll
  for (int first = 0; first < ROWS; first += 8) {
    u16 bits[8][D / 32];
#pragma unroll
    for (int i = 0; i < 8; i++) asked.read(__shfl_sync(~0u, code, first + i), lane, bits[i]);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int2 sees = {__shfl_sync(~0u, sight.x, first + i), __shfl_sync(~0u, sight.y, first + i)};
      stage_query(tile, first + i, bits[i], sees, scale, lane);
    }
  }
}

// The pages of a segment, and how far this warp is with them.
struct Relay {
  const Feed& feed;
  const Constants &kc, &vc;
  u8* shared;
  u32 bars;  // of stage s: at 16 s all warps have unpacked, 8 further all have read
  int to, warp, lane;
  Stage over, past;  // of the next page to unpack, and of the next whose stage is filled anew
  int page, behind;  // those pages

  DEV u8* bytes(int stage) const { return shared + S_SPREAD + stage * SPREAD_BYTES; }
  DEV Side keys(int stage) const {
    const u8* page = shared + S_RING + stage * K_STAGE;
    return {K_SPREAD ? bytes(stage) : page, page};
  }
  DEV Side values(int stage) const {
    const u8* page = shared + S_RING + STAGES * K_STAGE + stage * V_STAGE;
    return {V_SPREAD ? bytes(stage) + K_SPREAD_BYTES : page, page};
  }

  DEV void ask(int stage, int page) const {
    feed.keys(stage, feed.pages[page]);
    feed.values(stage, feed.pages[page]);
  }
  // This warp's part of the next page, as soon as the page is there.
  DEV void unpack() {
    if (page >= to) return;
    feed.wait_keys(over.index, over.parity);
    feed.wait_values(over.index, over.parity);
    const u32 tables = shared_address(shared);
    if (feed.pages[page] >= 0) {
      if constexpr (K_SPREAD) spread_keys(keys(over.index).page, bytes(over.index), tables + S_KTABLE, kc.levels, warp, lane);
      if constexpr (V_SPREAD)
        spread_values(values(over.index).page, bytes(over.index) + K_SPREAD_BYTES, tables + S_VTABLE, vc.levels, warp, lane);
    }
    arrive(over.index, 0);
    next(over);
    page++;
  }
  DEV void arrive(int stage, int which) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(bars + 16 * stage + 8 * which);
  }
  DEV void wait_unpacked(Stage at) const { barrier_wait(bars + 16 * at.index, at.parity); }
  // Before page `current` is read, the stage of the one LAG before is filled anew.
  DEV void refill(int current) {
    if (warp != 0 || current - LAG < behind) return;
    if (behind + STAGES < to) {
      barrier_wait(bars + 16 * past.index + 8, past.parity);
      ask(past.index, behind + STAGES);
    }
    next(past);
    behind++;
  }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
team(const u16* __restrict__ q, const u8* k, const u8* v, const u16* k16, const u16* v16,
     const int* __restrict__ addresses, const int4* __restrict__ runs, const int* __restrict__ rows,
     const int2* __restrict__ header, const int2* __restrict__ sees,
     const signed char* ktable, const signed char* vtable, float* parts, float2* parts_ml,
     i64 q_token, i64 q_head, int heads, int group, float scale, float cap) {
  extern __shared__ __align__(128) u8 shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, lines = heads * SLICES;
  const int2 all = *header;
  const Stretch mine = stretch_of(all, lines);
  launch_dependents();
  if (mine.begin >= mine.end) return;
  const Pool pool = {k, v, k16, v16, heads};
  if constexpr (is_trellis(KF)) stage_table<KF>(shared + S_KTABLE, ktable);
  if constexpr (is_trellis(VF)) stage_table<VF>(shared + S_VTABLE, vtable);
  const u32 base = shared_address(shared), bars = base + S_BARS, relays = bars + 16 * STAGES;
  u8* tile = shared + warp * TILE_BYTES;
  if (threadIdx.x == 0)
    for (int i = 0; i < 2 * STAGES; i++) { barrier_init(bars + 8 * i); barrier_init(relays + 8 * i, WARPS); }
  fence_async();
  stage_constants(shared);
  __syncthreads();
  Constants kc, vc;
  load_constants(shared, lane, kc, vc);
  Stage at = {0, 0};
  int run = find_run(runs, all.x, lines, mine.begin);
  for (u32 start = mine.begin, end = mine.end; start < end; run++) {
    const int4 span = runs[run];
    const u32 length = span.y + PAD, before = (u32)(span.w - span.y + PAD * run) * lines;
    const int* own = rows + (run * TILES + warp) * ROWS;
    const bool idle = own[0] < 0;
    for (int line = (int)((start - before) / length); line < lines && start < end; line++) {
      const u32 first = before + (u32)line * length + PAD;
      const int from = max((int)(start - first), 0), to = (int)min((u32)span.y, (u32)max((int)(end - first), 0));
      start = first + span.y;
      if (from >= to) continue;
      const Feed feed = {base + S_RING, bars, pool, addresses + span.x, line / SLICES, line % SLICES, lane};
      Relay relay = {feed, kc, vc, shared, relays, to, warp, lane, at, at, from, from};
      __syncthreads();  // nobody reads a stage
      if (warp == 0) {
        Stage fill = at;
        for (int page = from; page < min(to, from + STAGES); page++, next(fill)) relay.ask(fill.index, page);
      }
      wait_for_previous();  // so far only the plan and packed pages were read
      if (!idle) stage_tile(tile, {q, q_token, q_head, feed.head * group, sees}, own, scale, lane);
      __syncwarp();
      Query query;
      load_query(query, tile, lane);
      const Row row = bounds_of(tile, scale, cap);
      Sums s;
      clear(s);
      bool plain = false;
      // One page's values are multiplied beside the next one's scores: neither waits for the other.
      Weights weights = {};
      Side held = relay.values(at.index);
      Stage last = at;
      relay.unpack();
      for (int page = from, since = 0; page < to; page++, next(at)) {
        const int address = feed.pages[page], position = span.z + PAGE * page;
        relay.refill(page);
        relay.unpack();
        relay.wait_unpacked(at);
        if (address < 0) {
          plain = true;
          if (V_COARSE && !idle) add_values(vc, held, shared, lane, 0, weights, s);
          weights = {};
        } else if (!idle) {
          float score[R][8][2];
          if constexpr (K_PACKED) packed_scores(query, kc, relay.keys(at.index), tile, lane, s.top, score);
          else score_plain(feed, row, tile, address, score, s);
          if constexpr (V_COARSE) {
            add_values(vc, held, shared, lane, 0, weights, s);
            if (++since == 16) { settle(s); since = 0; }
          }
          weigh(row, tile, lane, position, score, s);
          held = relay.values(at.index);
          if constexpr (V_COARSE) weigh_coarsely(held.page, lane, score, weights, s);
          else if constexpr (V_PACKED) packed_values(vc, held, shared, lane, score, s);
          else plain_values(plain_values(feed, address), lane, row.bounds[2] - position, score, s.acc);
        }
        if (page > from) relay.arrive(last.index, 1);
        last = at;
      }
      if (V_COARSE && !idle) add_values(vc, held, shared, lane, 0, weights, s);
      relay.arrive(last.index, 1);
      if (plain && !idle)
        for (int page = from; page < to; page++)
          if (feed.pages[page] < 0) read_plain(feed, row, tile, s, feed.pages[page], span.z + PAGE * page);
      const i64 part = (((i64)run * lines + line + blockIdx.x) * TILES + warp) * ROWS;
      if (!idle) store_tile(s, lane, parts + part * VD, parts_ml + part);
    }
  }
}
#endif
