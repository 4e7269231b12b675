// Scores of one packed key page: codes × int8 queries, scaled by the token's gain and the row's scale.
// Keys are the A operand, 16 tokens a tile; eight query rows are the columns of B.
#pragma once
#include "layout.cuh"

constexpr bool KEEP_ROWS = R == 1, KEEP_HIGH = R == 1 && D <= 256, KEEP_LOW = K_FINE && R == 1 && D <= 128;  // else read from shared memory

// Accumulators start where they will read MAGIC for a score of 0. With one span, rows that are not kept and more than eight
// warps, what they read then is subtracted instead, which takes fewer registers.
constexpr bool K_STARTS = offset(KF) != 0.f && (KEEP_ROWS || KSPANS > 1 || WARPS <= 8);

struct Query {
  u32 high[KEEP_HIGH ? R : 1][KEEP_HIGH ? STEPS : 1][2];  // row c + 8r: channels 32 step + 8t .. + 7 as int8, split where the codes are
  u32 low[KEEP_LOW ? STEPS : 1][2];
  float scale[KEEP_ROWS ? R : 1][2];  // row 2t + e + 8r to log2 units: its scale · softmax scale · log2(e) · factor of the format
  int start[K_STARTS && KEEP_ROWS ? R : 1][KSPANS][4];
};

DEV float get_scale(const Query& q, const u8* shared, int lane, int r, int e) {
  return KEEP_ROWS ? q.scale[r][e] : ((const float*)(shared + S_SCALE))[2 * (lane & 3) + e + 8 * r];
}
DEV void read_start(const u8* shared, int lane, int r, int span, int (&start)[4]) {
  const Quad x = *(const Quad*)(shared + S_BASE + (((lane & 3) + 4 * r) * KSPANS + span) * 16);
  start[0] = x.x; start[1] = x.y; start[2] = x.z; start[3] = x.w;
}
DEV void get_start(const Query& q, const Constants& k, const u8* shared, int lane, int r, int span, int (&start)[4]) {
  if (K_STARTS && !KEEP_ROWS) { read_start(shared, lane, r, span, start); return; }
#pragma unroll
  for (int i = 0; i < 4; i++) start[i] = K_STARTS ? q.start[KEEP_ROWS ? r : 0][span][i] : k.zero[i];
}
DEV float get_base(const u8* shared, int lane, int r, int e) {  // of the only span
  return 2.f * MAGIC - ((const float*)(shared + S_BASE))[4 * ((lane & 3) + 4 * r) + e];
}

DEV void read_query(const u8* shared, int part, int lane, int r, int step, u32 (&b)[2]) {
  const Pair x = *(const Pair*)(shared + part + ((r * STEPS + step) * 32 + lane) * 8);
  b[0] = x.x; b[1] = x.y;
}

DEV void load_query(Query& q, const u8* shared, int lane) {
  const int t = lane & 3;
  const float* scales = (const float*)(shared + S_SCALE);
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      if (KEEP_HIGH) read_query(shared, S_HIGH, lane, r, s, q.high[r][s]);
      if (KEEP_LOW) read_query(shared, S_LOW, lane, r, s, q.low[s]);
    }
#pragma unroll
    for (int e = 0; KEEP_ROWS && e < 2; e++) {
      const int row = 2 * t + e + 8 * r;
      q.scale[r][e] = scales[row];
    }
#pragma unroll
    for (int b = 0; KEEP_ROWS && K_STARTS && b < KSPANS; b++) read_start(shared, lane, r, b, q.start[r][b]);
  }
}

DEV void load_high(const Query& q, const u8* shared, int lane, int r, int step, u32 (&b)[2]) {
  if (KEEP_HIGH) { b[0] = q.high[r][step][0]; b[1] = q.high[r][step][1]; }
  else read_query(shared, S_HIGH, lane, r, step, b);
}

DEV void load_low(const Query& q, const u8* shared, int lane, int r, int step, u32 (&b)[2]) {
  if (KEEP_LOW) { b[0] = q.low[step][0]; b[1] = q.low[step][1]; }
  else read_query(shared, S_LOW, lane, r, step, b);
}

// q · mean of the page, the same for all its tokens: the mean fills every row of the tile.
DEV void mean_scores(const Query& q, const u8* keys, const u8* shared, int lane, float (&out)[R][2]) {
  int sum[R][4] = {}, low[R][4] = {};
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    const Pair m = *(const Pair*)(keys + K_MEAN + 32 * s + 8 * (lane & 3));
    const u32 a = is_split(KF) ? prmt(m.x, m.y, 0x6420) : m.x, b = is_split(KF) ? prmt(m.x, m.y, 0x7531) : m.y;
#pragma unroll
    for (int r = 0; r < R; r++) {
      u32 h[2];
      load_high(q, shared, lane, r, s, h);
      imma(sum[r], a, a, b, b, h, sum[r]);
      if constexpr (K_FINE) {
        u32 l[2];
        load_low(q, shared, lane, r, s, l);
        imma(low[r], a, a, b, b, l, low[r]);
      }
    }
  }
  float gain, unused;
  halves(*(const u16*)(keys + K_MEAN + D), gain, unused);
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float x = (float)sum[r][e];
      if constexpr (K_FINE) x += (float)low[r][e] * LOW;
      out[r][e] = x * gain * get_scale(q, shared, lane, r, e) * (1.f / factor(KF));
    }
}

// The gains of a lane's eight tokens in one span lie together (formats/tile.py).
DEV void load_gains(const u8* gains, int lane, float (&g)[8]) {
  const Quad q = *(const Quad*)(gains + 16 * (lane >> 2));
  halves(q.x, g[0], g[1]); halves(q.y, g[2], g[3]); halves(q.z, g[4], g[5]); halves(q.w, g[6], g[7]);
}

// Step s of a tile: tokens 2i and 2i + 1 of each lane, their units unpacked.
DEV Quad key_operand(const u32 (&even)[8], const u32 (&odd)[8], int s) {
  const int x = 2 * (s % 4), y = STEPS >= 4 ? x : x + 4;
  return {even[x], odd[y], even[x + 1], odd[y + 1]};
}

// score - top of every row and token.
DEV void packed_scores(const Query& q, const Constants& k, const u8* keys, const u8* shared, int lane,
                       const float (&top)[R][2], float (&score)[R][8][2]) {
  float mean[R][2] = {};
  if constexpr (CENTRED) mean_scores(q, keys, shared, lane, mean);
#pragma unroll
  for (int i = 0; i < 2 * R; i++) mean[i / 2][i % 2] -= top[i / 2][i % 2];
  const Quad* codes = (const Quad*)keys + lane;
  const u32 table = shared_address(shared) + S_KTABLE + 4 * lane;
  float gain[KSPANS][8], least[has_minimum(KF) ? KSPANS : 1][8];
  float zero[KSPANS][8];  // what products × gains have too much, of each four spans: in the first of them
#pragma unroll
  for (int b = 0; b < KSPANS; b++) {
    load_gains(keys + K_CODES + 128 * b, lane, gain[b]);
#pragma unroll
    for (int j = 0; j < 8; j++) zero[b][j] = MAGIC * gain[b][j];
    if constexpr (!K_FINE)
#pragma unroll
      for (int j = 0; j < 8 && b % 4 != 0; j++) zero[b / 4 * 4][j] += zero[b][j];
    if constexpr (has_minimum(KF)) {
      load_gains(keys + K_CODES + K_GAINS + 128 * b, lane, least[b]);
#pragma unroll
      for (int j = 0; j < 8; j++) least[b][j] += offset(KF) * gain[b][j];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {  // tokens 2i and 2i + 1 of each lane
    int sum[R][4], low[R][4];
    float part[R][4];
    u32 even_unit[8], odd_unit[8];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const int even = 2 * i * STEPS + s, odd = even + STEPS, b = s / SPAN_STEPS;
      const bool first = s % SPAN_STEPS == 0;
      if (s % 4 == 0) {
        read_unit<KF, 2 * D / 32>(codes, even / 4, table, k.levels, even_unit);
        if (STEPS >= 4) read_unit<KF, 2 * D / 32>(codes, odd / 4, table, k.levels, odd_unit);
      }
      const Quad a = key_operand(even_unit, STEPS >= 4 ? odd_unit : even_unit, s);
#pragma unroll
      for (int r = 0; r < R; r++) {
        u32 h[2];
        load_high(q, shared, lane, r, s, h);
        if (first) get_start(q, k, shared, lane, r, b, sum[r]);
        imma(sum[r], a.x, a.y, a.z, a.w, h, sum[r]);
        if constexpr (K_FINE) {
          u32 l[2];
          load_low(q, shared, lane, r, s, l);
          imma(low[r], a.x, a.y, a.z, a.w, l, first ? k.zero : (const int(&)[4])low[r]);
        }
      }
      if (s % SPAN_STEPS != SPAN_STEPS - 1) continue;
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const int j = 2 * i + v / 2, e = v % 2;
          float& to = score[r][j][e];
          const float high = __int_as_float(sum[r][v]);
          if constexpr (K_FINE) {
            const float value = high - MAGIC + (__int_as_float(low[r][v]) - MAGIC) * LOW;
            if (KSPANS == 1) to = value * (gain[b][j] * get_scale(q, shared, lane, r, e)) + mean[r][e];
            else to = b == 0 ? value * gain[b][j] : value * gain[b][j] + to;
          } else {
            float x = high * gain[b][j] + (b % 4 == 0 ? -zero[b][j] : part[r][v]);
            if constexpr (has_minimum(KF))
              x += least[b][j] * ((const float*)(shared + S_SUMS))[(2 * (lane & 3) + e + 8 * r) * STEPS + s];
            if (KSPANS == 1 && offset(KF) != 0.f && !K_STARTS)
              to = (high - get_base(shared, lane, r, e)) * (gain[b][j] * get_scale(q, shared, lane, r, e)) + mean[r][e];
            else if (KSPANS == 1) to = x * get_scale(q, shared, lane, r, e) + mean[r][e];
            else if (b % 4 != 3 && b != KSPANS - 1) part[r][v] = x;
            else to = b < 4 ? x : x + to;
          }
        }
    }
    if (KSPANS > 1)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
          float& to = score[r][2 * i + v / 2][v % 2];
          to = to * get_scale(q, shared, lane, r, v % 2) + mean[r][v % 2];
        }
  }
}
