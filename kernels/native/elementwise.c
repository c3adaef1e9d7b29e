/* What a layer computes between its matrices: RMS norms, rotary embedding, SwiGLU, as kernels/reference.py defines
   them, in fp32 inside, with its roundings to the rows' type.

   Plain loops, compiled for each instruction set. Nothing here depends on it: the operations are IEEE's, one by one (no
   fused multiply-adds), with an exponential of our own; and the one sum, of a norm's squares, has 16 places (column mod
   16) on every CPU. So an element's bits depend neither on what is beside it nor on instructions or threads. */
#include "floats.h"

#define TASK 8192   /* numbers of a task, about */
#define ALONE 32768 /* numbers that one thread computes before others are awake */

typedef struct Work Work;
typedef void Some(const Work *w, int64_t first, int64_t last); /* rows */
struct Work {
  Some *some;
  int64_t rows, columns, task; /* columns of a row, or pairs of a head; rows of a task */
  const void *a, *b;           /* norm: x, weight [columns]. swiglu: gate, up. rotate: cosines, sines [rows][columns] */
  int64_t a_stride, b_stride;  /* numbers from row to row */
  void *out[2];                /* rotate: q and k, where they are; norm: the second may be `added` */
  int64_t out_stride[2], heads[2];
  float eps;
};

#define PARTS(at, n, all, most) \
  for (int64_t at = 0, n; n = (all) - at < (most) ? (all) - at : (most), n > 0; at += n)

/* `added`: out[1], rounded to the type, becomes its sum with x, and that is normed. */
INLINE void norm(int set, int type, int added, const Work *w, int64_t first, int64_t last) {
  const int64_t d = w->columns;
  const void *normed = added ? w->out[1] : w->a;
  for (int64_t r = first; r < last; r++) {
    float x[PART], weight[PART], sums[PLACES] = {0};
    PARTS(at, n, d, PART) {
      load(set, type, w->a, r * d + at, n, x);
      if (added) {
        float more[PART];
        load(set, type, w->out[1], r * d + at, n, more);
        for (int64_t i = 0; i < n; i++) x[i] += more[i];
        round_to(set, type, x, n);
        store(set, type, x, w->out[1], r * d + at, n);
      }
      for (int64_t i = n; i % PLACES; i++) x[i] = 0;
      for (int64_t i = 0; i < n; i += PLACES)
        for (int j = 0; j < PLACES; j++) sums[j] += x[i + j] * x[i + j];
    }
    for (int half = PLACES / 2; half; half /= 2)
      for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    const float scale = 1 / sqrtf(sums[0] / (float)d + w->eps);
    PARTS(at, n, d, PART) {
      load(set, type, normed, r * d + at, n, x);
      load(set, type, w->b, at, n, weight);
      for (int64_t i = 0; i < n; i++) x[i] *= scale;
      round_to(set, type, x, n);
      for (int64_t i = 0; i < n; i++) x[i] *= weight[i];
      store(set, type, x, w->out[0], r * d + at, n);
    }
  }
}

INLINE void swiglu(int set, int type, int unused, const Work *w, int64_t first, int64_t last) {
  (void)unused;
  for (int64_t r = first; r < last; r++)
    PARTS(at, n, w->columns, PART) {
      float x[PART], up[PART];
      load(set, type, w->a, r * w->a_stride + at, n, x);
      load(set, type, w->b, r * w->b_stride + at, n, up);
      for (int64_t i = 0; i < n; i++) x[i] = x[i] / (exponential(-x[i]) + 1);
      round_to(set, type, x, n);
      for (int64_t i = 0; i < n; i++) x[i] *= up[i];
      store(set, type, x, w->out[0], r * w->columns + at, n);
    }
}

/* out += a. */
INLINE void add(int set, int type, int unused, const Work *w, int64_t first, int64_t last) {
  (void)unused;
  for (int64_t r = first; r < last; r++)
    PARTS(at, n, w->columns, PART) {
      float x[PART], more[PART];
      load(set, type, w->out[0], r * w->columns + at, n, x);
      load(set, type, w->a, r * w->a_stride + at, n, more);
      for (int64_t i = 0; i < n; i++) x[i] += more[i];
      store(set, type, x, w->out[0], r * w->columns + at, n);
    }
}

#define PAIRS (PART / 4) /* at a time */

/* The pairs (i, i + half) of a head, or (2 i, 2 i + 1). */
INLINE void rotate(int set, int type, int interleaved, const Work *w, int64_t first, int64_t last) {
  const int64_t half = w->columns, step = interleaved ? 2 : 1;
  for (int64_t r = first; r < last; r++)
    PARTS(at, n, half, PAIRS) {
      float cos[PAIRS], sin[PAIRS], x[2 * PAIRS], products[4 * PAIRS];
      load(set, type, w->a, r * half + at, n, cos);
      load(set, type, w->b, r * half + at, n, sin);
      for (int which = 0; which < 2; which++)
        for (int64_t h = 0; h < w->heads[which]; h++) {
          int64_t head = r * w->out_stride[which] + 2 * h * half, low = head + step * at, high = low + half;
          float *a = x, *b = x + (interleaved ? 1 : n), *p = products;
          load(set, type, w->out[which], low, interleaved ? 2 * n : n, a);
          if (!interleaved) load(set, type, w->out[which], high, n, b);
          for (int64_t i = 0; i < n; i++) {
            p[i] = a[step * i] * cos[i], p[n + i] = b[step * i] * sin[i];
            p[2 * n + i] = b[step * i] * cos[i], p[3 * n + i] = a[step * i] * sin[i];
          }
          round_to(set, type, p, 4 * n);
          for (int64_t i = 0; i < n; i++) a[step * i] = p[i] - p[n + i], b[step * i] = p[2 * n + i] + p[3 * n + i];
          store(set, type, a, w->out[which], low, interleaved ? 2 * n : n);
          if (!interleaved) store(set, type, b, w->out[which], high, n);
        }
    }
}

/* One function for each type and instruction set. */
#define ONE(set, target, name, op, type, how) \
  target static void set##_##name##_##type(const Work *w, int64_t first, int64_t last) { \
    op(set, type, how, w, first, last); \
  }
#define TYPES(set, target, name, op, how) \
  ONE(set, target, name, op, F32, how) ONE(set, target, name, op, F16, how) ONE(set, target, name, op, BF16, how) \
  static Some *const set##_##name[] = {set##_##name##_F32, set##_##name##_F16, set##_##name##_BF16};
#define ALL(set, target) \
  TYPES(set, target, norm, norm, 0) TYPES(set, target, sum_norm, norm, 1) TYPES(set, target, swiglu, swiglu, 0) TYPES(set, target, add, add, 0) \
  TYPES(set, target, halves, rotate, 0) TYPES(set, target, pairs, rotate, 1)

enum { portable = PORTABLE, avx2 = AVX2, avx512 = AVX512, neon = NEON }; /* in names, as macros are not */
ALL(portable, )
#if defined(__x86_64__)
ALL(avx2, __attribute__((target("avx2"))))
ALL(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#define BEST(name, type) (es_level(-1) >= AVX512 ? avx512_##name : es_level(-1) ? avx2_##name : portable_##name)[type]
#elif ON_ARM
ALL(neon, )
#define BEST(name, type) (es_level(-1) ? neon_##name : portable_##name)[type]
#else
#define BEST(name, type) portable_##name[type]
#endif

static void task(void *argument, int64_t index, int worker) {
  const Work *w = argument;
  (void)worker;
  int64_t first = index * w->task, last = first + w->task;
  w->some(w, first, last < w->rows ? last : w->rows);
}

static void run(Work w, int64_t numbers, int threads) { /* numbers of a row */
  w.task = TASK / (numbers ? numbers : 1) + 1;
  run_tasks(task, &w, (w.rows + w.task - 1) / w.task, w.rows * numbers < ALONE ? 1 : threads);
}

/* Types: 0 fp32, 1 fp16, 2 bf16, of all that is passed. out [rows][columns] = norm of x [rows][columns] * weight; with
   `added` [rows][columns], which may be NULL, of x + added, which is left there. */
void es_norm(int type, const void *x, void *added, const void *weight, float eps, void *out, int64_t rows,
             int64_t columns, int threads) {
  run((Work){.some = added ? BEST(sum_norm, type) : BEST(norm, type), .rows = rows, .columns = columns, .a = x,
             .b = weight, .out = {out, added}, .eps = eps}, columns, threads);
}

/* to [rows][columns] += what, rows `stride` numbers apart: 0 for a bias. */
void es_add(int type, const void *what, int64_t stride, void *to, int64_t rows, int64_t columns, int threads) {
  run((Work){.some = BEST(add, type), .rows = rows, .columns = columns, .a = what, .a_stride = stride, .out = {to}}, columns,
      threads);
}

/* out [rows][columns] = silu(gate) * up; strides in numbers. */
void es_swiglu(int type, const void *gate, int64_t gate_stride, const void *up, int64_t up_stride, void *out,
               int64_t rows, int64_t columns, int threads) {
  run((Work){.some = BEST(swiglu, type), .rows = rows, .columns = columns, .a = gate, .b = up, .a_stride = gate_stride,
             .b_stride = up_stride, .out = {out}}, columns, threads);
}

/* q [rows][q_heads][2 half] and k, in place, by cos and sin [rows][half]; strides from row to row, in numbers. */
void es_rotate(int type, int interleaved, void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride,
               int64_t k_heads, const void *cos, const void *sin, int64_t rows, int64_t half, int threads) {
  run((Work){.some = interleaved ? BEST(pairs, type) : BEST(halves, type), .rows = rows, .columns = half, .a = cos,
             .b = sin, .out = {q, k}, .out_stride = {q_stride, k_stride}, .heads = {q_heads, k_heads}},
      2 * half * (q_heads + k_heads), threads);
}
