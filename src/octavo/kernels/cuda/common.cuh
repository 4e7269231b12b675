// Types, PTX instructions and numbers shared by the kernels.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
#define DEV __device__ __forceinline__

struct alignas(16) Quad { u32 x, y, z, w; };
struct alignas(8) Pair { u32 x, y; };

// An int32 accumulator that starts at these bits is, read as a float, MAGIC + its sum: exact for |sum| < 2^22.
// The tensor core then converts for free; cvt.f32.s32 would run at a sixteenth of the FMA rate.
constexpr int MAGIC_BITS = 0x4B400000;
constexpr float MAGIC = 12582912.f;
constexpr float NONE = -1e30f;  // maximum of no scores: finite, so that differences stay numbers

// A number that stays in a register: the compiler keeps constants, and what it can make again, elsewhere and fetches them for
// each use.
DEV u32 kept(u32 x) { asm volatile("" : "+r"(x)); return x; }
DEV u32 prmt(u32 a, u32 b, u32 select) {
  u32 d;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(select));
  return d;
}
DEV float exp2_(float x) { float y; asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x)); return y; }
DEV float tanh_(float x) { float y; asm("tanh.approx.f32 %0,%1;" : "=f"(y) : "f"(x)); return y; }
DEV float rcp_(float x) { float y; asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x)); return y; }
// Over the eight lanes that hold other tokens of the same rows.
DEV float max_tokens(float x) {
#pragma unroll
  for (int i = 4; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
DEV float sum_tokens(float x) {
#pragma unroll
  for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
  return x;
}
// 8 × 8 halves: lane 4i + t gives row i, columns 2t and 2t + 1, and gets row i of the transpose.
DEV u32 transpose(u32 x) {
  u32 d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(d) : "r"(x));
  return d;
}
// The compiler would rather rebuild a constant at each use than keep its register; this it cannot see through.
DEV u32 from_shared(u32 address) {
  u32 x;
  asm volatile("ld.volatile.shared.u32 %0,[%1];" : "=r"(x) : "r"(address));
  return x;
}
DEV u32 load_shared(u32 address) {
  u32 x;
  asm("ld.shared.u32 %0,[%1];" : "=r"(x) : "r"(address));
  return x;
}
DEV float from_half(u16 x) {
  float f;
  asm("cvt.f32.f16 %0,%1;" : "=f"(f) : "h"(x));
  return f;
}
DEV u16 to_half(float f) {
  u16 x;
  asm("cvt.rn.f16.f32 %0,%1;" : "=h"(x) : "f"(f));
  return x;
}
DEV void halves(u32 two, float& a, float& b) {
  asm("{.reg .b16 x,y; mov.b32 {x,y},%2; cvt.f32.f16 %0,x; cvt.f32.f16 %1,y;}" : "=f"(a), "=f"(b) : "r"(two));
}

// d = a · b + c: A 16 × 32 int8, B 32 × 8 int8. a0, a2 lie in row c, a1, a3 in row c + 8 of A.
// UNSIGNED: B's bytes are.
#define IMMA(type) \
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8." type ".s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};" \
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]))
template <bool UNSIGNED = false>
DEV void imma(int (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, const u32 (&b)[2], const int (&c)[4]) {
  if constexpr (UNSIGNED) IMMA("u8"); else IMMA("s8");
}

// The 16-bit type of plain pages, queries and outputs: bf16 unless HALF.
#if HALF
#define T16 "f16"
#else
#define T16 "bf16"
#endif
DEV void hmma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." T16 "." T16 ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV u32 pack16(float low, float high) {
  u32 d;
  asm("cvt.rn." T16 "x2.f32 %0,%1,%2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
DEV u32 pack_bf16(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
DEV float low_bf16(u32 x) { return __uint_as_float(x << 16); }
DEV float high_bf16(u32 x) { return __uint_as_float(x & 0xFFFF0000u); }
DEV u32 max_bf16(u32 a, u32 b) { u32 d; asm("max.bf16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
DEV u32 fma_bf16(u32 a, u32 b, u32 c) { u32 d; asm("fma.rn.bf16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d; }
DEV float load16(const u16* p) {
  float f;
#if HALF
  asm("cvt.f32.f16 %0,%1;" : "=f"(f) : "h"(*p));
#else
  f = __uint_as_float((u32)*p << 16);
#endif
  return f;
}
DEV u16 store16(float f) { return (u16)pack16(f, 0.f); }

// Rows of a run and of a wide one, as plan.py lays them out.
constexpr int TILE = 16, WIDE_TILE = 128;
// A CTA's turn to another segment, in pages of time, of decode.cu and wide.cu; merge.cu lays their lines of work out alike.
constexpr int PAD = 24, WIDE_PAD = 3;

// The next kernel in the stream may start early; it waits before it reads what this one wrote.
DEV void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEV void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Copies of packed pages into shared memory, completed on an mbarrier (Hopper) or by cp.async groups.
DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
#if __CUDA_ARCH__ >= 900
#define BULK 1
DEV void barrier_init(u32 bar) { asm volatile("mbarrier.init.shared.b64 [%0],1;" ::"r"(bar) : "memory"); }
DEV void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEV void copy_bulk(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
// To the L2 cache, which is where all see the same bytes: plain pages may be announced before they are written.
DEV void announce(const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(from), "r"(bytes) : "memory");
}
DEV void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p,[%0],%1; @p bra done; bra again; done:}"
      ::"r"(bar), "r"(parity) : "memory");
}
DEV bool elected() {  // one lane of the warp
  u32 yes;
  asm volatile("{.reg .pred p; elect.sync _|p,0xFFFFFFFF; selp.u32 %0,1,0,p;}" : "=r"(yes));
  return yes;
}
DEV void fence_async() { asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory"); }
#else
#define BULK 0
DEV void copy_lanes(u32 to, const u8* from, u32 bytes, int lane) {
  for (u32 i = lane * 16; i < bytes; i += 512)
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to + i), "l"(from + i) : "memory");
}
DEV void announce(const void*, u32) {}
DEV void fence_async() {}
#endif
