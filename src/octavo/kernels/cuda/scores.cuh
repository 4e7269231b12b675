// Scores of one packed key page: codes × int8 queries, scaled by the token's gain and the row's scale.
// Keys are the A operand, 16 tokens a tile; eight query rows are the columns of B.
#pragma once
#include "layout.cuh"

constexpr bool KEEP_HIGH = R == 1 && D <= 256, KEEP_LOW = K_FINE && R == 1 && D <= 128;  // else read from shared memory

struct Query {
  u32 high[KEEP_HIGH ? R : 1][KEEP_HIGH ? STEPS : 1][2];  // row c + 8r: channels 32 step + 8t .. + 7 as int8, split where the codes are
  u32 low[KEEP_LOW ? STEPS : 1][2];
  float scale[R][2];      // row 2t + e + 8r to log2 units: its scale · softmax scale · log2(e) · factor of the format
  float base[R][2][KSPANS];  // what the accumulator reads for a score of 0
};

DEV void load_query(Query& q, const u8* shared, int lane) {
  const int t = lane & 3, c = lane >> 2;
  const float *scales = (const float*)(shared + S_SCALE), *sums = (const float*)(shared + S_SUMS);
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int s = 0; KEEP_HIGH && s < STEPS; s++) {
      const Pair a = *(const Pair*)(shared + S_HIGH + (c + 8 * r) * D + 32 * s + 8 * t);
      q.high[r][s][0] = a.x; q.high[r][s][1] = a.y;
      if (!KEEP_LOW) continue;
      const Pair b = *(const Pair*)(shared + S_LOW + c * D + 32 * s + 8 * t);
      q.low[s][0] = b.x; q.low[s][1] = b.y;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = 2 * t + e + 8 * r;
      q.scale[r][e] = scales[row];
#pragma unroll
      for (int b = 0; b < KSPANS; b++) {
        float sum = 0.f;
        if constexpr (offset(KF) != 0.f)
          for (int s = 0; s < SPAN_STEPS; s++) sum += sums[row * STEPS + b * SPAN_STEPS + s];
        q.base[r][e][b] = MAGIC + offset(KF) * sum;
      }
    }
  }
}

DEV void load_high(const Query& q, const u8* shared, int lane, int r, int step, u32 (&b)[2]) {
  if (KEEP_HIGH) { b[0] = q.high[r][step][0]; b[1] = q.high[r][step][1]; return; }
  const Pair x = *(const Pair*)(shared + S_HIGH + ((lane >> 2) + 8 * r) * D + 32 * step + 8 * (lane & 3));
  b[0] = x.x; b[1] = x.y;
}

DEV void load_low(const Query& q, const u8* shared, int lane, int r, int step, u32 (&b)[2]) {
  if (KEEP_LOW) { b[0] = q.low[step][0]; b[1] = q.low[step][1]; return; }
  const Pair x = *(const Pair*)(shared + S_LOW + ((lane >> 2) + 8 * r) * D + 32 * step + 8 * (lane & 3));
  b[0] = x.x; b[1] = x.y;
}

// q · mean of the page, the same for all its tokens: the mean fills every row of the tile.
DEV void mean_scores(const Query& q, const u8* page, const u8* shared, int lane, float (&out)[R][2]) {
  int sum[R][4] = {}, low[R][4] = {};
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
    const Pair m = *(const Pair*)(page + K_MEAN + 32 * s + 8 * (lane & 3));
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
  halves(*(const u16*)(page + K_MEAN + D), gain, unused);
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      float x = (float)sum[r][e];
      if constexpr (K_FINE) x += (float)low[r][e] * LOW;
      out[r][e] = x * gain * q.scale[r][e] * (1.f / factor(KF));
    }
}

// The gains of a lane's eight tokens in one span lie together (formats/tile.py).
DEV void load_gains(const u8* gains, int lane, float (&g)[8]) {
  const Quad q = *(const Quad*)(gains + 16 * (lane >> 2));
  halves(q.x, g[0], g[1]); halves(q.y, g[2], g[3]); halves(q.z, g[4], g[5]); halves(q.w, g[6], g[7]);
}

// score - top of every row and token.
DEV void packed_scores(const Query& q, const Constants& k, const u8* page, const u8* shared, int lane,
                       const float (&top)[R][2], float (&score)[R][8][2]) {
  float mean[R][2] = {};
  if constexpr (CENTRED) mean_scores(q, page, shared, lane, mean);
#pragma unroll
  for (int i = 0; i < 2 * R; i++) mean[i / 2][i % 2] -= top[i / 2][i % 2];
  const Quad* codes = (const Quad*)page + lane;
  const u32 table = shared_address(shared) + S_KTABLE + 4 * lane;
  float gain[KSPANS][8], least[has_minimum(KF) ? KSPANS : 1][8];
#pragma unroll
  for (int b = 0; b < KSPANS; b++) {
    load_gains(page + K_CODES + 128 * b, lane, gain[b]);
    if constexpr (has_minimum(KF)) {
      load_gains(page + K_CODES + K_GAINS + 128 * b, lane, least[b]);
#pragma unroll
      for (int j = 0; j < 8; j++) least[b][j] += offset(KF) * gain[b][j];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {  // tokens 2i and 2i + 1 of each lane
    int sum[R][4], low[R][4];
    u32 a[8], c[8];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      const int even = 2 * i * STEPS + s, odd = even + STEPS, b = s / SPAN_STEPS;
      if (s % 4 == 0) {
        read_unit<KF, 2 * D / 32>(codes, even / 4, table, k.levels, a);
        if (STEPS >= 4) read_unit<KF, 2 * D / 32>(codes, odd / 4, table, k.levels, c);
      }
      const u32 *x = a + 2 * (even % 4), *y = (STEPS >= 4 ? c : a) + 2 * (odd % 4);
      const bool first = s % SPAN_STEPS == 0;
#pragma unroll
      for (int r = 0; r < R; r++) {
        u32 h[2];
        load_high(q, shared, lane, r, s, h);
        imma(sum[r], x[0], y[0], x[1], y[1], h, first ? k.zero : (const int(&)[4])sum[r]);
        if constexpr (K_FINE) {
          u32 l[2];
          load_low(q, shared, lane, r, s, l);
          imma(low[r], x[0], y[0], x[1], y[1], l, first ? k.zero : (const int(&)[4])low[r]);
        }
      }
      if (s % SPAN_STEPS != SPAN_STEPS - 1) continue;
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
          const int j = 2 * i + v / 2, e = v % 2;
          float value = __int_as_float(sum[r][v]) - q.base[r][e][b];
          if constexpr (K_FINE) value += (__int_as_float(low[r][v]) - MAGIC) * LOW;
          float& to = score[r][j][e];
          if (KSPANS == 1) to = value * (gain[b][j] * q.scale[r][e]) + mean[r][e];
          else to = b == 0 ? value * gain[b][j] : value * gain[b][j] + to;
          if constexpr (has_minimum(KF))
            to += least[b][j] * ((const float*)(shared + S_SUMS))[(2 * (lane & 3) + e + 8 * r) * STEPS + s];
        }
    }
    if (KSPANS > 1)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int v = 0; v < 4; v++) {
          float& to = score[r][2 * i + v / 2][v % 2];
          to = to * q.scale[r][v % 2] + mean[r][v % 2];
        }
  }
}
