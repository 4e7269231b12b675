// Parts of decode.cu become outputs: one CTA of 128 threads a (query token, head) row.
#include "common.cuh"

constexpr int D = HD, SLICES = D / SLICE, PER = (SLICE + 127) / 128;

// links[offsets[i]..offsets[i + 1]): run * 16 + row of every part of query row i = token * group + head % group.
// A sink is a score in natural units that joins the denominator alone.
extern "C" __global__ void __launch_bounds__(128)
merge(const float* __restrict__ parts, const float2* __restrict__ parts_ml, const int4* __restrict__ runs,
      const int* __restrict__ ends, const int* __restrict__ num_runs, const int* __restrict__ offsets,
      const int* __restrict__ links, const float* __restrict__ sinks, u16* out, i64 out_token, i64 out_head,
      int heads, int group, int ctas) {
  const int token = blockIdx.x, head = blockIdx.y, slice = blockIdx.z, lines = heads * SLICES;
  const int row = token * group + head % group, line = head / group * SLICES + slice;
  const i64 total = (i64)ends[*num_runs] * lines, stretch = (total + ctas - 1) / ctas;
  float top = NONE, sum = 0.f, acc[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) acc[i] = 0.f;
  for (int link = offsets[row]; link < offsets[row + 1]; link++) {
    const int run = links[link] / 16, at = links[link] % 16, pages = runs[run].y;
    if (pages == 0) continue;
    const i64 first = (i64)ends[run] * lines + (i64)line * pages;
    const i64 slot = (i64)run * lines + line + first / stretch, count = (first + pages - 1) / stretch - first / stretch + 1;
#pragma unroll 4
    for (i64 part = slot; part < slot + count; part++) {
      const float2 ml = parts_ml[part * ROWS + at];
      float x[PER];
#pragma unroll
      for (int i = 0; i < PER; i++) x[i] = parts[(part * ROWS + at) * SLICE + (128 * i + threadIdx.x) % SLICE];
      if (!(ml.y > 0.f)) continue;
      const float now = fmaxf(top, ml.x), old = exp2_(top - now), fresh = exp2_(ml.x - now);
      top = now;
      sum = sum * old + ml.y * fresh;
#pragma unroll
      for (int i = 0; i < PER; i++) acc[i] = acc[i] * old + x[i] * fresh;
    }
  }
  if (sinks) {
    const float sink = sinks[head] * 1.4426950408889634f, now = fmaxf(top, sink), old = exp2_(top - now);
    sum = sum * old + exp2_(sink - now);
#pragma unroll
    for (int i = 0; i < PER; i++) acc[i] *= old;
  }
  const float inverse = sum > 0.f ? 1.f / sum : 0.f;
#pragma unroll
  for (int i = 0; i < PER; i++)
    if (128 * i + threadIdx.x < SLICE)
      out[token * out_token + head * out_head + slice * SLICE + 128 * i + threadIdx.x] = store16(acc[i] * inverse);
}
