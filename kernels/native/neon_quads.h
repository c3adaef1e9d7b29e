/* Four rows of low-bit weights side by side in NEON's registers. Includer defines TOGETHER, quads that are multiplied together. */
#pragma once

#include <stddef.h>

#include "neon_numbers.h"

#define QUADS (TILE_ROWS / 4) /* of rows of weights */

typedef struct { /* a super of four rows of weights */
  int8x16_t number[SUPER / 4]; /* as `four_rows` puts them */
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

#define X_TOGETHER 4 /* rows of x: with TOGETHER quads sums fit into registers */

#define EACH_OF(i, n) _Pragma("GCC unroll 4") for (int i = 0; i < n; i++)
#define EACH_SUM(i, q) EACH_OF(i, X_TOGETHER) EACH_OF(q, TOGETHER)
