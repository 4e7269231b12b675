// Pages of one side as unpack, seal and viterbi see them.
// Macros: FORMAT format, HD head dim, KEYS 1 for keys and 0 for values, CENTRED 1 where the page mean lies apart.
#pragma once
#include "page.cuh"

using Pages = PageOf<FORMAT, CENTRED>;
constexpr int BITS = Pages::BITS, WORDS = Pages::WORDS, SPAN = Pages::SPAN, SPANS = Pages::SPANS;
constexpr int GAINS = Pages::GAINS, MINS = Pages::MINS, MEAN = Pages::MEAN, PAGE_BYTES = Pages::BYTES;

DEV void two_floats(u32 two, float& a, float& b) {
  const u16 low = two, high = two >> 16;
  a = load16(&low);
  b = load16(&high);
}

// Bytes n of four words become word n.
DEV void transpose_bytes(u32 (&x)[4]) {
  const u32 a = prmt(x[0], x[1], 0x5140), b = prmt(x[2], x[3], 0x5140);
  const u32 c = prmt(x[0], x[1], 0x7362), d = prmt(x[2], x[3], 0x7362);
  x[0] = prmt(a, b, 0x5410); x[1] = prmt(a, b, 0x7632);
  x[2] = prmt(c, d, 0x5410); x[3] = prmt(c, d, 0x7632);
}
