/* For CPUs that have no file of their own. Compilers make vectors of these loops (NEON's smlal, for example). */
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

#define SET 0 /* as es_level counts */
#include "rows.inc"
#include "attention.inc"
#include "half.inc"
