// What only Hopper has: products of four warps with an operand in shared memory, and what goes with them (sm_90a).
#pragma once
#include "common.cuh"
typedef unsigned long long u64;

// A tile in shared memory, rows of 128 bytes (64 halves along the sum), in blocks of eight rows whose quads are swizzled: quad c
// of row r lies at c ^ r % 8. Tiles begin at multiples of 1,024. Sixteen halves farther along the sum: + 2.
DEV u64 tile_at(u32 address) {
  return (u64)(address >> 4 & 0x3FFF) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__host__ __device__ constexpr u32 swizzled(int row, int quad) { return 128 * row + ((quad ^ row % 8) << 4); }

#define SUM4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUM16(d, i) SUM4(d, i), SUM4(d, i + 4), SUM4(d, i + 8), SUM4(d, i + 12)
#define NAMES32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES36 NAMES32 ",%32,%33,%34,%35"
#define NAMES68 NAMES36 ",%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67"

// d += A · B. A: 64 × 16, a warp's 16 rows in its lanes as in hmma; B: 16 × 2 N, a row of the tile for each of its columns.
// d[4j + 2r + e]: row c + 8r of the warp's, column 8j + 2t + e. `keep` 0: d = A · B.
#define MULTIPLY(N, columns, names, a0, a1, a2, a3, tile, flag, ...) \
  DEV void multiply(float (&d)[N], const u32* a, u64 b, int keep) { \
    asm volatile("{.reg .pred p; setp.ne.b32 p," flag ",0; wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.f16.f16 {" names "},{" \
                 a0 "," a1 "," a2 "," a3 "}," tile ",p,1,1,0;}" \
                 : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep)); \
  }
MULTIPLY(32, "64", NAMES32, "%32", "%33", "%34", "%35", "%36", "%37", SUM16(d, 0), SUM16(d, 16))
MULTIPLY(36, "72", NAMES36, "%36", "%37", "%38", "%39", "%40", "%41", SUM16(d, 0), SUM16(d, 16), SUM4(d, 32))
MULTIPLY(68, "136", NAMES68, "%68", "%69", "%70", "%71", "%72", "%73", SUM16(d, 0), SUM16(d, 16), SUM16(d, 32), SUM16(d, 48), SUM4(d, 64))

// Registers that products read or write must not be touched between their issue and the wait.
DEV void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last N that were committed have ended.
template <int N = 0> DEV void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int N> DEV void settled(float (&d)[N]) {  // d is what the products left, not what the compiler knew before
#pragma unroll
  for (int i = 0; i < N; i += 4) asm volatile("" : SUM4(d, i)::"memory");
}
template <int N> DEV void settled(u32 (&a)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 4) asm volatile("" : "+r"(a[i]), "+r"(a[i + 1]), "+r"(a[i + 2]), "+r"(a[i + 3])::"memory");
}

// All four warps of a group: without this the compiler does not see that they go the same way, and makes products wait.
template <int N> DEV void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

DEV void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(bar), "r"(count) : "memory"); }
DEV void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared.b64 _,[%0];" ::"r"(bar) : "memory"); }
// Of `threads` threads that name the same barrier.
DEV void sync_some(int name, int threads) { asm volatile("bar.sync %0,%1;" ::"r"(name), "r"(threads) : "memory"); }
DEV void arrive_some(int name, int threads) { asm volatile("bar.arrive %0,%1;" ::"r"(name), "r"(threads) : "memory"); }
// What this thread stored in shared memory is there for products and copies.
DEV void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEV u32 add_f16(u32 a, u32 b) { u32 d; asm("add.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
DEV u32 multiply_add_f16(u32 a, u32 b, u32 c) { u32 d; asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }
DEV u32 pack_f16(float low, float high) { u32 d; asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(d) : "f"(high), "f"(low)); return d; }
