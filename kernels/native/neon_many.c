/* Many rows of x by NEON's dot products: native.h's sums, bit for bit. 16 rows of weights are decoded and lie side by side, four
   columns of four rows a vector, for up to BLOCK rows of x, of which four columns at a time serve a vector. x is arranged as in
   neon_few.c. */
#include "target.h"
#ifdef HAS_NEON
#include <stddef.h>
NEON_TARGET
#include "neon_numbers.h"

#define QUADS (TILE_ROWS / 4) /* of rows of weights */

typedef struct { /* a super of four rows of weights */
  int8x16_t number[SUPER / 4]; /* four columns of each */
  float32x4_t factor[GROUPS], minimum[GROUPS];
  int32x4_t times[2][GROUPS]; /* of each group, or of its halves */
} Quad;

typedef float32x4_t Sums[GROUPS][QUADS]; /* of a row of x */

INLINE void turn(const float32x4_t *v, float32x4_t *to) { /* [4][4], `to` may be v */
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(v[0], v[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(v[0], v[1]));
  const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(v[2], v[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(v[2], v[3]));
  to[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c)), to[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
  to[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c)), to[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

/* A part of `Numbers` of four rows, side by side; all parts are vectors of four words. */
INLINE void side_by_side(const Numbers *w, size_t part, void *to) {
  float32x4_t v[4];
  for (int l = 0; l < 4; l++) memcpy(v + l, (const char *)(w + l) + part, sizeof *v);
  turn(v, v);
  memcpy(to, v, sizeof v);
}

INLINE void decode_quad(const Matmul *m, int format, int64_t w, int lanes, int64_t s, int ahead, Quad *to) {
  const int64_t span = m->row_bytes / m->supers;
  Numbers numbers[4];
  for (int l = 0; l < 4; l++) {
    const Row row = row_of(m, w + (l < lanes ? l : 0)); /* what is behind the last row is not stored */
    if (ahead) fetch(row.row + TILE_ROWS * m->row_bytes + s * span, span); /* of the next tile */
    numbers_of(format, &row, s, numbers + l);
  }
  for (int v = 0; v < 16; v++) side_by_side(numbers, offsetof(Numbers, number) + 16 * (size_t)v, to->number + 4 * v);
  for (int q = 0; q < 2; q++) {
    side_by_side(numbers, offsetof(Numbers, factor) + 16 * (size_t)q, to->factor + 4 * q);
    if (has_minima(format)) side_by_side(numbers, offsetof(Numbers, minimum) + 16 * (size_t)q, to->minimum + 4 * q);
    if (with_times(format))
      side_by_side(numbers, offsetof(Numbers, times) + 16 * (size_t)q, to->times[0] + 4 * q);
    if (of_sixteen(format)) side_by_side(numbers, offsetof(Numbers, more) + 16 * (size_t)q, to->times[1] + 4 * q);
  }
}

#define X_TOGETHER 4 /* rows of x: with QUADS vectors of weights sums fit into registers */

/* dot += products of 16 columns, the i16-th 16; x: of each row, from its `at`-th byte on. */
INLINE void sixteen(const Quad *quad, int i16, const int8_t *const *x, int at, int32x4_t (*dot)[QUADS]) {
  int8x16_t of_x[X_TOGETHER];
#pragma GCC unroll 4
  for (int i = 0; i < X_TOGETHER; i++) of_x[i] = vld1q_s8(x[i] + at);
#define COLUMNS(k) \
  _Pragma("GCC unroll 4") for (int q = 0; q < QUADS; q++) { \
    const int8x16_t w = quad[q].number[4 * i16 + k]; \
    _Pragma("GCC unroll 4") for (int i = 0; i < X_TOGETHER; i++) dot[i][q] = vdotq_laneq_s32(dot[i][q], w, of_x[i], k); \
  } \
  __asm__ volatile("" ::: "memory"); /* else all loads come first, and sums go to memory */
  COLUMNS(0) COLUMNS(1) COLUMNS(2) COLUMNS(3)
}

#define EACH_SUM(i, q) \
  _Pragma("GCC unroll 4") for (int i = 0; i < X_TOGETHER; i++) \
    _Pragma("GCC unroll 4") for (int q = 0; q < QUADS; q++)

/* sums += a super of QUADS of weights times X_TOGETHER rows of x from the r-th on, of which `some` are of use. */
INLINE void times(const Matmul *m, int format, int64_t r, int some, int64_t s, const Quad *w, Sums *sums) {
  const int8_t *x[X_TOGETHER];
  for (int i = 0; i < X_TOGETHER; i++) x[i] = (const int8_t *)(m->x + ((r + (i < some ? i : 0)) * m->supers + s) * SUPER);
  for (int g = 0; g < GROUPS; g++) {
    int32x4_t total[X_TOGETHER][QUADS], dot[X_TOGETHER][QUADS];
    const int parts = of_sixteen(format) ? 2 : 1; /* with a factor of their own */
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
      EACH_SUM(i, q) dot[i][q] = vdupq_n_s32(0);
#pragma GCC unroll 2
      for (int digit = 0; digit < 2; digit++) {
        if (digit) EACH_SUM(i, q) dot[i][q] = vshlq_n_s32(dot[i][q], 8);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
          if (parts == 1 || h == part) sixteen(w, 2 * g + h, x, 2 * GROUP * g + GROUP * digit + 16 * h, dot);
      }
      if (part)
        EACH_SUM(i, q) total[i][q] = vmlaq_s32(total[i][q], dot[i][q], w[q].times[1][g]);
      else
        EACH_SUM(i, q) total[i][q] = with_times(format) ? vmulq_s32(dot[i][q], w[q].times[0][g]) : dot[i][q];
    }
    for (int i = 0; i < X_TOGETHER; i++) {
      if (i >= some) break;
      const int64_t at = ((r + i) * m->supers + s) * GROUPS + g;
      float32x4_t *sum = sums[i][g];
      for (int q = 0; q < QUADS; q++) {
        float32x4_t t = vmulq_f32(w[q].factor[g], vcvtq_f32_s32(total[i][q]));
        if (has_minima(format)) t = vfmsq_f32(t, w[q].minimum[g], vdupq_n_f32(m->sum[at]));
        sum[q] = vfmaq_f32(sum[q], vdupq_n_f32(m->step[at]), t);
      }
    }
  }
}

INLINE void many(const Matmul *m, int format, int64_t first, int64_t last, void *room) {
  Quad tile[QUADS];
  Sums *sums = room; /* [BLOCK] */
  for (int64_t x0 = 0; x0 < m->n; x0 += BLOCK) {
    const int64_t n = m->n - x0 < BLOCK ? m->n - x0 : BLOCK;
    for (int64_t w = first; w < last; w += TILE_ROWS) {
      const int lanes = last - w < TILE_ROWS ? (int)(last - w) : TILE_ROWS;
      memset(sums, 0, (size_t)n * sizeof *sums);
      for (int64_t s = 0; s < m->supers; s++) {
        for (int q = 0; q < QUADS; q++)
          if (4 * q < lanes) decode_quad(m, format, w + 4 * q, lanes - 4 * q, s, !x0, tile + q);
          else tile[q] = tile[0];
        for (int64_t r = 0; r < n; r += X_TOGETHER)
          times(m, format, x0 + r, n - r < X_TOGETHER ? (int)(n - r) : X_TOGETHER, s, tile, sums + r);
      }
      for (int64_t r = 0; r < n; r++) {
        float32x4_t all[QUADS];
        for (int q = 0; q < QUADS; q++) {
          float32x4_t v[GROUPS];
          for (int g = 0; g < GROUPS; g++) v[g] = sums[r][g][q];
          all[q] = vaddq_f32(vaddq_f32(vaddq_f32(v[0], v[4]), vaddq_f32(v[2], v[6])),
                             vaddq_f32(vaddq_f32(v[1], v[5]), vaddq_f32(v[3], v[7])));
        }
        memcpy((float *)m->out + (x0 + r) * m->out_stride + w, all, 4 * (size_t)lanes);
      }
    }
  }
}

#define CASE(format) \
  case format: many(m, format, first, last, room); return;

void neon_rows(const Matmul *m, int64_t first, int64_t last, void *room) {
  switch (m->format) { EACH_FORMAT(CASE) }
}
END_NEON
#endif
