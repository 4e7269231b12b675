// What query rows and pages are to every kernel that attends: where they lie, who sees what, how a softmax goes along.
#pragma once
#include "common.cuh"

struct Pool {
  const u8 *k, *v;       // packed pages of this layer: [slots, heads, bytes of a page]
  const u16 *k16, *v16;  // plain pages: [slots, heads, 64, D]
  int heads;
};

// A code is token << 8 | head of the group, or -1 where there is no row: that sees everything.
constexpr int NO_ROW = 0x7FFFFFFF;
struct Asked {  // who asks, and for what
  const u16* q;
  i64 token, head;  // strides
  int first;        // head of the group
  const int2* sees;

  DEV const u16* row(int code) const { return q + (code >> 8) * token + (first + (code & 255)) * head; }
  DEV int2 sight(int code) const { return code < 0 ? make_int2(0, NO_ROW) : sees[code >> 8]; }
};

// How far the reference of a row's exponents must rise for its largest score beyond it, `most`. Bit `bit` of `empty`: the
// row has seen nothing so far.
DEV float rise_of(float most, u32& empty, u32 bit) {
  if (!(empty & bit)) most = fmaxf(most, 0.f);
  if (!(most > NONE)) return 0.f;
  empty &= ~bit;
  return most;
}
