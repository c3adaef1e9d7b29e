/* bf16 weights times rows of bf16 on AMX. Weights are read from where they lie, 16 rows by 32 columns a tile; x is arranged
   once a call. Of 32 columns the even ones' 16 products are summed, and the odd ones', and both sums' sum is added to the
   total, as TDPBF16PS does: bits that depend neither on the number of rows nor on threads. It takes subnormal numbers as 0. */
#include "floats.h"

#ifdef HAS_AMX
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,amx-tile,amx-bf16")

#define STEP 32 /* columns of a tile */
#define FAR 1024 /* bytes of a row that are asked for ahead */

static int64_t steps_of(int64_t columns) { return (columns + STEP - 1) / STEP; }
static int64_t width(int64_t n) { return n < X_ROWS ? n : X_ROWS; } /* rows of x in a tile */
static int64_t block_bytes(int64_t n, int64_t columns) { return steps_of(columns) * 64 * width(n); }
int64_t amx_bf16_packed(const Matmul *m) { return (m->n + X_ROWS - 1) / X_ROWS * block_bytes(m->n, m->columns); }

/* X_ROWS rows of x, [n][columns] -> [steps][16 pairs][width][2]; what lies behind rows and columns is 0. */
void amx_bf16_pack(const Matmul *m, const void *x, int64_t block, void *packed) {
  const int64_t n = m->n, columns = m->columns, steps = steps_of(columns), wide = width(n);
  const __m512i counted = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_mullo_epi32(_mm512_set1_epi32((int)wide), counted);
  int32_t *to = (int32_t *)((uint8_t *)packed + block * block_bytes(n, columns));
  for (int64_t s = 0; s < steps; s++, to += 16 * wide)
    for (int64_t i = 0; i < wide; i++) {
      const int64_t r = block * X_ROWS + i, left = columns - s * STEP;
      const __mmask32 some = r < n ? (left < STEP ? (1u << left) - 1 : ~0u) : 0;
      _mm512_i32scatter_epi32(to + i, places, _mm512_maskz_loadu_epi16(some, (const uint16_t *)x + (r < n ? r : 0) * columns + s * STEP), 4);
    }
}

typedef float Sums[TILE_ROWS][X_ROWS];

/* sums [blocks][tiles] = TILE_ROWS rows of weights a tile (of the only one `lanes`) times blocks of x, `block` bytes apart;
   `ahead`: to the rows of weights that follow, 0 if none do, -1 if these are in the cache already. */
INLINE void sums_of(int tiles, int blocks, const Matmul *m, int64_t w, int lanes, const uint8_t *x, int64_t block,
                    int64_t ahead, Sums *sums) {
  const int64_t pairs = 4 * width(m->n), all = 2 * m->columns;
  const int rows = tiles > 1 ? 2 * TILE_ROWS : lanes;
  uint16_t last[2 * TILE_ROWS][STEP] __attribute__((aligned(64)));
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t c = 0; c < all; c += 2 * STEP, x += 16 * pairs) {
    const uint8_t *from = m->weights + w * m->row_bytes + c;
    int64_t stride = m->row_bytes, next = c + FAR < all ? FAR : FAR - all + ahead;
    if (ahead > 0 || (ahead == 0 && next == FAR))
      for (int i = 0; i < rows; i++) __builtin_prefetch(from + next + i * stride, 0, 2);
    if (all - c < 2 * STEP) {
      memset(last, 0, sizeof last);
      for (int i = 0; i < rows; i++) memcpy(last[i], from + i * stride, (size_t)(all - c));
      from = (const uint8_t *)last, stride = 64;
    }
    WRITTEN;
    _tile_loadd(4, from, stride);
    _tile_loadd(6, x, pairs);
    _tile_dpbf16ps(0, 4, 6);
    if (blocks > 1) _tile_loadd(7, x + block, pairs);
    if (tiles > 1) {
      _tile_loadd(5, from + TILE_ROWS * stride, stride);
      _tile_dpbf16ps(1, 5, 6);
      if (blocks > 1) _tile_dpbf16ps(2, 4, 7);
      if (blocks > 1) _tile_dpbf16ps(3, 5, 7);
    } else {
      if (blocks > 1) _tile_dpbf16ps(1, 4, 7);
      if (blocks > 2) _tile_loadd(5, x + 2 * block, pairs);
      if (blocks > 2) _tile_dpbf16ps(2, 4, 5);
      if (blocks > 3) _tile_loadd(6, x + 3 * block, pairs);
      if (blocks > 3) _tile_dpbf16ps(3, 4, 6);
    }
  }
  _tile_stored(0, sums[0], 64);
  if (tiles * blocks > 1) _tile_stored(1, sums[1], 64);
  if (tiles * blocks > 2) _tile_stored(2, sums[2], 64);
  if (tiles * blocks > 3) _tile_stored(3, sums[3], 64);
  WRITTEN;
}

static void configure(int lanes, int64_t n) {
  Tiles shape = {.palette = 1};
  for (int t = 0; t < 8; t++) { /* 0 to 3: sums, 4: weights, 5: weights or x, 6 and 7: x */
    shape.rows[t] = (uint8_t)(t < 5 ? lanes : 16);
    shape.colsb[t] = (uint16_t)(t == 4 || t == 5 ? 64 : 4 * width(n));
  }
  WRITTEN;
  _tile_loadconfig(&shape);
}

/* A task's weights are read from memory for the first four blocks of x, and then lie in the second cache. */
void amx_bf16(const Matmul *m, int64_t first, int64_t last, void *room) {
  const int64_t block = block_bytes(m->n, m->columns), blocks = (m->n + X_ROWS - 1) / X_ROWS;
  Sums sums[4] __attribute__((aligned(64)));
  (void)room;
  configure(TILE_ROWS, m->n);
  for (int64_t b = 0; b < blocks; b += 4) {
    const uint8_t *x = (const uint8_t *)m->packed + b * block;
    const int some = blocks - b < 4 ? (int)(blocks - b) : 4;
    int rows;
    for (int64_t w = first; w < last; w += rows) {
      const int64_t left = last - w;
      const int tiles = some < 3 && left >= 2 * TILE_ROWS ? 2 : 1, lanes = left < TILE_ROWS ? (int)left : TILE_ROWS;
      rows = (tiles - 1) * TILE_ROWS + lanes;
      if (lanes < TILE_ROWS) configure(lanes, m->n);
      const int64_t ahead = b ? -1 : left >= 2 * rows ? rows * m->row_bytes : 0;
#define WITH(t, n) sums_of(t, n, m, w, lanes, x, block, ahead, sums)
      switch (10 * tiles + some) {
        case 11: WITH(1, 1); break;
        case 12: WITH(1, 2); break;
        case 13: WITH(1, 3); break;
        case 14: WITH(1, 4); break;
        case 21: WITH(2, 1); break;
        default: WITH(2, 2);
      }
      for (int k = 0; k < some; k++)
        for (int64_t j = 0, r = (b + k) * X_ROWS; j < X_ROWS && r < m->n; j++, r++)
          for (int i = 0; i < rows; i++)
            ((float *)m->out)[r * m->out_stride + w + i] = sums[k * tiles + i / TILE_ROWS][i % TILE_ROWS][j];
      if (lanes < TILE_ROWS && b + 4 < blocks) configure(TILE_ROWS, m->n);
    }
  }
  _tile_release();
}
END_TARGET
#endif
