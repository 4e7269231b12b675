// Stands in for cuda/common.cuh on a CPU: what its functions promise, in plain C++.
#pragma once
#include "fibers.h"

#define DEV inline
#define __device__
#define __host__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static  // of known size; the other kind is `shared` of fibers.h
#define __align__(bytes)
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
using std::max;
using std::min;
inline u32 min(u32 a, int b) { return std::min(a, (u32)b); }
inline u32 max(u32 a, int b) { return std::max(a, (u32)b); }

template <class T, class F> T bits_of(F from) {
  static_assert(sizeof(T) == sizeof(F));
  T to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(u32 x) { return bits_of<float>(x); }
inline float __int_as_float(int x) { return bits_of<float>(x); }
inline u32 __float_as_uint(float x) { return bits_of<u32>(x); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
template <class T> void atomicAdd(T* at, T by) { *at += by; }
inline float __fdividef(float a, float b) { return a / b; }
inline u32 __funnelshift_r(u32 low, u32 high, u32 by) { return (u32)(((uint64_t)high << 32 | low) >> by % 32); }

inline void __syncwarp() { const u32 none = 0; gather(&none, 1); }
template <class T> T __shfl_sync(u32, T x, int from) {
  const u32 word = bits_of<u32>(x);
  return bits_of<T>(gather(&word, 1)[from][0]);
}
template <class T> T __shfl_xor_sync(u32, T x, int by) { return __shfl_sync(~0u, x, current % 32 ^ by); }
inline u32 __ballot_sync(u32, bool x) {
  const u32 word = x;
  auto all = gather(&word, 1);
  u32 bits = 0;
  for (int lane = 0; lane < 32; lane++) bits |= all[lane][0] << lane;
  return bits;
}
inline int __ffs(u32 x) { return __builtin_ffs((int)x); }
inline bool __any_sync(u32, bool x) {
  const u32 word = x;
  auto all = gather(&word, 1);
  return std::any_of(all, all + 32, [](const u32(&one)[6]) { return one[0] != 0; });
}

#include "constants.h"  // types and numbers, as cuda/common.cuh has them

DEV u32 kept(u32 x) { return x; }
DEV u32 prmt(u32 a, u32 b, u32 select) {
  const uint64_t both = (uint64_t)b << 32 | a;
  u32 d = 0;
  for (int i = 0; i < 4; i++) {
    const u32 which = select >> 4 * i & 15;
    const u8 byte = both >> 8 * (which & 7);
    d |= (u32)(which & 8 ? byte & 128 ? 255 : 0 : byte) << 8 * i;
  }
  return d;
}
DEV float exp2_(float x) { return exp2f(x); }
DEV float tanh_(float x) { return tanhf(x); }
DEV float rcp_(float x) { return 1.f / x; }
DEV float max_tokens(float x) {
  for (int i = 4; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
DEV float sum_tokens(float x) {
  for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
  return x;
}
DEV u32 transpose(u32 x) {
  auto all = gather(&x, 1);
  const int row = current % 32 / 4, t = current % 4;
  const auto at = [&](int r) { return all[4 * r + row / 2][0] >> 16 * (row % 2) & 0xFFFF; };
  return at(2 * t) | at(2 * t + 1) << 16;
}

// Rows c and c + 8, columns 2t and 2t + 1 of A · B, from the words of all lanes.
template <class T, class Dot> void multiply_tiles(T (&d)[4], const T (&c)[4], const u32 (&mine)[6], Dot dot) {
  auto all = gather(mine, 6);
  T sums[4];
  for (int v = 0; v < 4; v++) {
    const int row = current % 32 / 4, column = 2 * (current % 4) + v % 2, half = v / 2;
    sums[v] = c[v];
    for (int q = 0; q < 4; q++)
      for (int part = 0; part < 2; part++) dot(sums[v], all[4 * row + q][half + 2 * part], all[4 * column + q][4 + part]);
  }
  std::copy(sums, sums + 4, d);
}
template <bool UNSIGNED = false> DEV void imma(int (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, const u32 (&b)[2], const int (&c)[4]) {
  multiply_tiles(d, c, {a0, a1, a2, a3, b[0], b[1]}, [](int& sum, u32 x, u32 y) {
    for (int k = 0; k < 32; k += 8) sum += (signed char)(x >> k) * (UNSIGNED ? (int)(u8)(y >> k) : (signed char)(y >> k));
  });
}

DEV float low_bf16(u32 x) { return __uint_as_float(x << 16); }
DEV float high_bf16(u32 x) { return __uint_as_float(x & 0xFFFF0000u); }
inline u32 to_bf16(double x) {
  const u32 word = __float_as_uint((float)x);
  return x != x ? 0x7FFF : (word + 0x7FFF + (word >> 16 & 1)) >> 16;
}
inline float from_half(u16 x) { return (float)bits_of<_Float16>(x); }
#if HALF
inline float from16(u16 x) { return from_half(x); }
inline u16 to16(float x) { return bits_of<u16>((_Float16)x); }
#else
inline float from16(u16 x) { return low_bf16(x); }
inline u16 to16(float x) { return to_bf16(x); }
#endif
DEV void halves(u32 two, float& a, float& b) { a = from_half(two); b = from_half(two >> 16); }
DEV u32 pack_bf16(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
DEV u32 pack16(float low, float high) { return to16(low) | (u32)to16(high) << 16; }
DEV float load16(const u16* p) { return from16(*p); }
DEV u16 store16(float x) { return to16(x); }
DEV u32 max_bf16(u32 a, u32 b) { return pack_bf16(fmaxf(low_bf16(a), low_bf16(b)), fmaxf(high_bf16(a), high_bf16(b))); }
DEV u32 fma_bf16(u32 a, u32 b, u32 c) {
  return to_bf16((double)low_bf16(a) * low_bf16(b) + low_bf16(c)) | to_bf16((double)high_bf16(a) * high_bf16(b) + high_bf16(c)) << 16;
}
DEV void hmma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  multiply_tiles(d, d, {a0, a1, a2, a3, b0, b1}, [](float& sum, u32 x, u32 y) {
    sum += from16(x) * from16(y) + from16(x >> 16) * from16(y >> 16);
  });
}

DEV void launch_dependents() {}
DEV void wait_for_previous() {}
#define BULK 1
DEV u32 shared_address(const void* p) { return (u32)((const u8*)p - shared); }
DEV u32 from_shared(u32 address) { return *(const u32*)(shared + address); }
DEV u32 load_shared(u32 address) { return from_shared(address); }
DEV bool elected() { __syncwarp(); return current % 32 == 0; }
DEV void fence_async() {}
DEV void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  if ((uintptr_t)from % 16 || (bytes | to) % 16) stop("a bulk copy of no whole 16 bytes");
  if (to + bytes > SHARED_BYTES) stop("a copy beyond shared memory");
  copies.push_back({to, from, bytes, barrier});
}
DEV void announce(const void* from, u32 bytes) {
  if ((uintptr_t)from % 16 || bytes % 16) stop("no whole 16 bytes are announced");
}
DEV void barrier_init(u32 at) { barriers[at] = {1, 1, 0, 0}; }
DEV void barrier_expect(u32 at, u32 bytes) { Barrier& b = barriers.at(at); b.bytes += bytes; b.pending--; settle(b); }
DEV void barrier_wait(u32 at, u32 parity) { while (barriers.at(at).phase % 2 == parity) pause(); }
