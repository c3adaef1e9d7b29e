/* Low-bit weights by NEON's products of matrices (ARMv8.6, i8mm): eight columns of two rows of weights with as many of both digits
   of a row of x, so that one row of x has work for all four places of a vector: the first row's sums of high digits and of low
   ones, then the second's. */
#include "target.h"
#ifdef HAS_I8MM
I8MM_TARGET
#define NAME(x) neon_i8mm_##x
#define LANES 2
#define TOGETHER 2
#include "neon_quads.h"

#define STEP 16 /* bytes of eight columns of x */

/* Eight columns of each, from the first half of both vectors or from the other one. */
INLINE int8x16_t first_halves(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
INLINE int8x16_t other_halves(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

/* Sums of products with x itself: 256 times the high digits' and the low ones', of two vectors' four rows. */
INLINE int32x4_t joined(int32x4_t a, int32x4_t b) { return vmlaq_n_s32(vuzp2q_s32(a, b), vuzp1q_s32(a, b), 256); }

INLINE void arranged(Numbers *w) { /* two rows: vector v has the first halves of both, or the other ones */
#pragma GCC unroll 16
  for (int v = 0; v < 16; v++) {
    const int8x16_t a = w[0].number[v], b = w[1].number[v];
    w[0].number[v] = first_halves(a, b), w[1].number[v] = other_halves(a, b);
  }
}

/* The sums of four groups, or of their halves, of both rows. */
INLINE void merged(const int32x4_t *v, int32x4_t *to) {
  const int32x4_t a = joined(v[0], v[1]), b = joined(v[2], v[3]);
  to[0] = vuzp1q_s32(a, b), to[1] = vuzp2q_s32(a, b);
}

/* sum += products of 16 columns, the v-th of `Numbers`. */
INLINE int32x4_t sixteen(int32x4_t sum, const Numbers *w, int v, const int8_t *x) {
  return vmmlaq_s32(vmmlaq_s32(sum, w[0].number[v], vld1q_s8(x)), w[1].number[v], vld1q_s8(x + STEP));
}

INLINE void dots(int format, const Numbers *w, int quad, const int8_t *x, int32x4_t *first, int32x4_t *other) {
  const int32x4_t zero = vdupq_n_s32(0);
  int32x4_t a[4], b[4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; g++, x += 2 * GROUP) {
    const int v = 8 * quad + 2 * g;
    a[g] = sixteen(zero, w, v, x);
    if (of_sixteen(format)) b[g] = sixteen(zero, w, v + 1, x + 2 * STEP);
    else a[g] = sixteen(a[g], w, v + 1, x + 2 * STEP);
  }
  merged(a, first);
  if (of_sixteen(format)) merged(b, other);
}

INLINE void four_rows(const Numbers *w, int8x16_t *to) { /* eight columns of two of them, and of the others */
  for (int v = 0; v < 16; v++, to += 4)
    for (int pair = 0; pair < 2; pair++) {
      const int8x16_t a = w[2 * pair].number[v], b = w[2 * pair + 1].number[v];
      to[pair] = first_halves(a, b), to[2 + pair] = other_halves(a, b);
    }
}

INLINE void products(const Quad *quad, const int8_t *const *x, int g, int first, int last, int32x4_t (*dot)[TOGETHER]) {
  int32x4_t sum[X_TOGETHER][2 * TOGETHER]; /* of pairs of rows */
  EACH_OF(i, X_TOGETHER) EACH_OF(p, 2 * TOGETHER) sum[i][p] = vdupq_n_s32(0);
#pragma GCC unroll 4
  for (int k = 2 * first; k < 2 * last; k++) {
    const int v = 4 * g + k; /* of eight columns */
    int8x16_t of_x[X_TOGETHER];
    EACH_OF(i, X_TOGETHER) of_x[i] = vld1q_s8(x[i] + STEP * v);
    EACH_OF(p, 2 * TOGETHER) {
      const int8x16_t w = quad[p / 2].number[2 * v + p % 2];
      EACH_OF(i, X_TOGETHER) sum[i][p] = vmmlaq_s32(sum[i][p], w, of_x[i]);
    }
    __asm__ volatile("" ::: "memory"); /* else all loads come first, and sums go to memory */
  }
  EACH_SUM(i, q) dot[i][q] = joined(sum[i][2 * q], sum[i][2 * q + 1]);
}

/* In place, of each eight columns high digits and then low ones. */
void neon_i8mm_arrange(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum) {
  (void)format, (void)offset, (void)step, (void)sum;
  for (int64_t i = 0; i < supers * SUPER; i += 8) vst1q_s8((int8_t *)(x + i), eight_digits(x + i));
}

#include "neon_few.inc"
#include "neon_many.inc"
END_I8MM
#endif
