// Parts of decode.cu, and with WIDE of wide.cu, become outputs: one CTA a (query token, head, slice); its warps share the parts.
#include "common.cuh"

constexpr int D = HD, SLICES = D / SLICE, WARPS = 8, PER = SLICE / 32;  // channels of a lane: PER lane .. + PER - 1
constexpr int AT_ONCE = 3;  // parts a warp asks for together

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

// Sums of a lane's channels in a part. Of wide runs they are means, as halves, to be weighed by the part's denominator.
DEV void load_sums(const float* from, float, float (&x)[PER]) {
#pragma unroll
  for (int i = 0; i < PER; i += 2) {
    const float2 two = *(const float2*)(from + i);
    x[i] = two.x; x[i + 1] = two.y;
  }
}
DEV void load_sums(const u16* from, float denominator, float (&x)[PER]) {
#pragma unroll
  for (int i = 0; i < PER; i += 2) {
    halves(*(const u32*)(from + i), x[i], x[i + 1]);
    x[i] *= denominator; x[i + 1] *= denominator;
  }
}
struct Place { i64 part; int count; bool wide; };  // of a run's parts: the first, one in every tile's rows from there

// links[offsets[i]..offsets[i + 1]): run * TILE + row of every part of query row i = token * group + head % group; of a wide
// run ~(run * WIDE_TILE + row). header: runs and their pages, then those of wide runs.
// A sink is a score in natural units that joins the denominator alone.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
merge(const float* __restrict__ parts, const float2* __restrict__ parts_ml, const int4* __restrict__ runs,
      const u16* __restrict__ wide_parts, const float2* __restrict__ wide_parts_ml, const int4* __restrict__ wide_runs,
      const int2* __restrict__ header, const int* __restrict__ offsets, const int* __restrict__ links,
      const float* __restrict__ sinks, u16* out, i64 out_token, i64 out_head, int heads, int group, int ctas) {
  __shared__ float shared[WARPS][SLICE + 2];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int token = blockIdx.x, head = blockIdx.y, slice = blockIdx.z, lines = heads * SLICES;
  const int row = token * group + head % group, line = head / group * SLICES + slice;
  launch_dependents();
  const auto stretch_of = [&](int2 all, int pad) {
    const u32 total = (u32)(all.y + pad * all.x) * lines;
    return (total + ctas - 1) / ctas;
  };
  const u32 few = stretch_of(header[0], PAD), many = WIDE ? stretch_of(header[1], WIDE_PAD) : 0;
  const auto place = [&](int link) -> Place {
    const bool wide = WIDE && links[link] < 0;
    const int code = wide ? ~links[link] : links[link], tile = wide ? WIDE_TILE : TILE, pad = wide ? WIDE_PAD : PAD;
    const u32 stretch = wide ? many : few;
    const int run = code / tile;
    const int4 span = (wide ? wide_runs : runs)[run];
    if (span.y == 0) return {0, 0, false};
    const u32 first = (u32)(span.w - span.y + pad * run) * lines + (u32)line * (span.y + pad) + pad;
    const u32 slot = run * lines + line + first / stretch;
    return {(i64)slot * (wide ? WIDE_TILE : ROWS) + code % tile, (int)((first + span.y - 1) / stretch - first / stretch + 1), wide};
  };
  int link = offsets[row];
  const int end = offsets[row + 1];
  Place next = link < end ? place(link) : Place{};
  wait_for_previous();  // so far only the plan was read
  Mix mix = {NONE, 0.f};
  int turn = warp;
  for (; link < end; link++) {
    const Place here = next;
    if (link + 1 < end) next = place(link + 1);
    const bool wide = WIDE && here.wide;
    const float2* weights = wide ? wide_parts_ml : parts_ml;
    for (; turn < here.count; turn += AT_ONCE * WARPS) {
      float2 ml[AT_ONCE];
      float x[AT_ONCE][PER];
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) {
        const int which = turn + n * WARPS;
        const i64 part = here.part + (i64)min(which, here.count - 1) * (wide ? WIDE_TILE : ROWS);
        ml[n] = weights[part];
        if (which >= here.count) ml[n].y = 0.f;
        if (wide) load_sums(wide_parts + part * SLICE + PER * lane, ml[n].y, x[n]);
        else load_sums(parts + part * SLICE + PER * lane, 1.f, x[n]);
      }
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) mix.add(ml[n].x, ml[n].y, x[n]);
    }
    turn = (turn - here.count) % WARPS;
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
