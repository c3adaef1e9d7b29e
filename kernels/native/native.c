/* What Python calls (kernels/compiled.py): the fastest way that this CPU knows. */
#include <stdlib.h>

#include "native.h"

#define TASK_BYTES (256 * 1024) /* of weights a task, about: many enough to share out, long enough to be worth it */

enum { PORTABLE, AVX2, AVX512 };

static int level = -1;

/* The instructions in use: 0 portable, 1 AVX2 and FMA, 2 AVX-512 VNNI. Lowered to `most`, if that is not negative. */
int es_level(int most) {
  if (level < 0 || most >= 0) {
    level = PORTABLE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) level = AVX2;
    if (level == AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
      level = AVX512;
#endif
    if (most >= 0 && level > most) level = most;
  }
  return level;
}

/* x [n][columns] -> numbers [n][supers][8][32], step and sum [n][supers][8], in the order of the format's decoding.
   A group's largest number is LARGEST; one that holds infinities or NaN gets the step NaN. What the numbers miss of x
   is left in it. */
void es_quantise(int format, float *x, int64_t n, int64_t columns, int64_t supers, int16_t *numbers, float *step,
                 float *sum) {
  int64_t groups = (columns + GROUP - 1) / GROUP, half_groups = (columns + 63) / 64;
  for (int64_t r = 0; r < n; r++)
    for (int64_t i = 0; i < supers * GROUPS; i++) {
      int64_t place = r * supers * GROUPS + i, g = i;
      if (format == INT4) {
        int64_t low = i / 8 * 4 + i % 4;
        g = low >= half_groups ? groups : i % 8 < 4 ? low : half_groups + low;
      }
      int16_t *q = numbers + place * GROUP;
      int64_t left = columns - g * GROUP;
      int some = g >= groups || left <= 0 ? 0 : left < GROUP ? (int)left : GROUP;
      float v[GROUP] = {0};
      if (some) memcpy(v, x + r * columns + g * GROUP, (size_t)some * 4);
      uint32_t bits[GROUP], largest = 0;
      memcpy(bits, v, sizeof bits);
      for (int j = 0; j < GROUP; j++) {
        uint32_t size = bits[j] & 0x7FFFFFFF; /* in the order of the magnitudes; NaN is above infinity */
        largest = size > largest ? size : largest;
      }
      float most, nan = __builtin_nanf("");
      memcpy(&most, &largest, 4);
      int finite = largest < 0x7F800000;
      if (most < 1e-30f) most = 1e-30f; /* 1 / most stays finite */
      float inverse = finite ? LARGEST / most : 0;
      int32_t total = 0;
      float used = finite ? most / LARGEST : nan;
      for (int j = 0; j < GROUP; j++) {
        float rounded = (finite ? v[j] * inverse : 0) + 12582912.0f; /* 1.5 * 2^23: rounds half to even */
        int32_t number = (int32_t)(rounded - 12582912.0f);
        q[j] = (int16_t)number;
        v[j] -= (float)number * used;
        total += number;
      }
      if (some) memcpy(x + r * columns + g * GROUP, v, (size_t)some * 4);
      step[place] = used;
      sum[place] = (float)total;
    }
}

typedef struct {
  const Matmul *m;
  int64_t rows; /* a task */
  char *room;   /* NULL: dense */
} Share;

static void some_rows(void *argument, int64_t index, int worker) {
  const Share *s = argument;
  int64_t first = index * s->rows, last = first + s->rows < s->m->rows ? first + s->rows : s->m->rows;
  Rows *rows = portable_rows;
  Dense *dense = portable_dense;
#if defined(__x86_64__)
  if (level == AVX512) rows = avx512_rows, dense = avx512_dense;
  if (level == AVX2) rows = avx2_rows, dense = avx2_dense;
#endif
  if (s->room)
    rows(s->m, first, last, s->room + (size_t)worker * ROOM);
  else
    dense(s->m, first, last);
}

static void share_out(const Matmul *m, char *room, int threads) {
  int64_t bytes = TASK_BYTES / (m->row_bytes ? m->row_bytes : 1), even = m->rows / (4 * threads);
  int64_t rows = (bytes < even ? bytes : even) / TILE_ROWS * TILE_ROWS; /* at least four tasks a thread */
  Share share = {m, rows < TILE_ROWS ? TILE_ROWS : rows, room};
  es_level(-1);
  run_tasks(some_rows, &share, (m->rows + share.rows - 1) / share.rows, threads);
}

/* out fp32 [n][out_stride] = x @ weights^T. Returns 0, or -1 when there is no memory. */
int es_matmul(int format, const uint8_t *weights, int64_t row_bytes, int64_t rows, int64_t columns, const float *scale,
              const int16_t *x, const float *step, const float *sum, int64_t n, int64_t supers, float *out,
              int64_t out_stride, int threads) {
  Matmul m = {format, weights, row_bytes, rows, columns, scale, x, step, sum, n, supers, out, out_stride, 0};
  char *room = aligned_alloc(64, ROOM * (size_t)threads);
  if (!room) return -1;
  share_out(&m, room, threads);
  free(room);
  return 0;
}

/* out [rows][out_stride], bf16 or fp32: the weights as numbers. */
void es_dense(int format, const uint8_t *weights, int64_t row_bytes, int64_t rows, int64_t columns, const float *scale,
              int64_t supers, void *out, int64_t out_stride, int bf16, int threads) {
  Matmul m = {format, weights, row_bytes, rows, columns, scale, NULL, NULL, NULL, 0, supers, out, out_stride, bf16};
  share_out(&m, NULL, threads);
}

/* Changes with the meaning of any of these functions. */
int es_version(void) { return 2; }
