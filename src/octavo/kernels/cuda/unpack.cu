// Pages become dense values, a warp for each part of a page. Macros: those of pages.cuh.
#include "pages.cuh"

// Code n < 16 of the run that begins at word `at` of a unit.
DEV float whole(const u32* words, int at, int n) {
  const int word = is_split(FORMAT) ? n / 8 * 2 + n % 2 : n / 4, byte = is_split(FORMAT) ? n % 8 / 2 : n % 4;
  return biased(words[at + word], byte) - (BYTE_ONE + Pages::ZERO);
}

// The mean of four channels.
DEV void read_mean(const u8* page, int channel, float (&mean)[4]) {
  const u32 codes = *(const u32*)(page + MEAN + channel) ^ 0x80808080u;
  const float gain = from_half(*(const u16*)(page + MEAN + D));
#pragma unroll
  for (int i = 0; i < 4; i++) mean[i] = CENTRED ? (biased(codes, i) - 32896.f) * gain : 0.f;
}
DEV float restore(float code, float gain, float least, float mean) {
  float y = has_minimum(FORMAT) ? fmaf(code, gain, least) : code * gain;  // products are exact
  return CENTRED ? y + mean : y;
}

DEV void unpack_keys(const u8* page, int lane, int part, u32 table, u16* out) {
  Part p;
  read_part<Pages>(page, lane, part, table, p);
#pragma unroll
  for (int g = 0; g < 8; g++) {
    const Place at = key_place(lane, part, g);
    const u8* gains = page + GAINS + 128 * (at.channel / SPAN) + 2 * gain_place(at.token);
    const float gain = factor(FORMAT) * from_half(*(const u16*)gains);
    const float least = has_minimum(FORMAT) ? from_half(*(const u16*)(gains + MINS - GAINS)) : 0.f;
    float mean[2][4] = {}, y[8];
    if constexpr (CENTRED) {
      read_mean(page, at.channel, mean[0]);
      read_mean(page, at.channel + 4, mean[1]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = restore(whole(p.words[g / 4], 2 * (g % 4), i), gain, least, mean[i / 4][i % 4]);
    *(Quad*)(out + at.token * D + at.channel) = {pack16(y[0], y[1]), pack16(y[2], y[3]), pack16(y[4], y[5]), pack16(y[6], y[7])};
  }
}

DEV void unpack_values(const u8* page, int lane, int part, u32 table, u16* out) {
  Part p;
  read_part<Pages>(page, lane, part, table, p);
  const Place at = value_place(lane, part);
  float gain[16], least[16] = {}, mean[4] = {};
  read_gains(page + GAINS + 128 * (32 * part / SPAN), lane, factor(FORMAT), gain);
  if constexpr (has_minimum(FORMAT)) read_gains(page + MINS + 128 * (32 * part / SPAN), lane, 1.f, least);
  if constexpr (CENTRED) read_mean(page, at.channel, mean);
#pragma unroll
  for (int j = 0; j < 16; j++) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = restore(whole(p.words[i / 2], 4 * (i % 2), j), gain[j], least[j], mean[i]);
    *(Pair*)(out + (at.token + j) * D + at.channel) = {pack16(y[0], y[1]), pack16(y[2], y[3])};
  }
}

DEV void copy_part(const u8* page, int lane, int part, u16* out) {
  const Quad* from = (const Quad*)page + 256 * part + lane;
  Quad* to = (Quad*)out + 256 * part + lane;
  Quad q[8];
#pragma unroll
  for (int i = 0; i < 8; i++) q[i] = from[32 * i];
#pragma unroll
  for (int i = 0; i < 8; i++) to[32 * i] = q[i];
}

// packed [slots, heads, PAGE_BYTES], plain [slots, heads, PAGE, D], addresses [pages] → out [heads, pages, PAGE, D].
extern "C" __global__ void __launch_bounds__(256)
unpack(const u8* __restrict__ packed, const u16* __restrict__ plain, const int* __restrict__ addresses,
       const signed char* __restrict__ levels, u16* __restrict__ out, int pages, int heads) {
  extern __shared__ __align__(128) u8 shared[];
  const int lane = threadIdx.x & 31;
  if constexpr (is_trellis(FORMAT)) {
    stage_table<FORMAT>(shared, levels, 256);
    __syncthreads();
  }
  const u32 table = shared_address(shared) + 4 * lane;
  const i64 tasks = (i64)pages * heads * PARTS;
  for (i64 task = blockIdx.x * 8 + threadIdx.x / 32; task < tasks; task += 8 * gridDim.x) {
    const int part = task % PARTS, pair = task / PARTS, page = pair / heads, head = pair % heads, a = addresses[page];
    u16* to = out + ((i64)head * pages + page) * PAGE * D;
    const u8* from = packed + ((i64)a * heads + head) * PAGE_BYTES;
    if (a < 0) copy_part((const u8*)(plain + ((i64)~a * heads + head) * PAGE * D), lane, part, to);
    else if (FORMAT == PLAIN) copy_part(from, lane, part, to);
    else if (KEYS) unpack_keys(from, lane, part, table, to);
    else unpack_values(from, lane, part, table, to);
  }
}
