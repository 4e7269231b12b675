// Attention of up to 128 query rows over pages they share: four warps unpack a page once, and two groups of four warps
// multiply it by 64 rows each. Parts for merge.cu, one of ROWS rows for each (segment, CTA).
// Macros: KF, VF formats; HD head dim, 64 or 128; CENTRED keys; SOFTCAP; HALF; STAGES of tiles; AHEAD packed pages asked for;
// SHARED_BYTES as the host computed them.
#include "line.cuh"
#include "wide_rows.cuh"

// rows: token << 8 | query head of the group; -1 where there is none.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
wide(const u16* __restrict__ q, const u8* k, const u8* v, const u16* k16, const u16* v16,
     const int* __restrict__ addresses, const int4* __restrict__ runs, const int* __restrict__ rows,
     const int2* __restrict__ header, const int2* __restrict__ sees,
     const signed char* ktable, const signed char* vtable, float* parts, float2* parts_ml,
     i64 q_token, i64 q_head, int heads, int group, float scale, float cap) {
  extern __shared__ __align__(1024) u8 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int2 all = *header;
  const Stretch mine = stretch_of(all, heads, WIDE_PAD);
  launch_dependents();
  const Bars bars = {shared_address(shared) + S_BARS};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) { barrier_init(bars.full(i), 1u); barrier_init(bars.empty(i), READERS / 32u); }
    for (int i = 0; i < AHEAD; i++) barrier_init(bars.packed(i), 1u);
    fence_async();
  }
  stage_table<KF>(shared + S_KTABLE, ktable, THREADS);
  stage_table<VF>(shared + S_VTABLE, vtable, THREADS);
  __syncthreads();
  if (warp >= READERS / 32) {
    give_registers<152>();
    const u32 words = shared_address(shared) + 4 * lane;
    Unpacker unpacker = {shared, bars, {k, v, k16, v16, heads}, words + S_KTABLE, words + S_VTABLE, {0, 0}, {0, 0}};
    each_segment<WIDE_PAD>(runs, all.x, heads, mine, [&](int run, int head, int4 span, int from, int to) {
      unpacker.run({head, from, to, span.z, addresses + span.x, rows + run * ROWS}, sees, warp - READERS / 32, lane);
    });
    return;
  }
  take_registers<176>();
  wait_for_previous();
  Stage tile = {0, 0};
  each_segment<WIDE_PAD>(runs, all.x, heads, mine, [&](int run, int head, int4 span, int from, int to) {
    const int row = 16 * warp + lane / 4, t = lane % 4;
    Rows r;
    load_rows(r, {q, q_token, q_head, head * group, sees}, rows + run * ROWS, row, t, scale);
    const u32 tiles = shared_address(shared) + S_TILES;
    float score[32];
    barrier_wait(bars.full(tile.index), tile.parity);
    settled(r.q);
    products_begin();
    ask_scores(r, tiles + 2 * SIDE_TILE * tile.index, score);
    products_wait();
    settled(score);
    for (int page = from; page < to; page++) {
      soften(r, t, span.z + PAGE * page, cap, score);
      u32 weights[16];
#pragma unroll
      for (int i = 0; i < 16; i++) weights[i] = pack_bf16(score[2 * i], score[2 * i + 1]);
      const Stage here = tile;
      next(tile, STAGES);
      settled(weights);
      settled(r.out);
      products_begin();
      ask_values(r, tiles + 2 * SIDE_TILE * here.index + SIDE_TILE, weights);
      if (page + 1 < to) {
        barrier_wait(bars.full(tile.index), tile.parity);
        settled(score);
        products_begin();
        ask_scores(r, tiles + 2 * SIDE_TILE * tile.index, score);
      }
      products_wait();
      settled(score);
      settled(r.out);
      settled(weights);
      if (lane == 0) barrier_arrive(bars.empty(here.index));
    }
    const i64 slot = (i64)run * heads + head + blockIdx.x;
    store_rows(r, row, t, parts + slot * ROWS * D, parts_ml + slot * ROWS);
  });
}
