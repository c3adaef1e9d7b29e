/* Low-bit weights by NEON's dot products (ARMv8.2): four columns of a row of weights with four of x, in each of a vector's four
   places. */
#include "target.h"
#ifdef HAS_NEON
NEON_TARGET
#define NAME(x) neon_##x
#define LANES 1
#define TOGETHER QUADS
#include "neon_quads.h"

INLINE void arranged(Numbers *w) { (void)w; } /* as they are decoded */

/* Sums of 16 columns' products: of both digits, the high ones' 256 times. */
INLINE int32x4_t digits(int32x4_t sum, int8x16_t w, const int8_t *x) { return vdotq_s32(sum, w, vld1q_s8(x)); }

/* The sums of four groups, or of their halves, each of a vector. */
INLINE int32x4_t merged(const int32x4_t *v) { return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])); }

INLINE void dots(int format, const Numbers *w, int quad, const int8_t *x, int32x4_t *first, int32x4_t *other) {
  const int8x16_t *number = w->number + 8 * quad;
  int32x4_t a[4], b[4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; g++, x += 2 * GROUP, number += 2) {
    const int32x4_t zero = vdupq_n_s32(0);
    if (of_sixteen(format)) {
      a[g] = digits(vshlq_n_s32(digits(zero, number[0], x), 8), number[0], x + 32);
      b[g] = digits(vshlq_n_s32(digits(zero, number[1], x + 16), 8), number[1], x + 48);
    } else {
      const int32x4_t high = vshlq_n_s32(digits(digits(zero, number[0], x), number[1], x + 16), 8);
      a[g] = digits(digits(high, number[0], x + 32), number[1], x + 48);
    }
  }
  *first = merged(a);
  if (of_sixteen(format)) *other = merged(b);
}

INLINE void four_rows(const Numbers *w, int8x16_t *to) { /* four columns of each */
  for (int v = 0; v < 16; v++) side_by_side(w, offsetof(Numbers, number) + 16 * (size_t)v, to + 4 * v);
}

/* dot += products of 16 columns, the i16-th 16; x: of each row, from its `at`-th byte on, four columns of which serve a vector. */
INLINE void sixteen(const Quad *quad, int i16, const int8_t *const *x, int at, int32x4_t (*dot)[QUADS]) {
  int8x16_t of_x[X_TOGETHER];
#pragma GCC unroll 4
  for (int i = 0; i < X_TOGETHER; i++) of_x[i] = vld1q_s8(x[i] + at);
#define COLUMNS(k) \
  EACH_OF(q, QUADS) { \
    const int8x16_t w = quad[q].number[4 * i16 + k]; \
    EACH_OF(i, X_TOGETHER) dot[i][q] = vdotq_laneq_s32(dot[i][q], w, of_x[i], k); \
  } \
  __asm__ volatile("" ::: "memory"); /* else all loads come first, and sums go to memory */
  COLUMNS(0) COLUMNS(1) COLUMNS(2) COLUMNS(3)
}

INLINE void products(const Quad *quad, const int8_t *const *x, int g, int first, int last, int32x4_t (*dot)[QUADS]) {
  EACH_SUM(i, q) dot[i][q] = vdupq_n_s32(0);
#pragma GCC unroll 2
  for (int digit = 0; digit < 2; digit++) {
    if (digit) EACH_SUM(i, q) dot[i][q] = vshlq_n_s32(dot[i][q], 8);
#pragma GCC unroll 2
    for (int h = first; h < last; h++) sixteen(quad, 2 * g + h, x, 2 * GROUP * g + GROUP * digit + 16 * h, dot);
  }
}

/* In place, of each group 32 high digits and then 32 low ones. */
void neon_arrange(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum) {
  (void)format, (void)offset, (void)step, (void)sum;
  for (int64_t g = 0; g < supers * GROUPS; g++, x += GROUP) {
    int8x16_t v[4];
    for (int i = 0; i < 4; i++) v[i] = eight_digits(x + 8 * i);
    for (int h = 0; h < 2; h++) {
      const int64x2_t a = vreinterpretq_s64_s8(v[2 * h]), b = vreinterpretq_s64_s8(v[2 * h + 1]);
      vst1q_s64((int64_t *)x + 2 * h, vzip1q_s64(a, b));
      vst1q_s64((int64_t *)x + 4 + 2 * h, vzip2q_s64(a, b));
    }
  }
}

#include "neon_few.inc"
#include "neon_many.inc"
END_NEON
#endif
