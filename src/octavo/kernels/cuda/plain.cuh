// Plain pages (64 tokens × D in 16 bits, token by token), read straight from device memory: there are few.
#pragma once
#include "layout.cuh"

// Steps whose loads are under way together. Beside packed keys and with 16 rows just one: registers for more would come
// out of their loop's.
constexpr int PLAIN_STEPS = K_PACKED && R > 1 ? 1 : 4;

// A page's quarters: of each sixteen tokens four, which are two of every lane's. Quarter i is the first of what lies 4 i
// tokens further on, so one function reads a page and a quarter of it.
template <int QUARTERS>
DEV void plain_scores(const u16* page, const u16* query, int lane, float scale, float (&score)[R][2 * QUARTERS][2]) {
  const int t = lane & 3, c = lane >> 2;
#pragma unroll
  for (int i = 0; i < QUARTERS; i++) {
    const u16* key = page + (token_of(c) + 4 * i) * D + 8 * t;
    float s[R][4] = {};
#pragma unroll PLAIN_STEPS
    for (int step = 0; step < STEPS; step++) {
      const Quad a = *(const Quad*)(key + 32 * step), e = *(const Quad*)(key + 2 * D + 32 * step);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const Quad b = *(const Quad*)(query + (c + 8 * r) * D + 32 * step + 8 * t);
        hmma(s[r], a.x, e.x, a.y, e.y, b.x, b.y);
        hmma(s[r], a.z, e.z, a.w, e.w, b.z, b.w);
      }
    }
#pragma unroll
    for (int x = 0; x < 4 * R; x++) score[x / 4][2 * i + x / 2 % 2][x % 2] = s[x / 4][x % 4] * scale;
  }
}

// acc += probabilities · values of tokens below `live`; later slots may hold anything, NaN too.
template <int QUARTERS>
DEV void plain_values(const u16* page, int lane, int live, const float (&p)[R][2 * QUARTERS][2], float (&acc)[R][VD / 16][4]) {
  const int t = lane & 3, c = lane >> 2;
  u32 b[R][2 * QUARTERS];
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int j = 0; j < 2 * QUARTERS; j++) b[r][j] = transpose(pack16(p[r][j][0], p[r][j][1]));  // row c, tokens 16t + 2j, + 1
#pragma unroll
  for (int step = 0; step < VD / 32; step++) {
#pragma unroll
    for (int m = 0; m < QUARTERS; m++) {
      Pair v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        v[i] = *(const Pair*)(page + (16 * t + 4 * m + i) * D + 32 * step + 4 * c);
        if (16 * t + 4 * m + i >= live) v[i] = {0, 0};
      }
#pragma unroll
      for (int r = 0; r < R; r++) {
        hmma(acc[r][2 * step], prmt(v[0].x, v[1].x, 0x5410), prmt(v[0].x, v[1].x, 0x7632),
             prmt(v[2].x, v[3].x, 0x5410), prmt(v[2].x, v[3].x, 0x7632), b[r][2 * m], b[r][2 * m + 1]);
        hmma(acc[r][2 * step + 1], prmt(v[0].y, v[1].y, 0x5410), prmt(v[0].y, v[1].y, 0x7632),
             prmt(v[2].y, v[3].y, 0x5410), prmt(v[2].y, v[3].y, 0x7632), b[r][2 * m], b[r][2 * m + 1]);
      }
    }
  }
}
