// New queries, keys and values on their way into attention: scaled, rotated, and keys and values stored.
// One CTA of D threads a (token, head) row; a thread has one channel.
#include "common.cuh"

constexpr int D = HD;

// In place over the channels of a row: × first, Walsh-Hadamard within blocks of TURN channels, × last / sqrt(TURN).
DEV float turn(float x, float* shared, const float* first, const float* last) {
  const int c = threadIdx.x;
  x *= first[c];
#pragma unroll
  for (int h = 1; h < TURN && h < 32; h *= 2) {
    const float other = __shfl_xor_sync(~0u, x, h);
    x = c & h ? other - x : x + other;
  }
#pragma unroll
  for (int h = 32; h < TURN; h *= 2) {
    __syncthreads();
    shared[c] = x;
    __syncthreads();
    const float other = shared[c ^ h];
    x = c & h ? other - x : x + other;
  }
  return x * last[c] * rsqrtf((float)TURN);
}

// Under bands (pages/bands.py) queries turn on from the rotation they come with: band_cos and band_sin [bands - 1, T, D],
// partner [D], null where the layer has no RoPE; counts [bands] of the layer grows by every token that reads a band, of
// which reach [T] is the highest.
// q goes to q_out [bands, T, heads, D], band by band; k and v to token offsets[t] of plain slot slots[t], and to k_out and v_out [T, kv_heads, D]
// unless those are null. Keys are multiplied and queries divided by scales [kv_heads, D] unless that is null.
extern "C" __global__ void __launch_bounds__(D)
append(const u16* q, i64 q_token, i64 q_head, const u16* k, i64 k_token, i64 k_head, const u16* v, i64 v_token, i64 v_head,
       u16* q_out, u16* k_out, u16* v_out, u16* k_plain, u16* v_plain, const i64* slots, const i64* offsets,
       const float* signs_in, const float* signs_out, const float* scales, int turn_k, int turn_v, int heads, int kv_heads,
       int num_bands, const float* band_cos, const float* band_sin, const int* partner, const i64* reach,
       unsigned long long* counts) {
  __shared__ float shared[D];
  const int token = blockIdx.x, tokens = gridDim.x, c = threadIdx.x;
  const int band = min((int)blockIdx.y / heads, num_bands - 1), row = blockIdx.y - band * heads;
  const bool is_query = row < heads, is_key = !is_query && row < heads + kv_heads;
  const int head = is_query ? row : is_key ? row - heads : row - heads - kv_heads;
  const u16* from = is_query ? q + token * q_token + head * q_head
                  : is_key   ? k + token * k_token + head * k_head
                             : v + token * v_token + head * v_head;
  wait_for_previous();
  launch_dependents();
  float x = load16(from + c);
  if (reach && is_query && head == 0 && c == 0 && band <= reach[token]) atomicAdd(counts + band, 1ull);
  if (band > 0 && is_query && band_cos) {
    const i64 at = ((i64)(band - 1) * tokens + token) * D + c;
    x = x * band_cos[at] + load16(from + partner[c]) * band_sin[at];
  }
  if (scales && is_query) x /= scales[head / (heads / kv_heads) * D + c];
  if (scales && is_key) x *= scales[head * D + c];
  if (is_query || is_key ? turn_k : turn_v) x = turn(x, shared, signs_in, signs_out);
  const u16 y = store16(x);
  if (is_query) {
    q_out[(((i64)band * tokens + token) * heads + head) * D + c] = y;
    return;
  }
  u16 *plain = is_key ? k_plain : v_plain, *out = is_key ? k_out : v_out;
  plain[((slots[token] * kv_heads + head) * 64 + offsets[token]) * D + c] = y;
  if (out) out[((i64)token * kv_heads + head) * D + c] = y;
}

// The inverse over out [T, heads, D], in place.
extern "C" __global__ void __launch_bounds__(D) turn_back(u16* out, const float* signs_in, const float* signs_out) {
  __shared__ float shared[D];
  u16* at = out + ((i64)blockIdx.x * gridDim.y + blockIdx.y) * D + threadIdx.x;
  wait_for_previous();
  launch_dependents();
  *at = store16(turn(load16(at), shared, signs_out, signs_in));
}
