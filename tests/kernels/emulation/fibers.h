// A CTA on a CPU: a fiber a thread, run in turn, so that results depend on the seed alone. Warps drift apart at random and
// copies land at random times: what waits for too little shows as wrong results, what waits for too much as no progress.
#pragma once
#include <setjmp.h>
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

inline void stop(const char* why) { fprintf(stderr, "emulation: %s\n", why); abort(); }

struct Dim { int x, y, z; };
struct Fiber { ucontext_t start; jmp_buf at; bool begun, done; };
struct Warp {  // a collective's words of all lanes, two in turn: a lane is at most one collective ahead
  int arrived;
  unsigned turn;
  u32 words[2][32][6];
};
struct Barrier { int count, pending, bytes; unsigned phase; };
struct Copy { u32 to; const void* from; u32 bytes, barrier; };

constexpr int STACK = 256 << 10, SHARED = 228 << 10;
alignas(128) u8 shared[SHARED];
static std::vector<Fiber> fibers;
static std::vector<char*> stacks;
static std::map<u32, Barrier> barriers;
static std::map<int, std::pair<int, unsigned>> met;  // of a named barrier: who arrived, and turns so far
static std::vector<Copy> copies;
static jmp_buf scheduler;
static Warp warps[32];
static Dim blockIdx, gridDim;
static int current, threads, exited, waiting;  // waiting: at __syncthreads
static unsigned syncs;

struct Thread { int x; };
#define threadIdx (Thread{current})

// Jumps, not swapcontext: that asks the system for the signal mask at every turn, which took half the time.
inline void pause() {
  if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
}
inline void resume(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  setcontext(&fiber.start);
}

// Every lane's words, as soon as all lanes of the warp have given theirs.
inline const u32 (*gather(const u32* mine, int count))[6] {
  Warp& warp = warps[current / 32];
  const unsigned turn = warp.turn;
  auto words = warp.words[turn % 2];
  for (int i = 0; i < count; i++) words[current % 32][i] = mine[i];
  if (++warp.arrived == 32) warp.arrived = 0, warp.turn++;
  else while (warp.turn == turn) pause();
  return words;
}
inline void check_syncthreads() {
  if (waiting && waiting == threads - exited) waiting = 0, syncs++;
}
inline void __syncthreads() {
  const unsigned before = syncs;
  waiting++;
  check_syncthreads();
  while (syncs == before) pause();
}
inline bool __syncthreads_or(bool x) {  // answers are there until all have met again
  static unsigned any[2];
  const unsigned turn = syncs % 2;
  if (x) any[turn] = syncs + 1;
  const unsigned now = syncs;
  __syncthreads();
  return any[turn] == now + 1;
}

inline void settle(Barrier& b) {
  if (b.pending < 0 || b.bytes < 0) stop("more arrivals or bytes than a barrier expects");
  if (b.pending == 0 && b.bytes == 0) b.phase++, b.pending = b.count;
}
inline void land(size_t which) {
  const Copy copy = copies[which];
  copies.erase(copies.begin() + which);
  memcpy(shared + copy.to, copy.from, copy.bytes);
  Barrier& b = barriers.at(copy.barrier);
  b.bytes -= copy.bytes;
  settle(b);
}

template <class Body> void run_block(Body& body) {
  static Body* running;
  running = &body;
  barriers.clear();
  met.clear();
  copies.clear();
  exited = waiting = 0;
  memset(shared, 0xFF, SHARED);
  for (Warp& warp : warps) warp.arrived = 0;
  for (int i = 0; i < threads; i++) {
    Fiber& fiber = fibers[i];
    fiber.begun = fiber.done = false;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = stacks[i];
    fiber.start.uc_stack.ss_size = STACK;
    makecontext(&fiber.start, (void (*)())+[] {
      (*running)();
      fibers[current].done = true;
      exited++;
      check_syncthreads();
      pause();
    }, 0);
  }
  for (long idle = 0; exited < threads;) {
    const int before = exited;
    for (int warp = 0; warp < threads / 32; warp++) {
      if (rand() % 3 == 0) continue;
      for (int turns = 1 + rand() % 40; turns; turns--)
        for (int lane = 0; lane < 32; lane++) {
          current = 32 * warp + lane;
          if (!fibers[current].done) resume(fibers[current]);
        }
    }
    while (!copies.empty() && rand() % 2) land(rand() % copies.size());
    idle = exited == before ? idle + 1 : 0;
    if (idle > 200000) stop("no progress");
  }
  if (!copies.empty()) stop("a CTA ended before its copies");
}

template <class Body> void launch(Dim grid, int size, Body body) {
  gridDim = grid;
  threads = size;
  fibers.resize(size);
  while ((int)stacks.size() < size) stacks.push_back((char*)malloc(STACK));
  for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) run_block(body);
}
