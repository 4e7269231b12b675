// Stands in for cuda/hopper.cuh on a CPU. Products happen when they are waited for, with what their tiles then hold.
#pragma once
#include "common.cuh"
#include <functional>
typedef uint64_t u64;

DEV u64 tile_at(u32 address) {
  if (address % 1024) stop("a tile that does not begin at a multiple of 1,024");
  return address >> 4;
}
__host__ __device__ constexpr u32 swizzled(int row, int quad) { return 128 * row + ((quad ^ row % 8) << 4); }

static std::map<int, std::vector<std::vector<std::function<void()>>>> products;  // of a thread: committed ones, and the last
inline auto& asked() {
  auto& mine = products[current];
  if (mine.empty()) mine.emplace_back();
  return mine;
}

// Row `row` of a tile from byte 16 · at on, sixteen halves: the hardware swizzles addresses, not rows.
inline const u16* tile_half(u64 at, int row, int k) {
  const u32 address = (u32)(at << 4) + row / 8 * 1024 + row % 8 * 128 + 2 * k;
  return (const u16*)(shared + (address ^ (address >> 7 & 7) << 4));
}
template <int N> void multiply(float (&d)[N], const u32* a, u64 b, int keep) {
  auto all = gather(a, 4);
  const int c = current % 32 / 4, t = current % 4;
  float x[2][16];
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 16; k++) x[r][k] = from_half(all[4 * c + k % 8 / 2][r + 2 * (k / 8)] >> 16 * (k % 2));
  std::vector<float> rows(&x[0][0], &x[0][0] + 32);
  float* to = d;
  asked().back().push_back([=] {
    for (int i = 0; i < N; i++) {
      float sum = keep ? to[i] : 0.f;
      for (int k = 0; k < 16; k++) sum += rows[16 * (i / 2 % 2) + k] * from_half(*tile_half(b, i / 4 * 8 + 2 * t + i % 2, k));
      to[i] = sum;
    }
  });
}
DEV void products_begin() { __syncwarp(); }
DEV void products_commit() { asked().emplace_back(); }
template <int N = 0> void products_wait() {
  auto& mine = asked();
  while ((int)mine.size() > N + 1) {
    for (auto& product : mine.front()) product();
    mine.erase(mine.begin());
  }
  __syncwarp();
}
template <class T> void settled(T&) {}
template <int N> void give_registers() {}
template <int N> void take_registers() {}

DEV void barrier_init(u32 at, u32 count) { barriers[at] = {(int)count, (int)count, 0, 0}; }
DEV void barrier_arrive(u32 at) { Barrier& b = barriers.at(at); b.pending--; settle(b); }
DEV void publish() {}
DEV void arrive_some(int name, int count) {
  auto& [arrived, turn] = met[name];
  if (++arrived == count) arrived = 0, turn++;
}
DEV void sync_some(int name, int count) {
  const unsigned before = met[name].second;
  arrive_some(name, count);
  while (met[name].second == before) pause();
}

inline u16 half_of(double x) { return bits_of<u16>((_Float16)x); }
template <class F> u32 each_half(F f) { return half_of(f(0)) | (u32)half_of(f(16)) << 16; }
DEV u32 add_f16(u32 a, u32 b) { return each_half([=](int i) { return (double)from_half(a >> i) + from_half(b >> i); }); }
DEV u32 multiply_add_f16(u32 a, u32 b, u32 c) {
  return each_half([=](int i) { return (double)from_half(a >> i) * from_half(b >> i) + from_half(c >> i); });
}
DEV u32 pack_f16(float low, float high) { return half_of(low) | (u32)half_of(high) << 16; }
