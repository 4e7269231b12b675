// Attention of up to 128 query rows over pages they share: a team of four warps unpacks a page once, and two groups of four
// warps multiply it by 64 rows each. Parts for merge.cu, one of ROWS rows for each (segment, CTA).
// Macros: KF, VF formats; HD head dim, 64 or 128; CENTRED keys; SOFTCAP; HALF; STAGES of tiles; AHEAD packed pages asked for;
// SHARED_BYTES as the host computed them.
#include "line.cuh"
#include "wide_rows.cuh"

// rows: token << 8 | query head of the group; -1 where there is none.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
wide(const u16* __restrict__ q, const u8* k, const u8* v, const u16* k16, const u16* v16,
     const int* __restrict__ addresses, const int4* __restrict__ runs, const int* __restrict__ rows,
     const int2* __restrict__ header, const int2* __restrict__ sees,
     const signed char* ktable, const signed char* vtable, u16* parts, float2* parts_ml,
     i64 q_token, i64 q_head, int heads, int group_size, float scale, float cap) {
  extern __shared__ __align__(1024) u8 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int2 all = *header;
  const Stretch mine = stretch_of(all, heads, WIDE_PAD);
  launch_dependents();
  const u32 base = kept(shared_address(shared));
  const Bars bars = {base + S_BARS};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) { barrier_init(bars.full(i), UNPACKERS); barrier_init(bars.empty(i), READERS / 32u); }
    for (int i = 0; i < AHEAD; i++) { barrier_init(bars.packed(i), 1u); barrier_init(bars.read(i), UNPACKERS); }
    fence_async();
  }
  for (int i = threadIdx.x; i < STAGES * 256; i += THREADS)  // the ones behind each stage's values
    *(u32*)(shared + S_TILES + i / 256 * TILES + TILES - 1024 + i % 256 * 4) = half_bits(1.f);
  publish();
  stage_table<KF>(shared + S_KTABLE, ktable, THREADS);
  stage_table<VF>(shared + S_VTABLE, vtable, THREADS);
  __syncthreads();
  if (warp >= READERS / 32) {
    give_registers<UNPACKER_REGISTERS>();
    const u32 words = base + 4 * lane;
    const int team = (warp - READERS / 32) / UNPACKERS;
    Unpacker unpacker = {shared, bars, {k, v, k16, v16, heads}, words + S_KTABLE, words + S_VTABLE, team, team, {0, 0}, {0, 0}};
    each_segment<WIDE_PAD>(runs, all.x, heads, mine, [&](int run, int head, int4 span, int from, int to) {
      unpacker.run({head, from, to, span.z, addresses + span.x, rows + run * ROWS}, sees, warp % UNPACKERS, lane);
    });
    return;
  }
  take_registers<READER_REGISTERS>();
  wait_for_previous();
  const int group = __shfl_sync(~0u, warp / 4, 0);  // the compiler sees that a warp goes one way
  if (group != 0) arrive_some(TURN, READERS);
  Stage tile = {0, 0};
  each_segment<WIDE_PAD>(runs, all.x, heads, mine, [&](int run, int head, int4 span, int from, int to) {
    const bool both = __shfl_sync(~0u, rows[run * ROWS + 64], 0) >= 0;  // groups have rows
    if (group != 0 && !both) {
      for (int page = from; page < to; page++) {
        barrier_wait(bars.full(tile.index), tile.parity);
        if (lane == 0) barrier_arrive(bars.empty(tile.index));
        next(tile, STAGES);
      }
      return;
    }
    const int row = 16 * warp + lane / 4, t = lane % 4;
    Rows r;
    load_rows(r, {q, q_token, q_head, head * group_size, sees}, rows + run * ROWS, row, t, scale);
    const u32 tiles = base + S_TILES;
    float score[SCORES];
    u32 weights[16];
    barrier_wait(bars.full(tile.index), tile.parity);
    settled(r.q);
    products_begin();
    ask_scores(r, tiles + TILES * tile.index, score);
    products_commit();
    products_wait();
    settled(score);
    int last = -1;
    for (int page = from; page < to; page++) {
      soften(r, t, span.z + PAGE * page, cap, score);
      products_wait();
      settled(r.out);
      settled(weights);
      if (last >= 0 && lane == 0) barrier_arrive(bars.empty(last));
#pragma unroll
      for (int i = 0; i < 16; i++) weights[i] = pack_f16(score[2 * i], score[2 * i + 1]);
      const u32 here = tiles + TILES * tile.index;
      last = tile.index;
      next(tile, STAGES);
      if (page + 1 < to) barrier_wait(bars.full(tile.index), tile.parity);
      if (both) sync_some(TURN + group, READERS);
      settled(weights);
      settled(score);
      settled(r.out);
      products_begin();
      if (page + 1 < to) {
        ask_scores(r, tiles + TILES * tile.index, score);
        products_commit();
      }
      ask_values(r, here + KEY_TILE, weights);
      products_commit();
      if (both) arrive_some(TURN + 1 - group, READERS);
      products_wait<1>();
      settled(score);
    }
    products_wait();
    settled(r.out);
    if (lane == 0) barrier_arrive(bars.empty(last));
    const i64 slot = (i64)run * heads + head + blockIdx.x;
    store_rows(r, row, t, parts + slot * ROWS * D, parts_ml + slot * ROWS);
  });
}
