// New queries, keys and values on their way into attention: scaled, rotated, and keys and values stored.
#include "vector.cuh"

// In place over the channels of a row: × first, Walsh-Hadamard within blocks of TURN channels, × last / sqrt(TURN).
DEV void turn(Floats& row, const float* first, const float* last) {
  const int lane = threadIdx.x % 32, c = lane_channel();
  const Floats in = *(const Floats*)(first + c), out = *(const Floats*)(last + c);
#pragma unroll
  for (int i = 0; i < LANE; i++) row.x[i] *= in.x[i];
#pragma unroll
  for (int h = 1; h < TURN && h < LANE; h *= 2)
#pragma unroll
    for (int i = 0; i < LANE; i++)
      if (!(i & h)) {
        const float a = row.x[i], b = row.x[i + h];
        row.x[i] = a + b, row.x[i + h] = a - b;
      }
#pragma unroll
  for (int h = 1; h * LANE < TURN; h *= 2)
#pragma unroll
    for (int i = 0; i < LANE; i++) {
      const float other = __shfl_xor_sync(~0u, row.x[i], h);
      row.x[i] = lane & h ? other - row.x[i] : row.x[i] + other;
    }
#pragma unroll
  for (int i = 0; i < LANE; i++) row.x[i] *= out.x[i] * rsqrtf((float)TURN);
}

// A row is a token's head: queries band by band, then keys, then values.
// Under bands (pages/bands.py) queries turn on from the rotation they come with: band_cos and band_sin [bands - 1, T, D],
// partner [D], null where the layer has no RoPE; counts [bands] of the layer grows by every token that reads a band, of
// which reach [T] is the highest.
// q goes to q_out [bands, T, heads, D], band by band; k and v to token offsets[t] of plain slot slots[t], and to k_out and v_out [T, kv_heads, D]
// unless those are null. Keys are multiplied and queries divided by scales [kv_heads, D] unless that is null.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
append(const u16* q, i64 q_token, i64 q_head, const u16* k, i64 k_token, i64 k_head, const u16* v, i64 v_token, i64 v_head,
       u16* q_out, u16* k_out, u16* v_out, u16* k_plain, u16* v_plain, const i64* slots, const i64* offsets,
       const float* signs_in, const float* signs_out, const float* scales, int turn_k, int turn_v, int tokens, int heads,
       int kv_heads, int num_bands, const float* band_cos, const float* band_sin, const int* partner, const i64* reach,
       unsigned long long* counts) {
  const int rows = num_bands * heads + 2 * kv_heads, c = lane_channel();
  const int token = warp_vector() / rows, place = warp_vector() - (i64)token * rows;
  const int band = min(place / heads, num_bands - 1), row = place - band * heads;
  const bool is_query = row < heads, is_key = !is_query && row < heads + kv_heads;
  const int head = is_query ? row : is_key ? row - heads : row - heads - kv_heads;
  const u16* from = is_query ? q + token * q_token + head * q_head
                  : is_key   ? k + token * k_token + head * k_head
                             : v + token * v_token + head * v_head;
  wait_for_previous();
  launch_dependents();
  if (token >= tokens) return;
  Floats x = load_vector(from + c);
  if (reach && is_query && head == 0 && c == 0 && band <= reach[token]) atomicAdd(counts + band, 1ull);
  if (band > 0 && is_query && band_cos) {
    const i64 at = ((i64)(band - 1) * tokens + token) * D + c;
    const Floats cos = *(const Floats*)(band_cos + at), sin = *(const Floats*)(band_sin + at);
#pragma unroll
    for (int i = 0; i < LANE; i++) x.x[i] = x.x[i] * cos.x[i] + load16(from + partner[c + i]) * sin.x[i];
  }
  if (scales && (is_query || is_key)) {
    const Floats scale = *(const Floats*)(scales + (is_query ? head / (heads / kv_heads) : head) * D + c);
#pragma unroll
    for (int i = 0; i < LANE; i++) x.x[i] = is_query ? x.x[i] / scale.x[i] : x.x[i] * scale.x[i];
  }
  if (is_query || is_key ? turn_k : turn_v) turn(x, signs_in, signs_out);
  if (is_query) {
    store_vector(q_out + (((i64)band * tokens + token) * heads + head) * D + c, x);
    return;
  }
  u16 *plain = is_key ? k_plain : v_plain, *out = is_key ? k_out : v_out;
  store_vector(plain + ((slots[token] * kv_heads + head) * 64 + offsets[token]) * D + c, x);
  if (out) store_vector(out + ((i64)token * kv_heads + head) * D + c, x);
}

// The inverse over out [rows, D], in place.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
turn_back(u16* out, const float* signs_in, const float* signs_out, i64 rows) {
  wait_for_previous();
  launch_dependents();
  if (warp_vector() >= rows) return;
  u16* at = out + warp_vector() * D + lane_channel();
  Floats x = load_vector(at);
  turn(x, signs_out, signs_in);
  store_vector(at, x);
}
