// How pages of one format and side are laid out, and how a warp takes their codes apart. Macro: HD head dim.
#pragma once
#include "formats.cuh"

constexpr int D = HD, PAGE = 64;
// A part is 64 codes of each lane, two units: D / 32 parts make a page.
constexpr int PARTS = D / 32;

// Where what lies in a page; APART: the mean of its keys follows.
template <int F, bool APART> struct PageOf {
  static constexpr int CODE = F, BITS = code_bits(F), WORDS = 2 * BITS, SPAN = gain_span(F, D), SPANS = D / SPAN;
  static constexpr int GAINS = PAGE * D * BITS / 8, MINS = GAINS + 128 * SPANS;
  static constexpr int MEAN = MINS + (has_minimum(F) ? 128 * SPANS : 0);
  static constexpr int BYTES = F == PLAIN ? PAGE * D * 2 : MEAN + (APART ? D + 16 : 0);
  // read_part leaves bytes; of signed codes byte b stands for b - 128.
  static constexpr bool SIGNED = BITS == 8 || is_trellis(F) || F == TURBO3 || F == TURBO2;
  static constexpr u32 FLIP = SIGNED ? 0x80808080u : 0u;
  // The byte that stands for 0. Codes above a minimum are not moved around 0: nothing is rounded here.
  static constexpr float ZERO = SIGNED ? 128.f : has_minimum(F) ? 0.f : offset(F);
};

struct Place { int token, channel; };
// Of eight neighbouring channels, group g < 8 of a lane's part of keys.
__host__ __device__ constexpr Place key_place(int lane, int part, int g) {
  const int n = 64 * part + 8 * g, j = n / (D / 4), s = n % (D / 4) / 8, c = lane / 4;
  return {16 * (c / 2) + c % 2 + 2 * j, 32 * s + 8 * (lane % 4)};
}
// Of a lane's part of values: 16 tokens and 4 channels from here on.
__host__ __device__ constexpr Place value_place(int lane, int part) { return {16 * (lane % 4), 32 * part + 4 * (lane / 4)}; }
// Where a token's gain lies in its span.
__host__ __device__ constexpr int gain_place(int token) { return 8 * (token / 16 * 2 + token % 2) + token % 16 / 2; }

// Word w of a lane: quads of all lanes alternate.
DEV int word_at(int w, int lane) { return w / 4 * 512 + 16 * lane + w % 4 * 4; }

// The words of a part and the one that follows them in the lane's ring.
template <class P> DEV void load_words(const u8* codes, int lane, int part, u32 (&w)[P::WORDS + 1]) {
#pragma unroll
  for (int i = 0; i < P::WORDS; i += 2) {
    const Pair p = *(const Pair*)(codes + word_at(part * P::WORDS + i, lane));
    w[i] = p.x; w[i + 1] = p.y;
  }
  w[P::WORDS] = is_trellis(P::CODE) ? *(const u32*)(codes + word_at((part + 1) % PARTS * P::WORDS, lane)) : 0;
}

struct Part { u32 words[2][8]; };
// Words as load_words leaves them become bytes.
template <class P> DEV void spread(const u32 (&w)[P::WORDS + 1], u32 table, Part& p) {
#pragma unroll
  for (int u = 0; u < 2; u++) {
    if constexpr (is_trellis(P::CODE)) unpack_ring<P::CODE>(w + u * P::BITS, p.words[u], table);
    else if constexpr (P::CODE != PLAIN) {
      u32 level[4] = {};
#pragma unroll
      for (int i = 0; i < levels_of(P::CODE); i++) level[i] = kept(level_word<P::CODE>(i));
      unpack<P::CODE>(w + u * P::BITS, level, p.words[u]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) p.words[u][i] ^= P::FLIP;
  }
}

template <class P> DEV void read_part(const u8* page, int lane, int part, u32 table, Part& p) {
  u32 w[P::WORDS + 1];
  load_words<P>(page, lane, part, w);
  spread<P>(w, table, p);
}

// As the middle of a float's mantissa byte b reads 32768 + b.
constexpr float BYTE_ONE = 32768.f;
DEV float biased(u32 word, int n) { return __uint_as_float(prmt(word, 0x47u, 0x4505u | n << 4)); }

// Gains (or minima) of a lane's 16 tokens in a part of values: the even ones lie first.
DEV void read_gains(const u8* gains, int lane, float by, float (&g)[16]) {
  const Quad *q = (const Quad*)(gains + 32 * (lane % 4));
#pragma unroll
  for (int odd = 0; odd < 2; odd++) {
    const Quad x = q[odd];
    halves(x.x, g[odd], g[odd + 2]); halves(x.y, g[odd + 4], g[odd + 6]);
    halves(x.z, g[odd + 8], g[odd + 10]); halves(x.w, g[odd + 12], g[odd + 14]);
  }
#pragma unroll
  for (int i = 0; i < 16; i++) g[i] *= by;
}
