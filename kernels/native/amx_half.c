/* A prompt's rows of fp16 times fp16 weights on AMX, whose tiles take bf16. A number of 11 bits is the sum of its first
   8 bits and a rest, two bf16 numbers, so four products of tiles have every product exactly. 32 columns at a time, and of
   these four times (first by first, rest of x by first, rest by rest, first of x by rest), the first 16 products are summed
   in ascending order, and so are the last 16, and both sums' sum is added to the total, as TDPBF16PS does: bits that depend
   neither on the number of rows nor on threads. They are not those of the other instructions, and converting makes one row
   slower than memory, so trees, which need one order of sums for all their rows, are multiplied by avx512_half. */
#include "floats.h"

#ifdef HAS_AMX
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,amx-tile,amx-bf16")

#define STEP 32         /* columns of a tile */
#define PART_BYTES 1024 /* of which TILE_ROWS rows of weights have first bits and, behind them, the rest: [16][32] each */
#define CHUNK 256       /* columns that are converted together */
#define W_ROWS 32       /* and their rows of weights: two tiles */
#define X_BLOCK 256     /* rows of x that they serve */
#define BLOCK_STEP (128 * X_ROWS) /* bytes of a step of X_ROWS rows of x */

static int64_t steps_of(int64_t columns) { return (columns + STEP - 1) / STEP; }
int64_t amx_half_packed(const Matmul *m) {
  return (m->n + X_ROWS - 1) / X_ROWS * steps_of(m->columns) * BLOCK_STEP;
}

typedef float Sums[TILE_ROWS][X_ROWS];

int64_t amx_half_room(int64_t n, int64_t rows) {
  const int64_t blocks = ((n < X_BLOCK ? n : X_BLOCK) + X_ROWS - 1) / X_ROWS;
  return CHUNK / STEP * 8 * PART_BYTES + (rows + W_ROWS - 1) / W_ROWS * 2 * blocks * (int64_t)sizeof(Sums);
}

/* Up to 32 columns as 16 pairs (c, c + 16). */
INLINE void split(const uint16_t *p, int64_t some, __m512i *first, __m512i *rest) {
  uint16_t last[STEP];
  if (some < STEP) {
    memset(last, 0, sizeof last);
    memcpy(last, p, 2 * (size_t)some);
    p = last;
  }
  const __m512 a = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
  const __m512 b = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + 16)));
  const __m512i eight = _mm512_set1_epi32((int)0xFFFF0000);
  const __m512i high_a = _mm512_and_si512(_mm512_castps_si512(a), eight);
  const __m512i high_b = _mm512_and_si512(_mm512_castps_si512(b), eight);
  const __m512i low_a = _mm512_castps_si512(_mm512_sub_ps(a, _mm512_castsi512_ps(high_a)));
  const __m512i low_b = _mm512_castps_si512(_mm512_sub_ps(b, _mm512_castsi512_ps(high_b)));
  *first = _mm512_or_si512(_mm512_srli_epi32(high_a, 16), high_b);
  *rest = _mm512_or_si512(_mm512_srli_epi32(low_a, 16), low_b); /* whose last 16 bits are 0 */
}

/* X_ROWS rows of x, [n][columns] fp16 -> [steps][2][16 pairs][X_ROWS][2] bf16. */
void amx_half_pack(const Matmul *m, const void *x, int64_t block, void *packed) {
  const int64_t n = m->n, columns = m->columns, steps = steps_of(columns);
  const __m512i places = _mm512_mullo_epi32(_mm512_set1_epi32(X_ROWS), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6,
                                                                                        5, 4, 3, 2, 1, 0));
  for (int64_t s = 0; s < steps; s++) {
    int32_t *to = (int32_t *)((uint8_t *)packed + (block * steps + s) * BLOCK_STEP);
    for (int64_t i = 0; i < X_ROWS; i++) {
      const int64_t r = block * X_ROWS + i;
      __m512i first = _mm512_setzero_si512(), rest = first;
      if (r < n) split((const uint16_t *)x + r * columns + s * STEP, columns - s * STEP, &first, &rest);
      _mm512_i32scatter_epi32(to + i, places, first, 4);
      _mm512_i32scatter_epi32(to + 16 * X_ROWS + i, places, rest, 4);
    }
  }
}

/* Rows of weights that are converted bit by bit while others are multiplied: memory is waited for meanwhile. */
typedef struct {
  const uint8_t *row; /* the next one */
  int64_t row_bytes, columns, steps, ahead; /* steps of a row; ahead: where a line will be needed later */
  int left, tile_row;                       /* rows; the next one's place */
  int64_t s;                                /* the next step */
  uint8_t *to;                              /* [steps][2 tiles][2][PART_BYTES] */
} Source;

INLINE void convert(Source *f, int64_t count) { /* a step of a row each */
  for (; count > 0 && f->left; count--) {
    __m512i first, rest;
    uint8_t *at = f->to + (4 * f->s + f->tile_row / TILE_ROWS * 2) * PART_BYTES + f->tile_row % TILE_ROWS * 64;
    const uint8_t *from = f->row + 64 * f->s;
    __builtin_prefetch(from + f->ahead, 0, 2);
    split((const uint16_t *)from, f->columns - f->s * STEP, &first, &rest);
    _mm512_store_si512(at, first);
    _mm512_store_si512(at + PART_BYTES, rest);
    if (++f->s == f->steps) f->s = 0, f->tile_row++, f->left--, f->row += f->row_bytes;
  }
}

/* Sums 4 and 5 (of the second tile of weights), and with two blocks of x 6 and 7, += a step's products. */
INLINE void step(int blocks, const uint8_t *w, const uint8_t *x, const uint8_t *y) {
#define ALL \
  _tile_dpbf16ps(4, 0, 2); \
  _tile_dpbf16ps(5, 1, 2); \
  if (blocks > 1) _tile_dpbf16ps(6, 0, 3); \
  if (blocks > 1) _tile_dpbf16ps(7, 1, 3);
#define WEIGHTS(part) \
  _tile_loadd(0, w + part * PART_BYTES, 64); \
  _tile_loadd(1, w + (2 + part) * PART_BYTES, 64);
#define X(part) \
  _tile_loadd(2, x + part * 64 * X_ROWS, 64); \
  if (blocks > 1) _tile_loadd(3, y + part * 64 * X_ROWS, 64);
  WRITTEN;
  WEIGHTS(0) X(0) ALL X(1) ALL WEIGHTS(1) ALL X(0) ALL
}

static void put(const Matmul *m, Sums *sums, int64_t w, int rows, int64_t r, int64_t n) {
  for (int64_t j = 0; j < n; j++)
    for (int i = 0; i < rows; i++) ((float *)m->out)[(r + j) * m->out_stride + w + i] = sums[i / TILE_ROWS][i % TILE_ROWS][j];
}

INLINE int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* sums [2], and with two blocks of x the next 2, += a chunk's products. */
INLINE void chunk(int blocks, const uint8_t *w, const uint8_t *x, const uint8_t *y, int64_t steps, Sums *sums, Source *next,
                  int64_t share) {
  _tile_loadd(4, sums[0], 64);
  _tile_loadd(5, sums[1], 64);
  if (blocks > 1) _tile_loadd(6, sums[2], 64);
  if (blocks > 1) _tile_loadd(7, sums[3], 64);
  for (int64_t s = 0; s < steps; s++) {
    step(blocks, w + s * 4 * PART_BYTES, x + s * BLOCK_STEP, y + s * BLOCK_STEP);
    convert(next, share);
  }
  _tile_stored(4, sums[0], 64);
  _tile_stored(5, sums[1], 64);
  if (blocks > 1) _tile_stored(6, sums[2], 64);
  if (blocks > 1) _tile_stored(7, sums[3], 64);
}

/* A chunk of columns of W_ROWS rows of weights serves up to X_BLOCK rows of x, whose columns serve all of the task's
   weights from the second cache before the next ones come. */
void amx_half(const Matmul *m, int64_t first, int64_t last, void *room) {
  Tiles shape = {.palette = 1};
  for (int t = 0; t < 8; t++) shape.rows[t] = 16, shape.colsb[t] = 64;
  WRITTEN;
  _tile_loadconfig(&shape);
  const int64_t block_bytes = steps_of(m->columns) * BLOCK_STEP, bytes = CHUNK / STEP * 4 * PART_BYTES;
  const int64_t groups = (last - first + W_ROWS - 1) / W_ROWS, count = (m->columns + CHUNK - 1) / CHUNK * groups;
  uint8_t *tile = room;                    /* [2] */
  Sums *sums = (Sums *)(tile + 2 * bytes); /* [groups][blocks of x][2] */
  for (int64_t x0 = 0; x0 < m->n; x0 += X_BLOCK) {
    const int64_t n = least(m->n - x0, X_BLOCK), blocks = (n + X_ROWS - 1) / X_ROWS;
    Source next = {0};
    memset(sums, 0, (size_t)(groups * blocks * 2) * sizeof(Sums));
    for (int64_t i = -1; i < count; i++) { /* converts the i + 1st chunk while the i-th is multiplied */
      const int64_t c = i / groups * CHUNK, steps = steps_of(least(CHUNK, m->columns - c));
      if (i + 1 < count) {
        const int64_t w = first + (i + 1) % groups * W_ROWS, at = (i + 1) / groups * CHUNK;
        next = (Source){.row = m->weights + w * m->row_bytes + 2 * at, .row_bytes = m->row_bytes, .columns = m->columns - at,
                        .steps = steps_of(least(CHUNK, m->columns - at)), .ahead = W_ROWS * m->row_bytes,
                        .left = least(W_ROWS, last - w), .to = tile + (i + 1) % 2 * bytes};
      }
      Sums *at = sums + i % groups * blocks * 2;
      for (int64_t b = 0; i >= 0 && b < blocks; b += 2) {
        const uint8_t *x = (const uint8_t *)m->packed + (x0 / X_ROWS + b) * block_bytes + c / STEP * BLOCK_STEP;
        const int64_t share = W_ROWS / ((blocks + 1) / 2) + 1;
        if (b + 1 < blocks)
          chunk(2, tile + i % 2 * bytes, x, x + block_bytes, steps, at + 2 * b, &next, share);
        else
          chunk(1, tile + i % 2 * bytes, x, x, steps, at + 2 * b, &next, share);
      }
      convert(&next, INT64_MAX);
    }
    for (int64_t w = first; w < last; w += W_ROWS)
      for (int64_t b = 0; b < blocks; b++)
        put(m, sums + ((w - first) / W_ROWS * blocks + b) * 2, w, least(W_ROWS, last - w), x0 + b * X_ROWS,
            least(X_ROWS, n - b * X_ROWS));
  }
  _tile_release();
}
END_TARGET
#endif
