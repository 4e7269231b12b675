// Plain pages become packed ones. Of trellis formats this kernel writes the mean, and for the walk (viterbi.cu)
// every value in quarters of a level's unit. Macros: those of pages.cuh, and RULE, the gain rule.
#include "seal_pack.cuh"

// Mean of each channel as whole numbers times one gain: its bytes to `out`, what they mean to `mean`.
DEV void take_mean(const u16* page, u8* out, float* mean, float* parts) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS; chunk++) {
    float sum[V] = {};
    for (int token = warp; token < PAGE; token += WARPS) {
      float x[V];
      load_values(page, token, chunk, lane, x);
#pragma unroll
      for (int i = 0; i < V; i++) sum[i] += x[i];
    }
#pragma unroll
    for (int i = 0; i < V; i++) parts[warp * D + chunk * CHUNK + V * lane + i] = sum[i];
  }
  __syncthreads();
  for (int d = threadIdx.x; d < D; d += 32 * WARPS) {
    float sum = 0.f;
    for (int w = 0; w < WARPS; w++) sum += parts[w * D + d];
    mean[d] = sum / PAGE;
  }
  __syncthreads();
  float largest = 0.f;
  for (int d = lane; d < D; d += 32) largest = fmaxf(largest, fabsf(mean[d]));
#pragma unroll
  for (int i = 16; i; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
  const u16 half = to_half(largest / 127.f);
  const float gain = from_half(half);
  __syncthreads();
  for (int d = threadIdx.x; d < D; d += 32 * WARPS) {
    const float code = gain > 0.f ? fminf(fmaxf(rintf(mean[d] / gain), -127.f), 127.f) : 0.f;
    out[MEAN + d] = (u8)(int)code;
    mean[d] = code * gain;
  }
  if (threadIdx.x == 0) *(Quad*)(out + MEAN + D) = {half, 0, 0, 0};
  __syncthreads();
}

DEV float inverse(float d) {
  const float r = 1.f / d;
  return fabsf(r) <= 3.4028234e38f ? r : 0.f;
}
// Products and sums of ggml's formulas are rounded one by one: no fma.
DEV int code_q8(float x, float inverse) {
  const float scaled = __fmul_rn(x, inverse), size = fabsf(scaled), whole = floorf(size);
  const int rounded = (int)(whole + floorf(2.f * (size - whole)));
  return scaled < 0.f ? -rounded : rounded;
}
DEV int code_up(float x, float inverse, float half_up, int top) {
  return min((int)__fadd_rn(__fmul_rn(x, inverse), half_up), top);
}
// The value largest in size, the first of equals.
DEV float first_largest(const float (&x)[V], int lane) {
  unsigned long long key = 0;
#pragma unroll
  for (int i = 0; i < V; i++) {
    const u32 bits = __float_as_uint(x[i]), place = (31 - (lane % GROUP * V + i)) << 1 | bits >> 31;
    const unsigned long long own = (unsigned long long)(bits & 0x7FFFFFFFu) << 32 | place;
    if (own > key) key = own;
  }
#pragma unroll
  for (int i = GROUP / 2; i; i /= 2) {
    const unsigned long long other = __shfl_xor_sync(~0u, key, i);
    if (other > key) key = other;
  }
  return __uint_as_float((u32)(key >> 32) | (u32)key << 31);
}

__host__ __device__ constexpr int level(int code) {
  const u32 of[3][4] = {{TURBO4_0, TURBO4_1, TURBO4_2, TURBO4_3}, {TURBO3_0, TURBO3_1, 0, 0}, {TURBO2_0, 0, 0, 0}};
  const int byte = of[FORMAT == TURBO4 ? 0 : FORMAT == TURBO3 ? 1 : 2][code / 4] >> 8 * (code % 4) & 255;
  return FORMAT == TURBO4 ? 2 * byte - 127 : byte < 128 ? byte : byte - 256;
}
__host__ __device__ constexpr u32 four_levels(int code) {
  u32 word = 0;
  for (int i = 0; i < 4 && code + i < 1 << BITS; i++) word |= (u32)(level(code + i) & 255) << 8 * i;
  return word;
}

// The level nearest to x, of equals the lower one, and its code. Levels lie alike on both sides of zero.
DEV float nearest_level(float x, int& code) {
  constexpr int half = FORMAT >= TURBO4 && FORMAT <= TURBO2 ? 1 << BITS - 1 : 1;
  constexpr u32 low = four_levels(half), high = half > 4 ? four_levels(half + 4) : 0;
  const bool positive = x > 0.f;
  const float size = __uint_as_float((__float_as_uint(x) & 0x7FFFFFFFu) + !positive);  // the other side wins its ties
  int above = 0;
#pragma unroll
  for (int i = 1; i < half; i++) above += size > (level(half + i) + level(half + i - 1)) * 0.5f;
  code = positive ? half + above : half - 1 - above;
  const float c = (float)(prmt(low, high, above) & 255);
  return positive ? c : -c;
}

// V values of one span's lanes → their codes; the first lane stores the factors.
DEV void quantise(const float (&x)[V], u8* out, int token, int chunk, int lane, float unit, int (&code)[V]) {
  float gain = 0.f;
  if constexpr (FORMAT == Q8_0 || FORMAT == TURBO8) {
    float largest = 0.f;
#pragma unroll
    for (int i = 0; i < V; i++) largest = fmaxf(largest, fabsf(x[i]));
    gain = max_span(largest) / 127.f;
    const float by = FORMAT == Q8_0 ? inverse(gain) : from_half(to_half(gain));
#pragma unroll
    for (int i = 0; i < V; i++)
      code[i] = FORMAT == Q8_0 ? code_q8(x[i], by) : by > 0.f ? (int)fminf(fmaxf(rintf(x[i] / by), -127.f), 127.f) : 0;
  } else if constexpr (has_minimum(FORMAT)) {
    float low = x[0], high = x[0];
#pragma unroll
    for (int i = 1; i < V; i++) { low = fminf(low, x[i]); high = fmaxf(high, x[i]); }
    high = max_span(high);
    low = -max_span(-low);
    constexpr int top = (1 << BITS) - 1;
    gain = __fadd_rn(high, -low) / top;
    const float by = inverse(gain);
#pragma unroll
    for (int i = 0; i < V; i++) code[i] = code_up(__fadd_rn(x[i], -low), by, 0.5f, top);
    store_half(out + MINS, token, chunk, lane, low);
  } else if constexpr (FORMAT < TURBO8) {
    constexpr int middle = 1 << BITS - 1;
    gain = first_largest(x, lane) / -middle;
    const float by = inverse(gain);
#pragma unroll
    for (int i = 0; i < V; i++) code[i] = code_up(x[i], by, middle + 0.5f, 2 * middle - 1);
  } else {
    float xx = 0.f;
#pragma unroll
    for (int i = 0; i < V; i++) xx += x[i] * x[i];
    xx = sum_span(xx);
    const float size = fmaxf(sqrtf(xx / SPAN), 1e-20f);
    if constexpr (is_trellis(FORMAT)) {
#pragma unroll
      for (int i = 0; i < V; i++) code[i] = (int)rintf(fminf(fmaxf(x[i] / (size * unit), -255.f), 255.f) * 4.f);
      return;
    } else {
      const float by = 1.f / size * unit;
      float xc = 0.f, cc = 0.f;
#pragma unroll
      for (int i = 0; i < V; i++) {
        const float c = nearest_level(x[i] * by, code[i]);
        xc += x[i] * c;
        cc += c * c;
      }
      gain = fit_gain(xx, RULE == NORM ? 0.f : sum_span(xc), RULE == UNBIASED ? 0.f : sum_span(cc));
    }
  }
  store_half(out + GAINS, token, chunk, lane, gain);
}

// plain: each layer's [slots, heads, PAGE, D]; packed: its [slots, heads, PAGE_BYTES]; slot from[i] goes to to[i].
// `unit`: of the turbo formats, steps of a level in a standard deviation; of trellis formats, its inverse.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
seal(const u16* const* __restrict__ plain, const i64* __restrict__ from, u8* const* packed,
     const i64* __restrict__ to, int heads, float unit, Quad* streams) {
  extern __shared__ __align__(16) u8 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Work work = find_work(plain, from, packed, to, heads);
  float* mean = (float*)shared;
  Code* codes = (Code*)(shared + (CENTRED ? 4 * D : 0));
  if constexpr (CENTRED) take_mean(work.plain, work.packed, mean, (float*)codes);
  for (int token = warp; token < PAGE; token += WARPS)
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      float x[V];
      int code[V];
      load_rest(work.plain, mean, token, chunk, lane, x);
      quantise(x, work.packed, token, chunk, lane, unit, code);
#pragma unroll
      for (int i = 0; i < V; i++) codes[token * ROW + chunk * CHUNK + V * lane + i] = (Code)code[i];
    }
  __syncthreads();
  for (int part = warp; part < PARTS; part += WARPS) {
    if constexpr (is_trellis(FORMAT)) store_stream((const short*)codes, streams + work.index * (8 * PARTS * 32), lane, part);
    else store_part((const u8*)codes, work.packed, lane, part);
  }
}
