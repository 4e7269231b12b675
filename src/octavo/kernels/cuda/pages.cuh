// Pages of one side as unpack, seal and viterbi see them.
// Macros: FORMAT format, HD head dim, KEYS 1 for keys and 0 for values, CENTRED 1 where the page mean lies apart.
#pragma once
#include "formats.cuh"

constexpr int D = HD, PAGE = 64, BITS = code_bits(FORMAT), SPAN = gain_span(FORMAT, D), SPANS = D / SPAN;
constexpr int GAINS = PAGE * D * BITS / 8, MINS = GAINS + 128 * SPANS, MEAN = MINS + (has_minimum(FORMAT) ? 128 * SPANS : 0);
constexpr int PAGE_BYTES = FORMAT == PLAIN ? PAGE * D * 2 : MEAN + (CENTRED ? D + 16 : 0);

// A part is 64 codes of each lane, two units: D / 32 parts make a page.
constexpr int PARTS = D / 32, WORDS = 2 * BITS;

struct Place { int token, channel; };
// Of eight neighbouring channels, group g < 8 of a lane's part of keys.
DEV Place key_place(int lane, int part, int g) {
  const int n = 64 * part + 8 * g, j = n / (D / 4), s = n % (D / 4) / 8, c = lane / 4;
  return {16 * (c / 2) + c % 2 + 2 * j, 32 * s + 8 * (lane % 4)};
}
// Of a lane's part of values: 16 tokens and 4 channels from here on.
DEV Place value_place(int lane, int part) { return {16 * (lane % 4), 32 * part + 4 * (lane / 4)}; }
// Where a token's gain lies in its span.
DEV int gain_place(int token) { return 8 * (token / 16 * 2 + token % 2) + token % 16 / 2; }

DEV void two_floats(u32 two, float& a, float& b) {
  const u16 low = two, high = two >> 16;
  a = load16(&low);
  b = load16(&high);
}

// Word w of a lane: quads of all lanes alternate.
DEV int word_at(int w, int lane) { return w / 4 * 512 + 16 * lane + w % 4 * 4; }

// The words of a part and the one that follows them in the lane's ring.
DEV void load_words(const u8* codes, int lane, int part, u32 (&w)[WORDS + 1]) {
#pragma unroll
  for (int i = 0; i < WORDS; i += 2) {
    const Pair p = *(const Pair*)(codes + word_at(part * WORDS + i, lane));
    w[i] = p.x; w[i + 1] = p.y;
  }
  w[WORDS] = is_trellis(FORMAT) ? *(const u32*)(codes + word_at((part + 1) % PARTS * WORDS, lane)) : 0;
}

// Bytes n of four words become word n.
DEV void transpose_bytes(u32 (&x)[4]) {
  const u32 a = prmt(x[0], x[1], 0x5140), b = prmt(x[2], x[3], 0x5140);
  const u32 c = prmt(x[0], x[1], 0x7362), d = prmt(x[2], x[3], 0x7362);
  x[0] = prmt(a, b, 0x5410); x[1] = prmt(a, b, 0x7632);
  x[2] = prmt(c, d, 0x5410); x[3] = prmt(c, d, 0x7632);
}
