/* One to six rows of x by NEON's dot products, where decoding is most of the work: native.h's sums, bit for bit. A row's numbers
   stay in registers, as bytes, and are multiplied with two digits of x, 256 * high + low, both signed: so a product of four bytes
   is summed in 32 bits whatever it is, and all formats are alike. */
#include "target.h"
#ifdef HAS_NEON
NEON_TARGET
#include "neon_numbers.h"

/* Sums of 16 columns' products: of both digits, the high ones' 256 times. */
INLINE int32x4_t digits(int32x4_t sum, int8x16_t w, const int8_t *x) { return vdotq_s32(sum, w, vld1q_s8(x)); }

/* The sums of four groups, or of their halves, each of a vector. */
INLINE int32x4_t merged(const int32x4_t *v) { return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])); }

/* Four groups' products with a row of x, arranged: 32 high digits of each, then 32 low ones. */
INLINE int32x4_t dots(int format, const Numbers *w, int quad, const int8_t *x) {
  const int8x16_t *number = w->number + 8 * quad;
  int32x4_t first[4], other[4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; g++, x += 2 * GROUP, number += 2) {
    const int32x4_t zero = vdupq_n_s32(0);
    if (of_sixteen(format)) {
      first[g] = digits(vshlq_n_s32(digits(zero, number[0], x), 8), number[0], x + 32);
      other[g] = digits(vshlq_n_s32(digits(zero, number[1], x + 16), 8), number[1], x + 48);
    } else {
      const int32x4_t high = vshlq_n_s32(digits(digits(zero, number[0], x), number[1], x + 16), 8);
      first[g] = digits(digits(high, number[0], x + 32), number[1], x + 48);
    }
  }
  const int32x4_t sum = merged(first);
  if (of_sixteen(format)) return vmlaq_s32(vmulq_s32(sum, w->times[quad]), merged(other), w->more[quad]);
  return format == INT4 ? vmulq_s32(sum, w->times[quad]) : sum;
}

INLINE float total_of(const float32x4_t *v) {
  const float32x4_t four = vaddq_f32(v[0], v[1]); /* 0+4 1+5 2+6 3+7 */
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

INLINE void few(const Matmul *m, int format, int rows, int64_t first, int64_t last) {
  const int64_t span = m->row_bytes / m->supers;
  for (int64_t w = first; w < last; w++) {
    const Row row = row_of(m, w);
    float32x4_t sums[NEON_FEW][2];
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = vdupq_n_f32(0);
    for (int64_t s = 0; s < m->supers; s++) {
      Numbers numbers;
      fetch(row.row + s * span + AHEAD, span);
      numbers_of(format, &row, s, &numbers);
#pragma GCC unroll 6
      for (int r = 0; r < rows; r++) {
        const int64_t at = r * m->supers + s;
#pragma GCC unroll 2
        for (int q = 0; q < 2; q++) {
          const int32x4_t dot = dots(format, &numbers, q, (const int8_t *)(m->x + at * SUPER + q * SUPER / 2));
          float32x4_t t = vmulq_f32(numbers.factor[q], vcvtq_f32_s32(dot));
          if (has_minima(format)) t = vfmsq_f32(t, numbers.minimum[q], vld1q_f32(m->sum + at * GROUPS + 4 * q));
          sums[r][q] = vfmaq_f32(sums[r][q], vld1q_f32(m->step + at * GROUPS + 4 * q), t);
        }
      }
    }
    for (int r = 0; r < rows; r++) ((float *)m->out)[r * m->out_stride + w] = total_of(sums[r]);
  }
}

#define CASE(format, n) \
  case 8 * format + n: few(m, format, n, first, last); return;
#define CASES(format) CASE(format, 1) CASE(format, 2) CASE(format, 3) CASE(format, 4) CASE(format, 5) CASE(format, 6)

void neon_few(const Matmul *m, int64_t first, int64_t last, void *room) {
  (void)room;
  switch (8 * m->format + m->n) { EACH_FORMAT(CASES) }
}

/* In place, of each group 32 high digits and then 32 low ones. */
void neon_arrange(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum) {
  (void)format, (void)offset, (void)step, (void)sum;
  for (int64_t g = 0; g < supers * GROUPS; g++, x += GROUP) {
    int16x8_t v[4];
    int8_t *to = (int8_t *)x;
    for (int i = 0; i < 4; i++) v[i] = vld1q_s16(x + 8 * i);
    for (int h = 0; h < 2; h++) {
      const int16x8_t a = v[2 * h], b = v[2 * h + 1];
      vst1q_s8(to + 16 * h, vcombine_s8(vrshrn_n_s16(a, 8), vrshrn_n_s16(b, 8))); /* rounded up: what is low is signed */
      vst1q_s8(to + 32 + 16 * h, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
    }
  }
}
END_NEON
#endif
