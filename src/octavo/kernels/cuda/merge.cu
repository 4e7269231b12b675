// Parts of decode.cu become outputs: one CTA a (query token, head, slice); its warps share the parts.
#include "common.cuh"

constexpr int D = HD, SLICES = D / SLICE, WARPS = 8, PER = SLICE / 32;  // channels of a lane: PER lane .. + PER - 1

struct Mix {
  float top, sum, acc[PER];
  DEV void add(float other_top, float other_sum, const float (&x)[PER]) {
    if (!(other_sum > 0.f)) return;  // saw nothing: its other numbers may be anything
    const float now = fmaxf(top, other_top), old = exp2_(top - now), fresh = exp2_(other_top - now);
    top = now;
    sum = sum * old + other_sum * fresh;
#pragma unroll
    for (int i = 0; i < PER; i++) acc[i] = acc[i] * old + x[i] * fresh;
  }
};

// links[offsets[i]..offsets[i + 1]): run * 16 + row of every part of query row i = token * group + head % group.
// A sink is a score in natural units that joins the denominator alone.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
merge(const float* __restrict__ parts, const float2* __restrict__ parts_ml, const int4* __restrict__ runs,
      const int* __restrict__ header, const int* __restrict__ offsets, const int* __restrict__ links,
      const float* __restrict__ sinks, u16* out, i64 out_token, i64 out_head, int heads, int group, int ctas) {
  __shared__ float shared[WARPS][SLICE + 2];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int token = blockIdx.x, head = blockIdx.y, slice = blockIdx.z, lines = heads * SLICES;
  const int row = token * group + head % group, line = head / group * SLICES + slice;
  const u32 total = (u32)(header[1] + PAD * header[0]) * lines, stretch = (total + ctas - 1) / ctas;
  launch_dependents();
  wait_for_previous();
  Mix mix = {NONE, 0.f};
  int turn = warp;
  for (int link = offsets[row]; link < offsets[row + 1]; link++) {
    const int run = links[link] / 16, at = links[link] % 16;
    const int4 span = runs[run];
    if (span.y == 0) continue;
    const u32 first = (u32)(span.w - span.y + PAD * run) * lines + (u32)line * (span.y + PAD) + PAD;
    const u32 slot = run * lines + line + first / stretch, count = (first + span.y - 1) / stretch - first / stretch + 1;
    for (; turn < count; turn += WARPS) {
      const i64 part = (i64)(slot + turn) * ROWS + at;
      const float2 ml = parts_ml[part];
      float x[PER];
#pragma unroll
      for (int i = 0; i < PER; i++) x[i] = parts[part * SLICE + PER * lane + i];
      mix.add(ml.x, ml.y, x);
    }
    turn -= count;
  }
#pragma unroll
  for (int i = 0; i < PER; i++) shared[warp][PER * lane + i] = mix.acc[i];
  if (lane == 0) { shared[warp][SLICE] = mix.top; shared[warp][SLICE + 1] = mix.sum; }
  __syncthreads();
  if (warp) return;
  for (int w = 1; w < WARPS; w++) {
    float x[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) x[i] = shared[w][PER * lane + i];
    mix.add(shared[w][SLICE], shared[w][SLICE + 1], x);
  }
  if (sinks) {
    const float none[PER] = {};
    mix.add(sinks[head] * 1.4426950408889634f, 1.f, none);
  }
  const float inverse = mix.sum > 0.f ? 1.f / mix.sum : 0.f;
  u16* to = out + token * out_token + head * out_head + slice * SLICE + PER * lane;
#pragma unroll
  for (int i = 0; i < PER; i += 2) *(u32*)(to + i) = pack16(mix.acc[i] * inverse, mix.acc[i + 1] * inverse);
}
