// The line of work: the pages of all segments in order, `pad` pages that are not there before each (what it costs a CTA
// to change over, so that all end together). A CTA takes an equal stretch of it.
//
// A run is a row of pages that a tile of query rows reads together. Segment s = (run, KV head, slice of V). Part
// (segment, CTA) lies at slot segment + CTA: along the line one or the other grows at every step, so no two share a slot.
// All lengths come from device memory: a captured graph serves every step.
#pragma once
#include "common.cuh"

struct Stretch { u32 begin, end; };
// header: runs, and their pages; `lines`: segments of a run.
DEV Stretch stretch_of(int2 header, int lines, int pad = PAD) {
  const u32 total = (u32)(header.y + pad * header.x) * lines, each = (total + gridDim.x - 1) / gridDim.x;
  const u32 begin = each * blockIdx.x;
  return {begin, min(begin + each, total)};
}

// The run in which `begin` lies. runs: x first entry in `addresses`, y pages, z position of the first token, w pages up
// to this run's end.
DEV int find_run(const int4* runs, int count, int lines, u32 begin, int pad = PAD) {
  int low = 0;
  for (int high = count - 1; low < high;) {
    const int middle = (low + high) / 2;
    if ((u32)(runs[middle].w + pad * (middle + 1)) * lines <= begin) low = middle + 1; else high = middle;
  }
  return low;
}

// Calls work(run, line, its span, pages [from, to) of it) for every segment in the stretch.
template <int pad, class Work> DEV void each_segment(const int4* runs, int count, int lines, const Stretch& mine, const Work& work) {
  int run = find_run(runs, count, lines, mine.begin, pad);
  for (u32 start = mine.begin, end = mine.end; start < end; run++) {
    const int4 span = runs[run];
    const u32 length = span.y + pad, before = (u32)(span.w - span.y + pad * run) * lines;
    for (int line = (int)((start - before) / length); line < lines && start < end; line++) {
      const u32 first = before + (u32)line * length + pad;
      const int from = max((int)(start - first), 0), to = (int)min((u32)span.y, (u32)max((int)(end - first), 0));
      start = first + span.y;
      if (from >= to) continue;
      work(run, line, span, from, to);
    }
  }
}

// A place in a ring of stages, and the parity of its barrier's phase.
struct Stage { int index; u32 parity; };
DEV void next(Stage& s, int stages) { if (++s.index == stages) { s.index = 0; s.parity ^= 1; } }
