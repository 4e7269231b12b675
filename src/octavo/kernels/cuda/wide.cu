// Attention of up to 128 query rows over pages they share: four warps unpack a page once, and two groups of four warps
// multiply it by 64 rows each. Parts for merge.cu, one of ROWS rows for each (segment, CTA).
// Macros: KF, VF formats; HD head dim, 64 or 128; CENTRED keys; SOFTCAP; HALF; STAGES of tiles; AHEAD packed pages asked for;
// SHARED_BYTES as the host computed them.
#include "line.cuh"
#include "wide_unpack.cuh"

constexpr int GROUPS = 2, UNPACKERS = 4, ROWS = WIDE_TILE, READERS = 128 * GROUPS, THREADS = READERS + 32 * UNPACKERS;
// A page's keys and values, packed; plain ones are read where they lie.
constexpr bool K_PACKED = KF != PLAIN, V_PACKED = VF != PLAIN;
constexpr int K_BYTES = K_PACKED ? Keys::BYTES : 0, PAIR = K_BYTES + (V_PACKED ? Values::BYTES : 0);
constexpr int S_TILES = 0, S_RING = STAGES * 2 * SIDE_TILE, S_KTABLE = S_RING + AHEAD * PAIR;
__host__ __device__ constexpr int table_bytes(int f) { return is_trellis(f) ? 128 << state_bits(f) : 0; }
constexpr int S_VTABLE = KF == VF ? S_KTABLE : S_KTABLE + table_bytes(KF);
constexpr int S_BARS = S_VTABLE + table_bytes(VF), S_END = S_BARS + 8 * (2 * STAGES + AHEAD);
static_assert(S_END <= SHARED_BYTES && SIDE_TILE % 1024 == 0 && Keys::BYTES % 16 == 0 && Values::BYTES % 16 == 0, "shared memory");
static_assert(ROWS == 64 * GROUPS, "a group of warps has 64 rows");

struct Asked {  // who asks, and for what
  const u16* q;
  i64 token, head;  // strides
  int group;
  const int* rows;
  const int2* sees;
};
struct Work {  // one segment's share of this CTA
  int run, head, from, to, first;  // pages [from, to) of the run; position of its first token
  const int* pages;
};

struct Bars {
  u32 at;
  DEV u32 full(int stage) const { return at + 8 * stage; }
  DEV u32 empty(int stage) const { return at + 8 * (STAGES + stage); }
  DEV u32 packed(int place) const { return at + 8 * (2 * STAGES + place); }
};

struct Pool {
  const u8 *k, *v;       // packed pages: [slots, heads, BYTES]
  const u16 *k16, *v16;  // plain pages: [slots, heads, 64, D]
  int heads;
};

// Unpacking.

struct Unpacker {
  u8* shared;
  Bars bars;
  Pool pool;
  u32 ktable, vtable;
  Stage tile, ring;

  DEV void ask(int address, int head, int place) const {
    const u32 bar = bars.packed(place), to = shared_address(shared) + S_RING + PAIR * place;
    barrier_expect(bar, address >= 0 ? PAIR : 0);
    if (address < 0) return;
    const i64 page = (i64)address * pool.heads + head;
    if (K_PACKED) copy_bulk(to, pool.k + page * Keys::BYTES, Keys::BYTES, bar);
    if (V_PACKED) copy_bulk(to + K_BYTES, pool.v + page * Values::BYTES, Values::BYTES, bar);
  }

  DEV void read_keys(const u8* packed, int address, i64 page, int lane, int part, u8* to) const {
    if (K_PACKED && address >= 0) unpack_keys(packed, lane, part, ktable, to);
    else copy_keys((address < 0 ? pool.k16 : (const u16*)pool.k) + page * PAGE * D, lane, part, to);
  }
  DEV void read_values(const u8* packed, int address, i64 page, int lane, int part, int end, u8* to) const {
    if (V_PACKED && address >= 0) unpack_values(packed + K_BYTES, lane, part, vtable, to);
    else copy_values((address < 0 ? pool.v16 : (const u16*)pool.v) + page * PAGE * D, lane, part, end, to);
  }
  DEV void unpack(int address, int head, int end, int warp, int lane) const {
    u8* keys = shared + S_TILES + 2 * SIDE_TILE * tile.index;
    const u8* packed = shared + S_RING + PAIR * ring.index;
    const i64 page = (i64)(address < 0 ? ~address : address) * pool.heads + head;
    if constexpr (PARTS >= UNPACKERS) {
#pragma unroll
      for (int part = 0; part < PARTS; part += UNPACKERS) {
        read_keys(packed, address, page, lane, part + warp, keys);
        read_values(packed, address, page, lane, part + warp, end, keys + SIDE_TILE);
      }
    } else if (warp < PARTS) read_keys(packed, address, page, lane, warp, keys);
    else read_values(packed, address, page, lane, warp - PARTS, end, keys + SIDE_TILE);
  }

  // The end of what the run's rows see.
  DEV static int end_of(const Asked& asked, int run, int lane) {
    int end = 0;
    for (int row = lane; row < ROWS; row += 32) {
      const int code = asked.rows[run * ROWS + row];
      if (code >= 0) end = max(end, asked.sees[code >> 8].y);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) end = max(end, __shfl_xor_sync(~0u, end, i));
    return end;
  }

  DEV void run(const Work& work, const Asked& asked, int warp, int lane) {
    Stage fill = ring;
    for (int i = 0; i < AHEAD; i++) {
      if (warp == 0 && work.from + i < work.to && elected()) ask(work.pages[work.from + i], work.head, fill.index);
      next(fill, AHEAD);
    }
    const int end = end_of(asked, work.run, lane);
    wait_for_previous();  // plain pages may have been written by the kernel before
    for (int page = work.from; page < work.to; page++) {
      barrier_wait(bars.packed(ring.index), ring.parity);
      barrier_wait(bars.empty(tile.index), tile.parity ^ 1);
      unpack(work.pages[page], work.head, end - work.first - PAGE * page, warp, lane);
      publish();
      sync_some(1, 32 * UNPACKERS);
      if (warp == 0 && elected()) {
        barrier_arrive(bars.full(tile.index));
        if (page + AHEAD < work.to) ask(work.pages[page + AHEAD], work.head, ring.index);
      }
      next(tile, STAGES);
      next(ring, AHEAD);
    }
  }
};

// Reading. A thread holds rows c and c + 8 of its warp's sixteen, and of each eight tokens (or channels) two.

struct Reader {
  u32 q[D / 4];
  float out[D / 2], top[2], sum[2], scale[2];
  int sees[2][2];
  u32 empty;
};

DEV float max_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Queries as halves of each row's largest.
DEV void load_rows(Reader& r, const Asked& asked, const Work& work, int row, int t, float scale) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int code = asked.rows[work.run * ROWS + row + 8 * e];
    const u16* from = asked.q + (code >> 8) * asked.token + (work.head * asked.group + (code & 255)) * asked.head + 2 * t;
    u32 two[D / 8];
    float x[D / 8][2], peak = 0.f;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
      two[i] = code < 0 ? 0u : *(const u32*)(from + 8 * i);
      const u16 low = two[i], high = two[i] >> 16;
      x[i][0] = load16(&low);
      x[i][1] = load16(&high);
      peak = fmaxf(peak, fmaxf(fabsf(x[i][0]), fabsf(x[i][1])));
    }
    peak = max_quad(peak);
    const float inverse = peak > 0.f ? 1.f / peak : 0.f;
    r.scale[e] = peak * scale;
#pragma unroll
    for (int i = 0; i < D / 8; i++) r.q[2 * i + e] = pack_f16(x[i][0] * inverse, x[i][1] * inverse);
    const int2 sees = code < 0 ? make_int2(0, 0x7FFFFFFF) : asked.sees[code >> 8];
    r.sees[e][0] = sees.x;
    r.sees[e][1] = sees.y;
    r.top[e] = r.sum[e] = 0.f;
  }
  r.empty = 3;
#pragma unroll
  for (int i = 0; i < D / 2; i++) r.out[i] = 0.f;
}

DEV void hide(const Reader& r, int t, int first, float (&score)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int e = i / 2 % 2, token = first + i / 4 * 8 + turned(2 * t + i % 2);
    if (token < r.sees[e][0] || token >= r.sees[e][1]) score[i] = __int_as_float(0xFF800000);
  }
}

// Products become probabilities. r.top follows the true maximum at a distance of 6 (64 times).
DEV void soften(Reader& r, int t, int first, float cap, float (&score)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int e = i / 2 % 2;
#if SOFTCAP
    score[i] = cap * tanh_(score[i] * r.scale[e] * (1.f / cap)) - r.top[e];
#else
    score[i] = score[i] * r.scale[e] - r.top[e];
#endif
  }
  if (first < max(r.sees[0][0], r.sees[1][0]) || first + PAGE > min(r.sees[0][1], r.sees[1][1])) hide(r, t, first, score);
  float most[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    most[e] = score[2 * e];
#pragma unroll
    for (int i = 0; i < 16; i++) most[e] = fmaxf(most[e], score[i / 2 * 4 + 2 * e + i % 2]);
  }
  if (__any_sync(~0u, r.empty != 0 || most[0] > 6.f || most[1] > 6.f)) {
    float fade[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float rise = max_quad(most[e]);
      if (!(r.empty >> e & 1)) rise = fmaxf(rise, 0.f);
      if (!(rise > NONE)) rise = 0.f;
      else r.empty &= ~(1u << e);
      fade[e] = exp2_(-fmaxf(rise, 0.f));
      r.top[e] += rise;
      r.sum[e] *= fade[e];
#pragma unroll
      for (int i = 0; i < 16; i++) score[i / 2 * 4 + 2 * e + i % 2] -= rise;
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) r.out[i] *= fade[i / 2 % 2];
  }
#pragma unroll
  for (int i = 0; i < 32; i++) {
    score[i] = exp2_(score[i]);
    r.sum[i / 2 % 2] += score[i];
  }
}

DEV void ask_scores(const Reader& r, u32 keys, float (&score)[32]) {
#pragma unroll
  for (int s = 0; s < D / 16; s++)
    multiply_f16(score, r.q + 4 * s, tile_at(keys + s / 4 * (SIDE_TILE * 64 / D)) + 2 * (s % 4), s > 0);
}
DEV void ask_values(Reader& r, u32 values, const u32 (&weights)[16]) {
#pragma unroll
  for (int s = 0; s < 4; s++) multiply_bf16(r.out, weights + 4 * s, tile_at(values) + 2 * s, 1);
}
DEV void store_rows(const Reader& r, int row, int t, float* part, float2* part_ml) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float sum = r.sum[e] + __shfl_xor_sync(~0u, r.sum[e], 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (t == 0) part_ml[row + 8 * e] = {r.empty >> e & 1 ? NONE : r.top[e], sum};
#pragma unroll
    for (int i = 0; i < D / 4; i++) part[(row + 8 * e) * D + i / 2 * 8 + turned(2 * t + i % 2)] = r.out[i / 2 * 4 + 2 * e + i % 2];
  }
}

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
  for (int i = threadIdx.x; is_trellis(KF) && i < table_bytes(KF) / 4; i += THREADS) ((int*)(shared + S_KTABLE))[i] = ktable[i / 32];
  for (int i = threadIdx.x; is_trellis(VF) && i < table_bytes(VF) / 4; i += THREADS) ((int*)(shared + S_VTABLE))[i] = vtable[i / 32];
  __syncthreads();
  const Asked asked = {q, q_token, q_head, group, rows, sees};
  if (warp >= READERS / 32) {
    give_registers<152>();
    const u32 words = shared_address(shared) + 4 * lane;
    Unpacker unpacker = {shared, bars, {k, v, k16, v16, heads}, words + S_KTABLE, words + S_VTABLE, {0, 0}, {0, 0}};
    each_segment(runs, all.x, heads, mine, WIDE_PAD, [&](int run, int head, int4 span, int from, int to) {
      unpacker.run({run, head, from, to, span.z, addresses + span.x}, asked, warp - READERS / 32, lane);
    });
    return;
  }
  take_registers<176>();
  wait_for_previous();
  Stage tile = {0, 0};
  each_segment(runs, all.x, heads, mine, WIDE_PAD, [&](int run, int head, int4 span, int from, int to) {
    const int row = 16 * warp + lane / 4, t = lane % 4;
    Reader r;
    load_rows(r, asked, {run, head, from, to, span.z, nullptr}, row, t, scale);
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
