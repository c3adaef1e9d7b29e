/* Low-bit matrices times a few rows of activations. What it computes, whatever the CPU and the number of rows:

       out[r][w] = sum over groups g of 32 columns of  xs[r][g] * (factor[w][g] * dot - minimum[w][g] * xsum)

   dot: the exact integer sum of weights' numbers and activations' (15 bits and a sign, one step a group); the groups
   are summed in eight places (g mod 8), each in ascending order with fused multiply-adds, and the eight sums as
   ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). So a row's bits do not depend on how many rows share a call, on the
   instructions used or on the number of threads. */
#pragma once

#include "formats.h"

/* Bytes that will be needed soon. Decoding keeps the CPU from looking far enough ahead by itself: from memory, a row of x
   times Q4_K went from 4.5 to 10.3 GB/s, Q8_0 from 10.3 to 12.8 (one core, which sums 13.6 GB/s). To the second cache:
   the first one has few places to wait for memory (Q8_0, two cores: 17.2 -> 19.2 GB/s). */
#define AHEAD 2048
INLINE void fetch(const uint8_t *p, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(p + b, 0, 2);
}

#define TILE_ROWS 16 /* weights' rows that are unpacked together */
#define LARGEST 16383 /* of an activation's number: 32 * 16383 * 4096 (Q6_K) is just below 2^31 */

typedef struct {
  int format;
  const uint8_t *weights; /* [rows][row_bytes] */
  int64_t row_bytes, rows, columns;
  const float *scale; /* [rows]; NULL for GGUF types */
  int16_t *x; /* [n][supers][8][32], see `Activations` and `avx512_arrange` */
  int32_t *offset; /* [n][supers][64], of avx512_arrange */
  float *step, *sum; /* [n][supers][8] */
  int64_t n, supers;
  void *packed; /* amx_pack's, or NULL */
  void *out; /* fp32 [n][out_stride]; of dense: [rows][out_stride], bf16 or fp32 */
  int64_t out_stride;
  int bf16;
} Matmul;

/* Rows [first, last) of the weights, first a multiple of TILE_ROWS. `room`: ROOM bytes, aligned to 64. */
typedef void Rows(const Matmul *m, int64_t first, int64_t last, void *room);

/* Rows [first, last) of the weights as numbers. */
typedef void Dense(const Matmul *m, int64_t first, int64_t last);

INLINE Row row_of(const Matmul *m, int64_t w) {
  return (Row){m->weights + w * m->row_bytes, m->columns, m->scale ? m->scale[w] : 1};
}

/* A row x [columns] -> numbers [supers][8][32], step and sum [supers][8], in the order of the format's decoding.
   A group's largest number is LARGEST; one that holds infinities or NaN gets the step NaN. What the numbers miss of x
   is left in it. */
typedef void Activations(int format, float *x, int64_t columns, int64_t supers, int16_t *numbers, float *step,
                         float *sum);

Rows portable_rows, avx2_rows, avx512_rows, amx_rows;
Dense portable_dense, avx2_dense, avx512_dense;
Activations portable_quantise, avx2_quantise, avx512_quantise;

/* sums [terms][n][stride], of which `rows` are of use -> out [n][out_stride], bf16 or fp32: the terms' sums. */
typedef void Finish(const float *sums, int terms, int64_t n, int64_t stride, int64_t rows, void *out,
                    int64_t out_stride, int bf16);
Finish portable_finish, avx2_finish, avx512_finish;

/* Up to FEW rows of x, arranged for it; `offset` [supers][64]. */
#define FEW 4
Rows avx512_few;
void avx512_arrange(int format, int64_t supers, int16_t *x, int32_t *offset);

#if defined(__x86_64__) && defined(__linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define HAS_AMX
#define X_ROWS 16 /* of x, that are packed together */
int amx_allowed(void);
int64_t amx_room(int64_t n, int64_t supers); /* bytes of `packed` */
void amx_pack(const Matmul *m, int64_t block, void *packed); /* X_ROWS rows of x */
#endif

#define BLOCK 64 /* rows of x that one unpacked tile serves before the next is unpacked */
#define ROOM (BLOCK * GROUPS * TILE_ROWS * sizeof(float))

typedef void Task(void *argument, int64_t index, int worker);
void run_tasks(Task *task, void *argument, int64_t tasks, int threads); /* pool.c */
int es_level(int most); /* native.c */
