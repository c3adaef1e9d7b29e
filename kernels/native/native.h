/* Low-bit matrices times a few rows of activations. What it computes, whatever the CPU and the number of rows:

       out[r][w] = sum over groups g of 32 columns of  xs[r][g] * (factor[w][g] * dot - minimum[w][g] * xsum)

   dot: the exact integer sum of weights' numbers and activations' (15 bits and a sign, one step a group); the groups
   are summed in eight places (g mod 8), each in ascending order with fused multiply-adds, and the eight sums as
   ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). So a row's bits do not depend on how many rows share a call, on the
   instructions used or on the number of threads. */
#pragma once

#include "formats.h"

#define TILE_ROWS 16 /* weights' rows that are unpacked together */
#define LARGEST 16383 /* of an activation's number: 32 * 16383 * 4096 (Q6_K) is just below 2^31 */

typedef struct {
  int format;
  const uint8_t *weights; /* [rows][row_bytes] */
  int64_t row_bytes, rows, columns;
  const float *scale; /* [rows]; NULL for GGUF types */
  const int16_t *x; /* [n][supers][8][32], see es_quantise */
  const float *step, *sum; /* [n][supers][8] */
  int64_t n, supers;
  void *out; /* fp32 [n][out_stride]; of dense: [rows][out_stride], bf16 or fp32 */
  int64_t out_stride;
  int bf16;
} Matmul;

/* Rows [first, last) of the weights, first a multiple of TILE_ROWS. `room`: ROOM bytes, aligned
   to 64, when n > 1. */
typedef void Rows(const Matmul *m, int64_t first, int64_t last, void *room);

/* Rows [first, last) of the weights as numbers. */
typedef void Dense(const Matmul *m, int64_t first, int64_t last);

Rows portable_rows, avx2_rows, avx512_rows;
Dense portable_dense, avx2_dense, avx512_dense;


#define BLOCK 64 /* rows of x that one unpacked tile serves before the next is unpacked */
#define ROOM (BLOCK * GROUPS * TILE_ROWS * sizeof(float))

typedef void Task(void *argument, int64_t index, int worker);
void run_tasks(Task *task, void *argument, int64_t tasks, int threads); /* pool.c */
