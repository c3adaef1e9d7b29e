/* Weights into int8 and int4: what quantize.py defines, bit by bit (its float operations in its order, each rounded;
   and sums that are exact, so that theirs does not matter). Four lanes on every CPU: faster than most disks read. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "native.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BLOCK_COLUMNS 32    /* loaded at a time */
#define STEP_COLUMNS 64     /* share an int4 step: `GROUP` of low_bit.py */
#define MAGIC 12582912.0f   /* 1.5 * 2^23: what is added to it is rounded half to even */
#define INFINITE 0x7F800000 /* fp32's infinity */
#define TINY 1e-30f         /* where the largest weight of a group is smaller, it becomes zeros */
#define TASK_WEIGHTS 262144 /* a task, about */

enum { F32, F16, BF16 };

typedef float Four __attribute__((vector_size(16)));
typedef double Two __attribute__((vector_size(16)));
typedef int32_t Whole __attribute__((vector_size(16)));

static const float trials[] = {0.83f, 0.89f, 0.94f, 1.0f, 1.06f, 1.15f};

INLINE Four all(float f) { return (Four){f, f, f, f}; }

INLINE Four clamp(Four x, float low, float high) {
#if defined(__SSE2__)
  return _mm_min_ps(_mm_max_ps(x, all(low)), all(high));
#elif defined(__aarch64__)
  return vminq_f32(vmaxq_f32(x, all(low)), all(high));
#else
  for (int i = 0; i < 4; i++) x[i] = x[i] < low ? low : x[i] > high ? high : x[i];
  return x;
#endif
}

INLINE float nearest(float x) { return (x + MAGIC) - MAGIC; }

static inline float to_bf16(float f) { /* a finite number */
  uint32_t b;
  memcpy(&b, &f, 4);
  b = (b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000;
  memcpy(&f, &b, 4);
  return f;
}

/* Columns [first, first + 32) of a row as fp32; zeros behind its last. */
INLINE void load(int source, const uint8_t *row, int64_t columns, int64_t first, float *x) {
  int some = clip(columns - first, BLOCK_COLUMNS);
  if (source == F32) {
    if (some < BLOCK_COLUMNS) memset(x, 0, 4 * BLOCK_COLUMNS);
    memcpy(x, row + 4 * first, 4 * (size_t)some);
    return;
  }
  uint16_t raw[BLOCK_COLUMNS] = {0};
  uint32_t bits[BLOCK_COLUMNS];
  if (some == BLOCK_COLUMNS)
    memcpy(raw, row + 2 * first, sizeof raw);
  else
    memcpy(raw, row + 2 * first, 2 * (size_t)some);
  if (source == BF16)
    for (int j = 0; j < BLOCK_COLUMNS; j++) bits[j] = (uint32_t)raw[j] << 16;
  else { /* as `half` in formats.h, without a subnormal fp32 on the way: they take a hundred times as long */
    uint32_t tiny[BLOCK_COLUMNS];
    for (int j = 0; j < BLOCK_COLUMNS; j++) bits[j] = (raw[j] & 0x7FFFu) << 13;
    for (int j = 0; j < BLOCK_COLUMNS; j++) tiny[j] = bits[j] + (113u << 23); /* 2^-14 more than it is */
    memcpy(x, tiny, sizeof tiny);
    for (int j = 0; j < BLOCK_COLUMNS; j++) x[j] -= 0x1p-14f;
    memcpy(tiny, x, sizeof tiny);
    for (int j = 0; j < BLOCK_COLUMNS; j++) {
      int32_t size = raw[j] & 0x7FFF;
      uint32_t number = size < 0x400 ? tiny[j] : bits[j] + (112u << 23);
      bits[j] = (size < 0x7C00 ? number : INFINITE) | (raw[j] & 0x8000u) << 16;
    }
  }
  memcpy(x, bits, sizeof bits);
}

/* The largest magnitude's bits; from INFINITE on one is not finite. (In the order of the magnitudes: the sign is gone.) */
INLINE int32_t largest_of(const float *x, int n) {
  int32_t largest = 0;
  for (int j = 0; j < n; j++) {
    int32_t b;
    memcpy(&b, x + j, 4);
    b &= 0x7FFFFFFF;
    largest = b > largest ? b : largest;
  }
  return largest;
}

/* `_best_int4_step` for one group. Numbers that are not 0 belong to weights of at least 1/20 of the largest: products
   of bf16 and fp16 weights have at most 15 bits, so that sixteen sum up exactly in fp32, and any 64 in fp64. */
INLINE float best_step(int source, const float *weights, float extreme) {
  uint32_t bits;
  float power, x[STEP_COLUMNS], most = 0, best = 0;
  memcpy(&bits, &extreme, 4);
  bits &= 0x7F800000;
  memcpy(&power, &bits, 4);
  for (int j = 0; j < STEP_COLUMNS; j++) x[j] = weights[j] * (1 / power);
  float inverse = -8 / (extreme / power);
  for (int t = 0; t < 6; t++) {
    float by = inverse / trials[t];
    Four squares = all(0), sums = all(0);
    Two wide[2] = {{0, 0}, {0, 0}};
    for (int j = 0; j < STEP_COLUMNS; j += 4) {
      Four v, p;
      memcpy(&v, x + j, sizeof v);
      Four q = (clamp(v * by, -8, 7) + MAGIC) - MAGIC;
      squares += q * q;
      p = q * v;
      if (source == F32)
        for (int i = 0; i < 2; i++) wide[i] += (Two){p[2 * i], p[2 * i + 1]};
      else
        sums += p;
    }
    for (int i = 0; i < 4; i++) wide[i / 2][i % 2] += sums[i];
    float qq = (squares[0] + squares[2]) + (squares[1] + squares[3]);
    double xq = (wide[0][0] + wide[0][1]) + (wide[1][0] + wide[1][1]);
    if (qq < 1) qq = 1;
    float s = (float)xq, gain = s * s / qq;
    if (gain > most) most = gain, best = (float)(xq / qq);
  }
  return best * power;
}

/* x / unit, rounded and clamped: 32 numbers. */
INLINE void numbers(const float *x, float unit, int low, int high, int32_t *q) {
  for (int j = 0; j < BLOCK_COLUMNS; j += 4) {
    Four v;
    memcpy(&v, x + j, sizeof v);
    Four r = clamp(v / unit, (float)low, (float)high) + MAGIC;
    Whole whole = (Whole)r - (Whole)all(MAGIC);
    memcpy(q + j, &whole, sizeof whole);
  }
}

/* A row as int8; 0 when a weight is not finite. */
INLINE int row_int8(int source, const uint8_t *row, int64_t columns, uint8_t *out, float *scale) {
  float x[BLOCK_COLUMNS], largest;
  int32_t most = 0;
  for (int64_t c = 0; c < columns; c += BLOCK_COLUMNS) {
    load(source, row, columns, c, x);
    int32_t some = largest_of(x, BLOCK_COLUMNS);
    most = some > most ? some : most;
  }
  if (most >= INFINITE) return 0;
  memcpy(&largest, &most, 4);
  *scale = to_bf16(largest / 127);
  float unit = *scale == 0 ? INFINITY : *scale;
  for (int64_t c = 0; c < columns; c += BLOCK_COLUMNS) {
    int32_t q[BLOCK_COLUMNS];
    uint8_t narrow[BLOCK_COLUMNS];
    load(source, row, columns, c, x);
    numbers(x, unit, -127, 127, q);
    for (int j = 0; j < BLOCK_COLUMNS; j++) narrow[j] = (uint8_t)q[j];
    memcpy(out + c, narrow, (size_t)clip(columns - c, BLOCK_COLUMNS));
  }
  return 1;
}

/* A row as int4; 0 when a weight is not finite. `steps`: room for one float a group. */
INLINE int row_int4(int source, const uint8_t *row, int64_t columns, uint8_t *out, int64_t row_bytes, float *scale,
                    float *steps) {
  int64_t groups = (columns + STEP_COLUMNS - 1) / STEP_COLUMNS, half = groups * BLOCK_COLUMNS;
  float largest = 0;
  for (int64_t g = 0; g < groups; g++) {
    float x[STEP_COLUMNS];
    load(source, row, columns, g * STEP_COLUMNS, x);
    load(source, row, columns, g * STEP_COLUMNS + BLOCK_COLUMNS, x + BLOCK_COLUMNS);
    int32_t most = largest_of(x, STEP_COLUMNS), bits[STEP_COLUMNS];
    if (most >= INFINITE) return 0;
    int first = STEP_COLUMNS;
    memcpy(bits, x, sizeof bits);
    for (int j = 0; j < STEP_COLUMNS; j++) {
      int at = (bits[j] & 0x7FFFFFFF) == most ? j : STEP_COLUMNS;
      first = at < first ? at : first;
    }
    steps[g] = fabsf(x[first]) < TINY ? 0 : best_step(source, x, x[first]);
    largest = fabsf(steps[g]) > largest ? fabsf(steps[g]) : largest;
  }
  *scale = to_bf16(largest / 15);
  float unit = *scale == 0 ? INFINITY : *scale;
  for (int64_t g = 0; g < groups; g++) {
    float m = nearest(steps[g] / unit);
    m = m < -15 ? -15 : m > 15 ? 15 : m == 0 ? 1 : m;
    out[half + g] = (uint8_t)(int8_t)m;
    steps[g] = unit * m;
  }
  memset(out + half + groups, 0, (size_t)(row_bytes - half - groups));
  for (int64_t b = 0; b < groups; b++) { /* column j in a byte's low half, column K/2 + j in its high half */
    float x[BLOCK_COLUMNS];
    int32_t low[BLOCK_COLUMNS], high[BLOCK_COLUMNS];
    load(source, row, columns, b * BLOCK_COLUMNS, x);
    numbers(x, steps[b / 2], -8, 7, low);
    load(source, row, columns, half + b * BLOCK_COLUMNS, x);
    numbers(x, steps[(groups + b) / 2], -8, 7, high);
    for (int j = 0; j < BLOCK_COLUMNS; j++)
      out[b * BLOCK_COLUMNS + j] = (uint8_t)((high[j] + 8) << 4 | (low[j] + 8));
  }
  return 1;
}

typedef struct {
  int int4, source;
  const uint8_t *weights;
  int64_t rows, columns, task;
  uint8_t *out;
  int64_t row_bytes;
  float *scale, *steps;
  atomic_int infinite;
} Quantise;

INLINE int one_row(const Quantise *q, int source, int64_t r, float *steps) {
  const uint8_t *row = q->weights + r * q->columns * (source == F32 ? 4 : 2);
  uint8_t *out = q->out + r * q->row_bytes;
  return q->int4 ? row_int4(source, row, q->columns, out, q->row_bytes, q->scale + r, steps)
                 : row_int8(source, row, q->columns, out, q->scale + r);
}

static void some_rows(void *argument, int64_t index, int worker) {
  Quantise *q = argument;
  int64_t first = index * q->task, last = first + q->task < q->rows ? first + q->task : q->rows;
  float *steps = q->steps + worker * ((q->columns + STEP_COLUMNS - 1) / STEP_COLUMNS);
  for (int64_t r = first; r < last && !atomic_load(&q->infinite); r++) {
    int finite = q->source == F32   ? one_row(q, F32, r, steps)
                 : q->source == F16 ? one_row(q, F16, r, steps)
                                    : one_row(q, BF16, r, steps);
    if (!finite) atomic_store(&q->infinite, 1);
  }
}

/* weights [rows][columns] fp32, fp16 or bf16 -> out [rows][row_bytes], scale [rows]. Returns 0; 1 when a weight is not
   finite, the results then being of no use; -1 when there is no memory. */
int es_quantise_weights(int int4, int source, const uint8_t *weights, int64_t rows, int64_t columns, uint8_t *out,
                        int64_t row_bytes, float *scale, int threads) {
  float *steps = malloc(4 * (size_t)(columns / STEP_COLUMNS + 1) * (size_t)threads);
  if (!steps) return -1;
  int64_t task = TASK_WEIGHTS / (columns ? columns : 1);
  Quantise q = {int4, source, weights, rows, columns, task ? task : 1, out, row_bytes, scale, steps, 0};
  run_tasks(some_rows, &q, (rows + q.task - 1) / q.task, threads);
  free(steps);
  return atomic_load(&q.infinite);
}
