/* Numbers of a layer's activations: fp32, fp16 and bf16, and an exponential whose steps are the same on every CPU. Plain
   loops: compilers make vectors of them. Built without fused multiply-adds (-ffp-contract=off). */
#pragma once

#include <math.h>

#include "native.h"

#define PART 512 /* numbers converted at a time, at most, where they are rounded in place */

enum { F32, F16, BF16 };
INLINE int64_t type_size(int64_t type) { return type == F32 ? 4 : 2; }

INLINE uint32_t bits_of(float f) {
  uint32_t b;
  memcpy(&b, &f, 4);
  return b;
}

INLINE float of_bits(uint32_t b) {
  float f;
  memcpy(&f, &b, 4);
  return f;
}

/* fp16 <-> fp32, to nearest, ties to even; in selects instead of branches, so that compilers make vectors of it. */
INLINE float wide(uint32_t b) {
  uint32_t size = b & 0x7FFF, rest = size << 13;
  uint32_t tiny = bits_of(of_bits(rest + (113u << 23)) - 0x1p-14f); /* no subnormal fp32, which takes long */
  uint32_t number = size < 0x400 ? tiny : rest + (112u << 23);
  return of_bits((size < 0x7C00 ? number : rest | 0x7F800000) | (b & 0x8000) << 16);
}

INLINE uint32_t narrow(float f) {
  uint32_t b = bits_of(f), size = b & 0x7FFFFFFF;
  uint32_t tiny = bits_of(of_bits(size) + 0.5f) - 0x3F000000; /* fp16's subnormal numbers: units of 2^-24 */
  uint32_t number = (size - (112u << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
  uint32_t large = size > 0x7F800000 ? 0x7E00 : 0x7C00;
  number = size < 113u << 23 ? tiny : number;
  return (size < 143u << 23 ? number : large) | (b >> 16 & 0x8000);
}

#if defined(__x86_64__)
/* The same by F16C, which compilers do not find in plain loops. n: a multiple of 8. */
__attribute__((target("avx,f16c"))) static void f16c_wide(const uint16_t *p, int64_t n, float *x) {
  for (int64_t i = 0; i < n; i += 8) _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + i))));
}

__attribute__((target("avx,f16c"))) static void f16c_narrow(const float *x, int64_t n, uint16_t *p) {
  for (int64_t i = 0; i < n; i += 8) _mm_storeu_si128((void *)(p + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
}
#endif

#if ON_ARM
/* The same by instructions that every such CPU has. n: a multiple of 4. */
INLINE void neon_wide(const uint16_t *p, int64_t n, float *x) {
  for (int64_t i = 0; i < n; i += 4) vst1q_f32(x + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + i))));
}

INLINE void neon_narrow(const float *x, int64_t n, uint16_t *p) {
  for (int64_t i = 0; i < n; i += 4) vst1_u16(p + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
}
#endif

/* n numbers of `type`, from the first-th on -> fp32. */
INLINE void load(int set, int type, const void *p, int64_t first, int64_t n, float *restrict x) {
  const uint16_t *restrict from = (const uint16_t *)p + first;
  int64_t i = 0;
  (void)set;
  if (type == F32) {
    memcpy(x, (const float *)p + first, 4 * (size_t)n);
  } else if (type == BF16) {
    for (; i < n; i++) x[i] = of_bits((uint32_t)from[i] << 16);
  } else {
#if defined(__x86_64__)
    if (set >= AVX2) f16c_wide(from, i = n / 8 * 8, x);
#elif ON_ARM
    if (set >= NEON) neon_wide(from, i = n / 4 * 4, x);
#endif
    for (; i < n; i++) x[i] = wide(from[i]);
  }
}

INLINE void store(int set, int type, const float *restrict x, void *p, int64_t first, int64_t n) {
  uint16_t *restrict to = (uint16_t *)p + first;
  int64_t i = 0;
  (void)set;
  if (type == F32) {
    memcpy((float *)p + first, x, 4 * (size_t)n);
  } else if (type == BF16) {
    for (; i < n; i++) {
      uint32_t b = bits_of(x[i]);
      to[i] = (uint16_t)(((b & 0x7FFFFFFF) > 0x7F800000 ? b | 0x400000 : b + 0x7FFF + (b >> 16 & 1)) >> 16);
    }
  } else {
#if defined(__x86_64__)
    if (set >= AVX2) f16c_narrow(x, i = n / 8 * 8, to);
#elif ON_ARM
    if (set >= NEON) neon_narrow(x, i = n / 4 * 4, to);
#endif
    for (; i < n; i++) to[i] = (uint16_t)narrow(x[i]);
  }
}

/* As `store` and `load` would, in place. */
INLINE void round_to(int set, int type, float *x, int64_t n) {
  if (type == BF16)
    for (int64_t i = 0; i < n; i++) {
      uint32_t b = bits_of(x[i]);
      x[i] = of_bits(((b & 0x7FFFFFFF) > 0x7F800000 ? b : b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000);
    }
  if (type == F16) {
    uint16_t narrowed[PART];
    store(set, type, x, narrowed, 0, n);
    load(set, type, narrowed, 0, n, x);
  }
}

/* e^x of x between -87 and 89, which is infinite; beyond them theirs, and of NaN anything. Off by at most 2 units in
   the last place. The polynomial is that of Cephes' expf (Moshier). */
INLINE float exponential(float x) {
  uint32_t b = bits_of(x), size = b & 0x7FFFFFFF, most = 0x42B20000 - (b >> 31 << 18); /* 89 or, below zero, 87 */
  x = of_bits((size < most ? size : most) | (b & 0x80000000)); /* of floats' comparisons gcc 12 makes branches */
  float magic = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: its low bits are the power of two, rounded */
  float power = magic - 12582912.0f;
  float r = (x - power * 0.693359375f) - power * -2.12194440e-4f; /* ln 2, the first part in few bits */
  float p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r +
             1.6666665459e-1f) * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1;
  return p * of_bits((bits_of(magic) << 23) + (126u << 23)) * 2; /* in two steps: 2^128 is no fp32 number */
}
