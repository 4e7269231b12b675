// Packed pages on their way from device memory to shared memory.
#pragma once
#include "layout.cuh"
#include "query.cuh"

// Fills one warp's ring of stages: stage i holds the i-th, (i + STAGES)-th, ... of its pages.
struct Feed {
  u32 ring, bars;           // shared addresses of this warp
  const Pool& pool;
  const int* pages;
  int head, slice, lane;

  DEV const u8* key_page(int address) const { return pool.k + ((i64)address * pool.heads + head) * K_PAGE; }
  DEV const u8* value_page(int address) const { return pool.v + ((i64)address * pool.heads + head) * V_PAGE; }
  DEV i64 plain_page(int address) const { return ((i64)~address * pool.heads + head) * PAGE * D; }
  DEV const u16* plain_keys(int address) const {
    return !K_PACKED && address >= 0 ? (const u16*)key_page(address) : pool.k16 + plain_page(address);
  }
  DEV const u16* plain_values(int address) const {  // of the slice
    return (!V_PACKED && address >= 0 ? (const u16*)value_page(address) : pool.v16 + plain_page(address)) + slice * VD;
  }

  // A thread's share of the plain pages among [from, to); whether there are any.
  DEV bool announce_plain(int from, int to) const {
    bool some = false;
    for (int i = from + (int)threadIdx.x; i < to; i += 32 * WARPS) {
      if (pages[i] >= 0) continue;
      some = true;
      announce(pool.k16 + plain_page(pages[i]), 2 * PAGE * D);
      announce(pool.v16 + plain_page(pages[i]), 2 * PAGE * D);
    }
    return some;
  }

#if BULK
  DEV void send(u32 bar, bool packed, u32 bytes) const { barrier_expect(bar, packed ? bytes : 0u); }
  DEV void keys(int stage, int address, bool page = true) const {
    if (!K_PACKED || !page || !elected()) return;
    const u32 bar = bars + 16 * stage;
    send(bar, address >= 0, K_PAGE);
    if (address >= 0) copy_bulk(ring + stage * K_STAGE, key_page(address), K_PAGE, bar);
  }
  DEV void values(int stage, int address, bool page = true) const {
    if (!V_PACKED || !page || !elected()) return;
    const u32 bar = bars + 16 * stage + 8, to = ring + STAGES * K_STAGE + stage * V_STAGE;
    const u8* from = value_page(address);
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
      copy_lanes(ring + stage * K_STAGE, key_page(address), K_PAGE, lane);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  DEV void values(int stage, int address, bool page = true) const {
    const u32 to = ring + STAGES * K_STAGE + stage * V_STAGE;
    const u8* from = value_page(address);
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
