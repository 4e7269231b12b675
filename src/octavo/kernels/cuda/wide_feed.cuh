// A CTA's shared memory and the warps that fill it: packed pages arrive in a ring, become tiles in another, and are read there.
#pragma once
#include "query.cuh"
#include "wide_unpack.cuh"

constexpr int GROUPS = 2, UNPACKERS = 4, ROWS = WIDE_TILE, READERS = 128 * GROUPS, THREADS = READERS + 32 * UNPACKERS;
// A page's keys and values, packed; plain ones are read where they lie.
constexpr bool K_PACKED = KF != PLAIN, V_PACKED = VF != PLAIN;
constexpr int K_BYTES = K_PACKED ? Keys::BYTES : 0, PAIR = K_BYTES + (V_PACKED ? Values::BYTES : 0);
constexpr int S_TILES = 0, S_RING = STAGES * 2 * SIDE_TILE, S_KTABLE = S_RING + AHEAD * PAIR;
constexpr int S_VTABLE = KF == VF ? S_KTABLE : S_KTABLE + table_bytes(KF);
constexpr int S_BARS = S_VTABLE + table_bytes(VF), S_END = S_BARS + 8 * (2 * STAGES + AHEAD);
static_assert(S_END <= SHARED_BYTES && SIDE_TILE % 1024 == 0 && Keys::BYTES % 16 == 0 && Values::BYTES % 16 == 0, "shared memory");
static_assert(ROWS == 64 * GROUPS, "a group of warps has 64 rows");

struct Work {  // one segment's share of this CTA
  int head, from, to, first;  // pages [from, to) of the run; position of its first token
  const int *pages, *rows;    // of the run
};

struct Bars {
  u32 at;
  DEV u32 full(int stage) const { return at + 8 * stage; }
  DEV u32 empty(int stage) const { return at + 8 * (STAGES + stage); }
  DEV u32 packed(int place) const { return at + 8 * (2 * STAGES + place); }
};

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
  DEV static int end_of(const Work& work, const int2* sees, int lane) {
    int end = 0;
    for (int row = lane; row < ROWS; row += 32) {
      const int code = work.rows[row];
      if (code >= 0) end = max(end, sees[code >> 8].y);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) end = max(end, __shfl_xor_sync(~0u, end, i));
    return end;
  }

  DEV void run(const Work& work, const int2* sees, int warp, int lane) {
    Stage fill = ring;
    for (int i = 0; i < AHEAD; i++) {
      if (warp == 0 && work.from + i < work.to && elected()) ask(work.pages[work.from + i], work.head, fill.index);
      next(fill, AHEAD);
    }
    const int end = end_of(work, sees, lane);
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
