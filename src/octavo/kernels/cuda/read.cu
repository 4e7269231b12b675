// The yardstick: reads bytes and does nothing else worth mentioning.
#include "common.cuh"
extern "C" __global__ void __launch_bounds__(1024) read(const uint4* data, i64 quads, u32* out) {
  u32 sum = 0;
  const i64 step = (i64)gridDim.x * 1024;
  for (i64 i = (i64)blockIdx.x * 1024 + threadIdx.x; i < quads; i += 4 * step) {
    uint4 q[4];
#pragma unroll
    for (int j = 0; j < 4; j++) q[j] = i + j * step < quads ? __ldcs(data + i + j * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 4; j++) sum ^= q[j].x ^ q[j].y ^ q[j].z ^ q[j].w;
  }
  if (sum == 0x12345678u) *out = sum;
}
