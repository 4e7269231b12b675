// A CTA's shared memory and the warps that fill it: packed pages arrive in a ring, become tiles in another, and are read there.
// Teams of four warps take pages in turn: what one waits for, the other does not.
#pragma once
#include "query.cuh"
#include "wide_unpack.cuh"

constexpr int GROUPS = 2, TEAMS = 2, UNPACKERS = 4, ROWS = WIDE_TILE, READERS = 128 * GROUPS, THREADS = READERS + 32 * UNPACKERS * TEAMS;
// A thread's, of 65,536 in all.
constexpr int READER_REGISTERS = 184, UNPACKER_REGISTERS = 72;
// A page's keys and values, packed; plain ones are read where they lie.
constexpr bool K_PACKED = KF != PLAIN, V_PACKED = VF != PLAIN;
constexpr int K_BYTES = K_PACKED ? Keys::BYTES : 0, PAIR = K_BYTES + (V_PACKED ? Values::BYTES : 0);
constexpr int TILES = KEY_TILE + VALUE_TILE;  // of a page
constexpr int S_TILES = 0, S_RING = STAGES * TILES, S_KTABLE = S_RING + AHEAD * PAIR;
constexpr int S_VTABLE = KF == VF ? S_KTABLE : S_KTABLE + table_bytes(KF);
constexpr int S_BARS = S_VTABLE + table_bytes(VF), S_END = S_BARS + 16 * (STAGES + AHEAD);
static_assert(S_END <= SHARED_BYTES && KEY_HALF % 1024 == 0 && VALUE_TILE % 1024 == 0 && Keys::BYTES % 16 == 0 && Values::BYTES % 16 == 0, "shared memory");
constexpr int TURN = 1;  // names of barriers, one for each group of readers: whose turn it is to ask for products
static_assert(ROWS == 64 * GROUPS, "a group of warps has 64 rows");
static_assert(AHEAD % TEAMS == 0, "a team asks for a page where it has read one");

struct Work {  // one segment's share of this CTA
  int head, from, to, first;  // pages [from, to) of the run; position of its first token
  const int *pages, *rows;    // of the run
};

struct Bars {
  u32 at;
  DEV u32 full(int stage) const { return at + 8 * stage; }
  DEV u32 empty(int stage) const { return at + 8 * (STAGES + stage); }
  DEV u32 packed(int place) const { return at + 8 * (2 * STAGES + place); }
  DEV u32 read(int place) const { return at + 8 * (2 * STAGES + AHEAD + place); }  // a packed page, by all who need it
};

struct Unpacker {
  u8* shared;
  Bars bars;
  Pool pool;
  u32 ktable, vtable;
  int team, turn;  // pages until this team's next
  Stage tile, ring;

  // One thread asks for a page, as soon as the team has read what lies in its place.
  DEV void ask(int address, int head, Stage at) const {
    const int place = at.index;
    barrier_wait(bars.read(place), at.parity ^ 1);
    const u32 bar = bars.packed(place), to = shared_address(shared) + S_RING + PAIR * place;
    barrier_expect(bar, address >= 0 ? PAIR : 0);
    if (address < 0) return;
    const i64 page = (i64)address * pool.heads + head;
    if (K_PACKED) copy_bulk(to, pool.k + page * Keys::BYTES, Keys::BYTES, bar);
    if (V_PACKED) copy_bulk(to + K_BYTES, pool.v + page * Values::BYTES, Values::BYTES, bar);
  }

  DEV void unpack(int address, int head, int end, int warp, int lane) const {
    u8 *keys = shared + S_TILES + TILES * tile.index, *values = keys + KEY_TILE;
    const u8* packed = shared + S_RING + PAIR * ring.index;
    const i64 page = (i64)(address < 0 ? ~address : address) * pool.heads + head;
    const bool k_packed = K_PACKED && address >= 0, v_packed = V_PACKED && address >= 0;
    const bool both = PARTS >= UNPACKERS, k_mine = both || warp < PARTS, v_mine = both || !k_mine;
    if (CENTRED) store_mean(address < 0 ? nullptr : packed, lane, warp, keys);
#pragma unroll
    for (int some = 0; some < PARTS; some += UNPACKERS) {
      const int part = (some + warp) % PARTS;
      KeyWords k;
      ValueWords v;
      if (k_mine && k_packed) load_keys(packed, lane, part, k);
      if (v_mine && v_packed) load_values(packed + K_BYTES, lane, part, v);
      if (k_mine && k_packed) store_keys(k, lane, part, ktable, keys);
      else if (k_mine) copy_keys((address < 0 ? pool.k16 : (const u16*)pool.k) + page * PAGE * D, lane, part, keys);
      if (v_mine && v_packed) store_values(v, lane, part, vtable, values);
      else if (v_mine) copy_values((address < 0 ? pool.v16 : (const u16*)pool.v) + page * PAGE * D, lane, part, end, values);
    }
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

  // On to the places of the next page.
  DEV void pass() {
    next(tile, STAGES);
    next(ring, AHEAD);
    turn = turn == 0 ? TEAMS - 1 : turn - 1;
  }

  DEV void run(const Work& work, const int2* sees, int warp, int lane) {
    Stage fill = ring;
    for (int i = 0; i < AHEAD; i++) {
      if ((turn + TEAMS * AHEAD - i) % TEAMS == 0 && warp == 0 && work.from + i < work.to && elected())
        ask(work.pages[work.from + i], work.head, fill);
      next(fill, AHEAD);
    }
    const int end = end_of(work, sees, lane);
    wait_for_previous();  // plain pages may have been written by the kernel before
    int page = work.from;
    for (; turn != 0 && page < work.to; page++) pass();
    int address = page < work.to ? work.pages[page] : 0;
    for (; page < work.to; page++) {
      if (turn == 0) {
        const int after = page + TEAMS < work.to ? work.pages[page + TEAMS] : 0;
        barrier_wait(bars.packed(ring.index), ring.parity);
        barrier_wait(bars.empty(tile.index), tile.parity ^ 1);
        unpack(address, work.head, end - work.first - PAGE * page, warp, kept(lane));  // places made anew: kept ones spill
        publish();
        __syncwarp();
        if (elected()) {
          barrier_arrive(bars.full(tile.index));
          barrier_arrive(bars.read(ring.index));
          if (warp == 0 && page + AHEAD < work.to) ask(work.pages[page + AHEAD], work.head, {ring.index, ring.parity ^ 1});
        }
        __syncwarp();
        address = after;
      }
      pass();
    }
  }
};
