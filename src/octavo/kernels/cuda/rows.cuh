// What a tile of query rows does with its scores, and how it is prepared.
#pragma once
#include "feed.cuh"
#include "plain.cuh"
#include "scores.cuh"
#include "values.cuh"

DEV void read_row(const Asked& asked, int code, int lane, u16 (&bits)[D / 32]) {
  const u16* row = asked.row(code);
#pragma unroll
  for (int i = 0; i < D / 32; i++) bits[i] = code < 0 ? (u16)0 : row[32 * i + lane];
}

// One row of queries, as int8 in operand order and as it came, with its scale and the tokens it may see.
DEV void stage_query(u8* shared, int row, const u16 (&bits)[D / 32], int2 sees, float scale, int lane) {
  float x[D / 32], peak = 0.f;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    ((u16*)(shared + S_QUERY))[row * D + 32 * i + lane] = bits[i];
    x[i] = load16(&bits[i]);
    peak = fmaxf(peak, fabsf(x[i]));
  }
#pragma unroll
  for (int i = 16; i > 0; i /= 2) peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, i));
  const float inverse = peak > 0.f ? __fdividef(127.f, peak) : 0.f;
  const int place = is_split(KF) ? (lane & ~7) + (lane & 1) * 4 + (lane & 7) / 2 : lane;
  float owed = 0.f;
#pragma unroll
  for (int i = 0; i < D / 32; i++) {
    const float h = rintf(x[i] * inverse);
    ((signed char*)(shared + S_HIGH))[query_at(row, 32 * i + place)] = (signed char)(int)h;
    if (K_FINE) ((signed char*)(shared + S_LOW))[query_at(row, 32 * i + place)] = (signed char)(int)rintf((x[i] * inverse - h) * 254.f);
    if (offset(KF) == 0.f) continue;
    float sum = h;
#pragma unroll
    for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (i % SPAN_STEPS == 0) owed = 0.f;
    owed += offset(KF) * sum;  // turbo4's half is rounded below: of sums in the thousands
    if (lane != 0) continue;
    ((float*)(shared + S_SUMS))[row * STEPS + i] = sum;
    int* start = (int*)(shared + S_BASE) + (row / 2 * KSPANS + i / SPAN_STEPS) * 4 + row % 2;
    start[0] = start[2] = MAGIC_BITS - (int)rintf(owed);
  }
  if (lane == 0) {
    ((float*)(shared + S_SCALE))[row] = peak * (1.f / 127.f) * scale * factor(KF);
    ((int*)(shared + S_FROM))[row] = sees.x;
    ((int*)(shared + S_TO))[row] = sees.y;
  }
}

template <int N> DEV void hide(const u8* shared, int lane, int first, float (&score)[R][N][2]) {
  const int *from = (const int*)(shared + S_FROM), *to = (const int*)(shared + S_TO);
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = 2 * (lane & 3) + e + 8 * r;
#pragma unroll
      for (int j = 0; j < N; j++) {
        const int token = first + token_of(lane >> 2) + 2 * j;
        if (token < from[row] || token >= to[row]) score[r][j][e] = __int_as_float(0xFF800000);
      }
    }
}

// Scores, relative to s.top, become probabilities. s.top follows the true maximum at a distance of 6 (64 times).
template <int N> DEV void soften(float (&score)[R][N][2], Sums& s) {
  float most[R][2];
  bool over = s.empty != 0;
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      most[r][e] = score[r][0][e];
#pragma unroll
      for (int j = 1; j < N; j++) most[r][e] = fmaxf(most[r][e], score[r][j][e]);
      over |= most[r][e] > 6.f;
    }
  if (__any_sync(~0u, over))
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const u32 bit = 1u << (2 * r + e);
        const float rise = rise_of(max_tokens(most[r][e]), s.empty, bit);
        const float fade = exp2_(-fmaxf(rise, 0.f));
        s.top[r][e] += rise;
        s.sum[r][e] *= fade;
        s.bias[r][e] *= fade;
#pragma unroll
        for (int j = 0; j < N; j++) score[r][j][e] -= rise;
#pragma unroll
        for (int i = 0; i < VD / 16; i++) { s.acc[r][i][e] *= fade; s.acc[r][i][2 + e] *= fade; }
        if constexpr (has_minimum(VF))
          for (int b = 0; b < VSPANS; b++) s.low[b][r][e] *= fade;
      }
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
      for (int j = 0; j < N; j++) {
        score[r][j][e] = exp2_(score[r][j][e]);
        s.sum[r][e] += score[r][j][e];
      }
}

struct Row {  // what a row of pages asks of its reader
  int bounds[3];  // latest start and earliest end of what the tile's rows see; latest end
  float scale, cap;
};

DEV Row bounds_of(const u8* shared, float scale, float cap) {
  Row row = {{0, 0x7FFFFFFF, 0}, scale, cap};
  for (int i = 0; i < ROWS; i++) {
    const int stop = ((const int*)(shared + S_TO))[i];
    row.bounds[0] = max(row.bounds[0], ((const int*)(shared + S_FROM))[i]);
    row.bounds[1] = min(row.bounds[1], stop);
    if (stop != 0x7FFFFFFF) row.bounds[2] = max(row.bounds[2], stop);
  }
  return row;
}

// Scores relative to s.top → probabilities, capped and masked. `first`: position of a page's first token, or of a quarter's.
template <int N> DEV void weigh(const Row& row, const u8* shared, int lane, int first, float (&score)[R][N][2], Sums& s) {
#if SOFTCAP
#pragma unroll
  for (int i = 0; i < 2 * N * R; i++) {
    float& x = score[i / 2 / N][i / 2 % N][i % 2];
    const float top = s.top[i / 2 / N][i % 2];
    x = row.cap * tanh_((x + top) * (1.f / row.cap)) - top;
  }
#endif
  if (first < row.bounds[0] || first + PAGE > row.bounds[1]) hide(shared, lane, first, score);
  soften(score, s);
}

template <int QUARTERS>
DEV void score_plain(const Row& row, const u8* shared, int lane, const u16* keys, float (&score)[R][2 * QUARTERS][2], const Sums& s) {
  constexpr int N = 2 * QUARTERS;
  plain_scores<QUARTERS>(keys, (const u16*)(shared + S_QUERY), lane, row.scale, score);
#pragma unroll
  for (int i = 0; i < 2 * N * R; i++) score[i / 2 / N][i / 2 % N][i % 2] -= s.top[i / 2 / N][i % 2];
}

// A quarter of a plain page. `first`: position of the page's first token.
DEV void read_quarter(const Feed& feed, const Row& row, const u8* shared, Sums& s, int address, int first, int quarter) {
  const int on = 4 * quarter;
  float score[R][2][2];
  score_plain<1>(row, shared, feed.lane, feed.plain_keys(address) + on * D, score, s);
  weigh(row, shared, feed.lane, first + on, score, s);
  plain_values<1>(feed.plain_values(address) + on * D, feed.lane, row.bounds[2] - first - on, score, s.acc);
}

DEV void clear(Sums& s) {
  s.empty = (1u << 2 * R) - 1;
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      s.top[r][e] = s.sum[r][e] = s.bias[r][e] = 0.f;
      if constexpr (has_minimum(VF))
        for (int b = 0; b < VSPANS; b++) s.low[b][r][e] = 0.f;
#pragma unroll
      for (int i = 0; i < VD / 16; i++) s.acc[r][i][e] = s.acc[r][i][2 + e] = 0.f;
    }
}

// Takes the bias out; often enough, acc has bits to spare for it.
DEV void settle(Sums& s) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
      for (int i = 0; i < VD / 16; i++) { s.acc[r][i][e] -= s.bias[r][e]; s.acc[r][i][2 + e] -= s.bias[r][e]; }
      s.bias[r][e] = 0.f;
    }
}

// Formats' numbers, by way of shared memory so that they stay in registers: a word for each lane, lest the compiler take
// them for uniform and move them from a uniform register at each use. The first warp lays them out.
template <int F> DEV void stage_levels(u32* words) {
  for (int i = 0; i < levels_of(F); i++) words[32 * i] = level_word<F>(i);
}
DEV void stage_constants(u8* shared) {
  if (threadIdx.x >= 32) return;
  u32* words = (u32*)(shared + S_CONSTANTS) + threadIdx.x;
  words[0] = MAGIC_BITS;
  stage_levels<KF>(words + 32 * 4);
  stage_levels<VF>(words + 32 * 8);
}
DEV void load_constants(const u8* shared, int lane, Constants& keys, Constants& values) {
  const u32 words = shared_address(shared) + S_CONSTANTS + 4 * lane;
  for (int i = 0; i < 4; i++) keys.zero[i] = from_shared(words);
  for (int i = 0; i < levels_of(KF); i++) keys.levels[i] = from_shared(words + 128 * (4 + i));
  values = keys;
  if constexpr (KF != VF)
    for (int i = 0; i < levels_of(VF); i++) values.levels[i] = from_shared(words + 128 * (8 + i));
}
