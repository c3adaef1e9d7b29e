/* For CPUs that have no file of their own. Compilers make vectors of these loops. */
#include <math.h>

#include "native.h"

#define DECODE(x) decode_##x
#define NAME(x) portable_##x
#define LANES 8
typedef struct {
  float v[8];
} Eight;
typedef struct {
  int32_t v[8];
} Ints;
typedef Eight Floats;

#define EACH for (int i = 0; i < 8; i++)
static inline Eight eight_load(const float *p) {
  Eight r;
  EACH r.v[i] = p[i];
  return r;
}
static inline Eight eight_set(float f) {
  Eight r;
  EACH r.v[i] = f;
  return r;
}
static inline Eight eight_zero(void) { return eight_set(0); }
static inline Eight eight_mul(Eight a, Eight b) {
  EACH a.v[i] *= b.v[i];
  return a;
}
static inline Eight eight_fma(Eight a, Eight b, Eight c) {
  EACH c.v[i] = fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
static inline Eight eight_fnma(Eight a, Eight b, Eight c) {
  EACH c.v[i] = fmaf(-a.v[i], b.v[i], c.v[i]);
  return c;
}
static inline float eight_total(Eight s) {
  return ((s.v[0] + s.v[4]) + (s.v[2] + s.v[6])) + ((s.v[1] + s.v[5]) + (s.v[3] + s.v[7]));
}
static inline Ints ints_zero(void) { return (Ints){{0}}; }
static inline Ints ints_load(const int32_t *p) {
  Ints r;
  memcpy(&r, p, sizeof r);
  return r;
}
static inline Ints ints_dot(Ints sum, Ints pair, const int16_t *x) {
  const int16_t *p = (const int16_t *)pair.v;
  EACH sum.v[i] += (int32_t)p[2 * i] * x[0] + (int32_t)p[2 * i + 1] * x[1];
  return sum;
}
static inline Floats floats_of(Ints a) {
  Floats r;
  EACH r.v[i] = (float)a.v[i];
  return r;
}
static inline void floats_store(float *p, Floats f) { memcpy(p, f.v, sizeof f); }
#define floats_mul eight_mul
#define floats_load eight_load
#define floats_set eight_set
#define floats_fma eight_fma
#define floats_fnma eight_fnma

static inline Eight eight_dots(const int16_t *a, const int16_t *b) {
  Eight r;
  EACH {
    int32_t sum = 0;
    for (int j = 0; j < 32; j++) sum += (int32_t)a[32 * i + j] * b[32 * i + j];
    r.v[i] = (float)sum;
  }
  return r;
}

static inline void interleave(const Decoded *d, int32_t (*pairs)[8]) {
  for (int l = 0; l < 8; l++)
    for (int k = 0; k < 128; k++) memcpy(&pairs[k][l], d[l].number + 2 * k, 4);
}

#define SET PORTABLE
#include "rows.inc"

/* A few rows of x: each row of weights is decoded and used at once. */
INLINE void few(const Matmul *m, Decode *decode, int minima, int rows, int64_t first, int64_t last) {
  Decoded d __attribute__((aligned(64)));
  const int64_t span = m->row_bytes / m->supers;
  for (int64_t w = first; w < last; w++) {
    Row row = row_of(m, w);
    Eight sums[4];
    for (int r = 0; r < rows; r++) sums[r] = eight_zero();
    for (int64_t s = 0; s < m->supers; s++) {
      fetch(row.row + s * span + AHEAD, span);
      decode(&row, s, &d);
      for (int r = 0; r < rows; r++) {
        int64_t at = r * m->supers + s;
        Eight t = eight_mul(eight_load(d.factor), eight_dots(d.number, m->x + at * SUPER));
        if (minima) t = eight_fnma(eight_load(d.minimum), eight_load(m->sum + at * GROUPS), t);
        sums[r] = eight_fma(eight_load(m->step + at * GROUPS), t, sums[r]);
      }
    }
    for (int r = 0; r < rows; r++) ((float *)m->out)[r * m->out_stride + w] = eight_total(sums[r]);
  }
}

/* Some of `rows` rows of x, times a decoded tile. As many sums at a time as hide the multiplication's latency. */
INLINE void tile_times(const Matmul *m, int64_t r, int64_t s, int rows, int some, int minima,
                       const int32_t (*pairs)[LANES], const float (*factor)[LANES], const float (*minimum)[LANES],
                       float (*sums)[GROUPS][LANES]) {
  const int16_t *x[8];
  for (int i = 0; i < rows; i++) x[i] = m->x + ((r + (i < some ? i : 0)) * m->supers + s) * SUPER;
  for (int g = 0; g < GROUPS; g++) {
    Ints dot[8] = {ints_zero(), ints_zero(), ints_zero(), ints_zero(), ints_zero(), ints_zero(), ints_zero(), ints_zero()};
    for (int k = 16 * g; k < 16 * g + 16; k++) {
      Ints pair = ints_load(pairs[k]);
      for (int i = 0; i < rows; i++) dot[i] = ints_dot(dot[i], pair, x[i] + 2 * k);
    }
    for (int i = 0; i < some; i++) {
      int64_t at = ((r + i) * m->supers + s) * GROUPS + g;
      Floats t = floats_mul(floats_load(factor[g]), floats_of(dot[i]));
      if (minima) t = floats_fnma(floats_load(minimum[g]), floats_set(m->sum[at]), t);
      floats_store(sums[i][g], floats_fma(floats_set(m->step[at]), t, floats_load(sums[i][g])));
    }
  }
}

/* Many rows of x: a tile of LANES rows of weights is decoded, pairs of columns side by side, and serves all of them.
   The sums of a row of x, eight vectors, wait in memory. */
static void many(const Matmul *m, int64_t first, int64_t last, void *room) {
  const int minima = has_minima(m->format);
  const int64_t span = m->row_bytes / m->supers;
  Decode *decode = decoders[m->format];
  Decoded d[LANES] __attribute__((aligned(64)));
  int32_t pairs[SUPER / 2][LANES] __attribute__((aligned(64)));
  float factor[GROUPS][LANES] __attribute__((aligned(64))), minimum[GROUPS][LANES] __attribute__((aligned(64)));
  float(*sums)[GROUPS][LANES] = room; /* [BLOCK] */
  for (int64_t x0 = 0; x0 < m->n; x0 += BLOCK) {
    int64_t n = m->n - x0 < BLOCK ? m->n - x0 : BLOCK;
    for (int64_t w0 = first; w0 < last; w0 += LANES) {
      int lanes = last - w0 < LANES ? (int)(last - w0) : LANES;
      memset(sums, 0, (size_t)n * sizeof *sums);
      for (int64_t s = 0; s < m->supers; s++) {
        for (int l = 0; l < lanes; l++) {
          Row row = row_of(m, w0 + l);
          if (!x0) fetch(row.row + LANES * m->row_bytes + s * span, span); /* of the next tile */
          decode(&row, s, &d[l]);
        }
        for (int l = lanes; l < LANES; l++) d[l] = d[0]; /* their results are not stored */
        interleave(d, pairs);
        for (int g = 0; g < GROUPS; g++)
          for (int l = 0; l < LANES; l++) {
            factor[g][l] = d[l].factor[g];
            if (minima) minimum[g][l] = d[l].minimum[g];
          }
        int64_t r = 0;
        for (; r + 8 <= n; r += 8) tile_times(m, x0 + r, s, 8, 8, minima, pairs, factor, minimum, sums + r);
        for (; r < n; r += 4)
          tile_times(m, x0 + r, s, 4, n - r < 4 ? (int)(n - r) : 4, minima, pairs, factor, minimum, sums + r);
      }
      for (int64_t r = 0; r < n; r++) {
        float *out = (float *)m->out + (x0 + r) * m->out_stride + w0;
        for (int l = 0; l < lanes; l++) {
          float(*s)[LANES] = sums[r];
          out[l] = ((s[0][l] + s[4][l]) + (s[2][l] + s[6][l])) + ((s[1][l] + s[5][l]) + (s[3][l] + s[7][l]));
        }
      }
    }
  }
}

#define CASE(which, name, n) \
  case 8 * which + n: few(m, DECODE(name), has_minima(which), n, first, last); return;
#define CASES(which, name) CASE(which, name, 1) CASE(which, name, 2) CASE(which, name, 3) CASE(which, name, 4)

void NAME(rows)(const Matmul *m, int64_t first, int64_t last, void *room) {
  if (m->n <= FEW) switch (8 * m->format + m->n) { /* with more than FEW rows unpacking a tile pays (measured) */
    CASES(INT8, int8)
    CASES(INT4, int4)
    CASES(Q8_0, q8_0)
    CASES(Q4_0, q4_0)
    CASES(Q4_K, q4_k)
    CASES(Q5_K, q5_k)
    CASES(Q6_K, q6_k)
  }
  many(m, first, last, room);
}

#include "attention.inc"
#include "half.inc"
