/* Stored matrices times a few rows of activations. What it computes for low-bit ones, whatever the CPU and the number of rows:

       out[r][w] = sum over groups g of 32 columns of  xs[r][g] * (factor[w][g] * dot - minimum[w][g] * xsum)

   dot: the exact integer sum of weights' numbers and activations' (14 bits and a sign, one step a group); the groups
   are summed in eight places (g mod 8), each in ascending order with fused multiply-adds, and the eight sums as
   ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). So a row's bits do not depend on how many rows share a call, on the
   instructions used or on the number of threads. */
#pragma once

#include "formats.h"

/* Bytes that will be needed soon. Decoding keeps the CPU from looking far enough ahead by itself: from memory, a row of x
   times Q4_K went from 4.5 to 10.3 GB/s, Q8_0 from 10.3 to 12.8 (one core, which sums 13.6 GB/s). To the second cache:
   the first one has few places to wait for memory (Q8_0, two cores: 17.2 -> 19.2 GB/s). So far ahead that memory has answered:
   with 2048, on two cores of an EPYC, int4 took 23 GB/s, 31 with 4096 and 32 with 6144 to 8192, Q4_K 27, 29 and 29, int8 38, 43
   and 43; of AVX2 int4 14, 24 and 25, Q8_0 26, 36 and 39. Where nobody else reads, a core takes 28 GB/s in the order of memory and
   16 of two rows side by side: so rows that are used together are asked for one behind the other, farther ahead. With 12288 for
   6144 matrices of Q8_0 gain 4 %. Both numbers count from the last row that is used with others: from the last of four, not
   from the first, fp16 and bf16 take 6 % less, of 11008 columns 8 to 14. */
#define AHEAD 12288
#define PLAIN_AHEAD 16384 /* of fp16 and bf16 */
INLINE void fetch(const uint8_t *p, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(p + b, 0, 2);
}

/* Instruction sets, as es_level counts; by ARM NEON with dot products (of bytes), and with products of matrices of them. */
#define PORTABLE 0
#define AVX2 1
#define AVX_VNNI 2
#define AVX512 3
#define AVX512_BF16 4
#define AMX 5
#define NEON 1
#define NEON_I8MM 2

#define TILE_ROWS 16 /* weights' rows that are unpacked together */
#define LARGEST 16383 /* of an activation's number: 32 * 16383 * 4096 (Q6_K) is just below 2^31 */

typedef struct {
  int format;
  const uint8_t *weights; /* [rows][row_bytes] */
  int64_t row_bytes, rows, columns;
  const float *scale; /* [rows]; NULL for GGUF types */
  int16_t *x; /* [n][supers][8][32], see `Activations` and `avx512_arrange` */
  int32_t *offset; /* [n][supers][64], of `Arrange` */
  float *step, *sum; /* [n][supers][8] */
  float *wide; /* x of plain formats, see wide_block */
  int exact;   /* of HALF: products need no rounding in fp32 */
  int64_t n, supers;
  void *packed; /* what a `Pack` made of x, or NULL */
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

Rows portable_rows, avx2_rows, avx_vnni_rows, avx512_rows, amx_rows, neon_rows, neon_i8mm_rows;
Dense portable_dense, avx2_dense, avx512_dense, neon_dense;
Activations portable_quantise, avx2_quantise, avx512_quantise, neon_quantise;

/* sums [terms][n][stride], of which `rows` are of use -> out [n][out_stride] of `type` (floats.h): the terms' sums. */
typedef void Finish(const float *sums, int terms, int64_t n, int64_t stride, int64_t rows, void *out,
                    int64_t out_stride, int type);
Finish portable_finish, avx2_finish, avx512_finish, neon_finish;

/* Up to so many rows of x, arranged for it; `offset` [supers][64]. */
#define FEW 4
#define AVX2_FEW 6
#define NEON_FEW 6
#define AVX512_FEW 16
Rows avx512_few, avx2_few, avx_vnni_few, neon_few, neon_i8mm_few;
typedef void Arrange(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum); /* of one row */
Arrange avx512_arrange, avx2_arrange, neon_arrange, neon_i8mm_arrange;
Arrange avx512_order; /* for avx512_rows */

/* Where x is arranged once a call: X_ROWS rows of it, [n][columns], are packed together, into so many bytes in all. */
#define X_ROWS 16
typedef int64_t Packed(const Matmul *m);
typedef void Pack(const Matmul *m, const void *x, int64_t block, void *packed);
Packed avx2_packed;
Pack avx2_pack;

#if defined(__x86_64__) && defined(__linux__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define HAS_AMX
int amx_allowed(void);
Packed amx_packed;
Pack amx_pack;
typedef struct { /* of tiles */
  uint8_t palette, start_row, reserved[14];
  uint16_t colsb[16];
  uint8_t rows[16];
} Tiles;
/* Before tiles are loaded, or their shapes: compilers do not know what that reads. (gcc 12's with -O1 died of shapes that it had
   not stored.) */
#define WRITTEN __asm__ volatile("" ::: "memory")
#endif

#define BLOCK 64 /* rows of x that one unpacked tile serves before the next is unpacked */

/* fp16 and bf16 weights times rows of x, in fp32:

       out[r][w] = sum over columns c of  x[r][c] * weight[w][c]

   in sixteen places (c mod 16), each in ascending order with fused multiply-adds, which are then summed in halves: places j
   and j + 8, j and j + 4, ... Every number of rows, of threads and every CPU gives the same bits. */
Rows portable_half, avx2_half, avx512_half, neon_half;
#define PLACES 16
#define HALF_ROWS 8      /* rows of weights that are converted together, */
#define HALF_COLUMNS 512 /* and their columns: with those of X_GROUP rows of x what the first cache holds */
/* Columns of x [n][columns] that lie together: [blocks][n][wide_block], with zeros behind the last ones. All of few rows, else
   HALF_COLUMNS: rows a power of two apart have but a few places in the first cache. */
INLINE int64_t wide_block(int64_t n, int64_t columns) {
  return n > FEW ? HALF_COLUMNS : (columns + PLACES - 1) / PLACES * PLACES;
}
INLINE int64_t wide_numbers(int64_t n, int64_t columns) {
  const int64_t block = wide_block(n, columns);
  return n * ((columns + block - 1) / block * block);
}

#if defined(__x86_64__) && (__GNUC__ >= 10 || __clang_major__ >= 9)
#define HAS_BF16
Rows avx512_bf16; /* bf16 weights times bf16, in an order of sums of its own */
Packed avx512_bf16_packed;
Pack avx512_bf16_pack;
/* bf16 and low-bit weights times a prompt's rows of bf16; m->out has room for prompt_rows(n) rows of whole tiles. */
Rows avx512_prompt;
Packed prompt_packed;
Pack prompt_pack;
#define PROMPT_ROWS 256 /* of weights a task: with rows of x in the second cache */
#define PROMPT_STEPS 16 /* of 32 columns, that are decoded together */
int64_t prompt_rows(int64_t n), prompt_room(void);
/* out [32 rows of x][32 of weights] += products of `steps`; x: [2][PROMPT_STEPS][16 rows][32 columns], of which n rows are of
   use, w: [2][PROMPT_STEPS][16 pairs of columns][16 rows][2]; `first`: out is not read. */
typedef void PromptTimes(const uint8_t *x, int64_t n, const uint8_t *w, int64_t steps, int first, float *out, int64_t stride);
void prompt(const Matmul *m, int64_t first, int64_t last, void *room, PromptTimes *times);
#endif

#define ROOM (BLOCK * HALF_ROWS * PLACES * 4 + HALF_ROWS * HALF_COLUMNS * 4) /* at least BLOCK * GROUPS * TILE_ROWS floats */

#ifdef HAS_AMX
Rows amx_half; /* has an order of sums of its own */
Packed amx_half_packed;
Pack amx_half_pack;
int64_t amx_half_room(int64_t n, int64_t rows); /* bytes of `room` for `rows` of weights */
Rows amx_prompt; /* as avx512_prompt, in another order */
Rows amx_bf16; /* as avx512_bf16, in another order */
Packed amx_bf16_packed;
Pack amx_bf16_pack;
#define AMX_HALF_ROWS 256 /* of weights, that rows of x in the second cache are multiplied with */
#endif

/* Rows of a tree, each with the keys of its own past, whatever the CPU and the rows beside it, and other trees:

       score[p] = scale * q . key[p]       out = sum over p of e^(score[p] - top) * value[p] / the sum of these powers

   p: the positions that a row sees, in ascending order, KEYS at a time (a block: p / KEYS). Blocks are met one by one; when
   the highest score rises, what was summed before is scaled down. A product q . key has 16 places (column mod 16), each in
   ascending order, which are summed in pairs; weights of a block likewise (p mod 16); no fused multiply-adds. */
#define KEYS 64
#define QUERIES 32 /* of one head of keys, in a task */
typedef struct {
  int type; /* of q, k, v and out: 0 fp32, 1 fp16, 2 bf16 */
  const void *q; /* [n][heads][e], rows q_stride numbers apart */
  void *out;     /* [n][heads][e] */
  int64_t n, heads, kv_heads, e, q_stride;
  const void *k, *v;  /* [kv_heads][shared][e], positions that all rows share; heads head_stride numbers apart */
  int64_t head_stride, shared; /* shared: a multiple of KEYS */
  void *own_k, *own_v; /* [kv_heads][own][e], heads own_stride numbers apart */
  int64_t own_stride, own;
  const void *new_k, *new_v; /* [n][kv_heads][e], rows new_stride numbers apart: the rows' own, which go there first */
  int64_t new_stride;
  const int32_t *place;    /* [n][span]: where in these a row's position shared + i is, up to its own */
  int64_t span;
  const int64_t *position; /* [n], from `shared` on */
  int64_t window; /* positions that a row sees, itself included; 0 = all */
  int64_t first;  /* of its tasks; filled in by es_attend */
  float scale;
} Attention;

typedef void Attend(const Attention *a, int64_t head, int64_t first, int64_t last, void *room);
Attend portable_attend, avx2_attend, avx512_attend, neon_attend; /* some rows' query heads of one head of keys */

/* A matrix, as Python describes it (kernels/compiled.py): all fields of 64 bits. */
typedef struct {
  int64_t format;
  const uint8_t *weights; /* [rows][row_bytes] */
  int64_t row_bytes, rows;
  const float *scale; /* [rows] or NULL */
  int64_t supers, out_stride;
} Matrix;

#define MOST_PARTS 16 /* matrices of a call */

typedef void Task(void *argument, int64_t index, int worker);
void run_tasks(Task *task, void *argument, int64_t tasks, int threads); /* pool.c */
int es_level(int most); /* choice.c */

/* What Python calls, and a layer in its place. */
int64_t es_linear(const Matrix *matrices, int count, int64_t columns, const void *x, int x_type, int64_t n, int any_order,
                  int tried, int terms, void *const *outs, int out_type, int threads, char *room, int64_t room_bytes);
void es_dense(const Matrix *a, int64_t columns, void *out, int bf16, int threads);
int64_t es_attend(Attention *trees, int64_t count, int threads, char *room, int64_t room_bytes);
void es_norm(int type, const void *x, void *added, const void *weight, float eps, void *out, int64_t rows, int64_t columns,
             int threads);
void es_add(int type, const void *what, int64_t stride, void *to, int64_t rows, int64_t columns, int threads);
void es_swiglu(int type, const void *gate, int64_t gate_stride, const void *up, int64_t up_stride, void *out, int64_t rows,
               int64_t columns, int threads);
void es_rotate(int type, int interleaved, void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride,
               int64_t k_heads, const void *cos, const void *sin, int64_t rows, int64_t half, int threads);
