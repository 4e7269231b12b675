// Marks of time in decode.cu, with TRACE.
#pragma once
#include "rows.cuh"
#ifdef TRACE
__device__ unsigned long long trace_at[132 * 16 * 8];
DEV unsigned long long now_ns() { unsigned long long t; asm volatile("mov.u64 %0,%globaltimer;" : "=l"(t)); return t; }
#define MARK(i) if ((threadIdx.x & 31) == 0) trace_at[(blockIdx.x * 16 + (threadIdx.x >> 5)) * 8 + i] = now_ns()
#else
#define MARK(i)
#endif
