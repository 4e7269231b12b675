// The line of work: the pages of all segments in order, PAD pages that are not there before each (what it costs a CTA
// to change over, so that all end together). A CTA takes an equal stretch of it.
//
// A run is a row of pages that a tile of query rows reads together. Segment s = (run, KV head, slice of V). Part
// (segment, CTA) lies at slot segment + CTA: along the line one or the other grows at every step, so no two share a slot.
// All lengths come from device memory: a captured graph serves every step.
#pragma once
#include "rows.cuh"
#ifdef TRACE
__device__ unsigned long long trace_at[132 * 16 * 8];
DEV unsigned long long now_ns() { unsigned long long t; asm volatile("mov.u64 %0,%globaltimer;" : "=l"(t)); return t; }
#define MARK(i) if ((threadIdx.x & 31) == 0) trace_at[(blockIdx.x * 16 + (threadIdx.x >> 5)) * 8 + i] = now_ns()
#else
#define MARK(i)
#endif

struct Stage { int index; u32 parity; };
DEV void next(Stage& s) { if (++s.index == STAGES) { s.index = 0; s.parity ^= 1; } }

struct Stretch { u32 begin, end; };
// header: runs, and their pages; `lines`: segments of a run.
DEV Stretch stretch_of(int2 header, int lines) {
  const u32 total = (u32)(header.y + PAD * header.x) * lines, each = (total + gridDim.x - 1) / gridDim.x;
  const u32 begin = each * blockIdx.x;
  return {begin, min(begin + each, total)};
}

// The run in which `begin` lies. runs: x first entry in `addresses`, y pages, z position of the first token, w pages up
// to this run's end.
DEV int find_run(const int4* runs, int count, int lines, u32 begin) {
  int low = 0;
  for (int high = count - 1; low < high;) {
    const int middle = (low + high) / 2;
    if ((u32)(runs[middle].w + PAD * (middle + 1)) * lines <= begin) low = middle + 1; else high = middle;
  }
  return low;
}
