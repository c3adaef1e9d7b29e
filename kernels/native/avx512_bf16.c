/* bf16 weights times rows of bf16 by AVX-512 BF16's dot products. Weights are read from where they lie, 32 columns at a time;
   x is arranged once a call. Of 32 columns each of 16 pairs adds its odd column's product to its own sum, then its even one's,
   as VDPBF16PS does (to nearest; it takes subnormal numbers as 0, and makes none); then the sums are added in halves. Bits that
   depend neither on the number of rows nor on threads. */
#include "floats.h"

#ifdef HAS_BF16
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")

#define STEP 32   /* columns of a vector */
#define W_GROUP 4 /* rows of weights by up to 6 of x: their sums fit into registers; of more rows of x half of them */
#define MOST 8    /* rows of x that are multiplied together */

/* A tree's rows can be free, as memory takes longer, if it is asked for weights all the while. Then nothing else may wait for the
   second cache: some columns of x stay in the first one while TILE_ROWS rows of weights take turns with them. 11008 x 4096 from
   memory, two cores of Zen 5: 16 rows came from 4.2 to 2.9 ms, where one takes 2.5, and 28 from 5.3 to 4.7. Fewer rows fit in any
   case; of more the sums would not. */
INLINE int stays(const Matmul *m) { return m->n >= 5 && m->n <= 28; }
INLINE int64_t whole_steps(int64_t columns) { return (columns + STEP - 1) / STEP * STEP; }
INLINE int64_t chunk_of(const Matmul *m) { return !stays(m) ? 4096 : m->n <= MOST ? 1024 : 512; } /* so many columns */
INLINE int64_t width_of(const Matmul *m, int64_t c) { /* of the chunk that begins with column c */
  const int64_t left = whole_steps(m->columns - c);
  return left < chunk_of(m) ? left : chunk_of(m);
}
int64_t avx512_bf16_packed(const Matmul *m) { return m->n * whole_steps(m->columns) * 2; }

/* The rows of x behind the first x0, up to BLOCK of them, in groups of about the same size. */
typedef struct {
  int64_t n, count, rows[(BLOCK + 5) / 6];
} Groups;
INLINE Groups groups_of(const Matmul *m, int64_t x0) {
  const int64_t n = m->n - x0 < BLOCK ? m->n - x0 : BLOCK, most = stays(m) ? MOST : 6;
  Groups groups = {n, (n + most - 1) / most, {0}};
  for (int64_t g = 0; g < groups.count; g++) groups.rows[g] = n / groups.count + (g < n % groups.count);
  return groups;
}

INLINE __mmask32 first_of(int64_t columns) { return columns < STEP ? (1u << columns) - 1 : ~0u; }

/* X_ROWS rows of x, with zeros behind their columns: [chunks][groups][width / STEP][rows][STEP], as they are read. */
void avx512_bf16_pack(const Matmul *m, const void *x, int64_t block, void *packed) {
  const int64_t chunk = chunk_of(m), first = block * X_ROWS, x0 = first / BLOCK * BLOCK;
  const Groups groups = groups_of(m, x0);
  for (int64_t g = 0, begin = x0; g < groups.count; begin += groups.rows[g++])
    for (int64_t r = begin; r < begin + groups.rows[g]; r++) {
      if (r < first || r >= first + X_ROWS) continue; /* another block's */
      for (int64_t c = 0; c < m->columns; c += STEP) {
        const int64_t start = c / chunk * chunk;
        uint16_t *to = (uint16_t *)packed + start * m->n + begin * width_of(m, start);
        to += (c - start) * groups.rows[g] + (r - begin) * STEP;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(first_of(m->columns - c), (const uint16_t *)x + r * m->columns + c));
      }
    }
}

/* Where weights are asked for, if they are: bytes between rows, and between steps. */
typedef struct {
  const char *at;
  int64_t row, step;
  int asked;
} Ahead;

/* Some columns of n rows of x times `some` of W_GROUP rows of weights, the `from`th on: added to sums [n][W_GROUP]. */
INLINE void group(int n, int from, int some, const uint16_t *x, const uint16_t *const *w, int64_t columns, Ahead ahead,
                  __m512 (*sums)[W_GROUP]) {
  __m512 s[MOST][W_GROUP];
  for (int r = 0; r < n; r++)
    for (int i = 0; i < some; i++) s[r][i] = sums[r][from + i];
  const char *soon = ahead.at + from * ahead.row;
  for (int64_t c = 0; c < columns; c += STEP, soon += ahead.step) {
    const __mmask32 mask = first_of(columns - c);
    __m512bh weight[W_GROUP];
    for (int i = 0; i < some; i++) {
      if (ahead.asked) __builtin_prefetch(soon + i * ahead.row, 0, 2);
      const uint16_t *of = w[from + i] + c;
      weight[i] = (__m512bh)(mask == ~0u ? _mm512_loadu_si512(of) : _mm512_maskz_loadu_epi16(mask, of));
    }
    for (int r = 0; r < n; r++) {
      const __m512bh of_x = (__m512bh)_mm512_load_si512(x + n * c + r * STEP);
      for (int i = 0; i < some; i++) s[r][i] = _mm512_dpbf16_ps(s[r][i], weight[i], of_x);
    }
  }
  for (int r = 0; r < n; r++)
    for (int i = 0; i < some; i++) sums[r][from + i] = s[r][i];
}

/* Of W_GROUP vectors: each one's sum. */
INLINE __m128 totals(const __m512 *s) {
  const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(s[0], s[1], 0x44), _mm512_shuffle_f32x4(s[0], s[1], 0xEE));
  const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(s[2], s[3], 0x44), _mm512_shuffle_f32x4(s[2], s[3], 0xEE));
  __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD)); /* of each, in its order */
  four = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4E));
  four = _mm512_add_ps(four, _mm512_permute_ps(four, 0xB1));
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0), four));
}

/* Columns from c on, as many as are in a chunk, of all groups times W_GROUP rows of weights, of which `rows` are there: added to
   sums [n][W_GROUP]. */
static void columns_of(const Matmul *m, const Groups *groups, int64_t x0, int64_t c, int64_t w, int64_t rows,
                       __m512 (*sums)[W_GROUP]) {
  const int64_t chunk = chunk_of(m), left = m->columns - c, columns = left < chunk ? left : chunk, width = width_of(m, c);
  const uint16_t *at[W_GROUP]; /* results of rows behind the last one are not stored */
  for (int64_t i = 0; i < W_GROUP; i++)
    at[i] = (const uint16_t *)(m->weights + (w + (i < rows ? i : rows - 1)) * m->row_bytes) + c;
  const char *begin = (const char *)(m->weights + w * m->row_bytes);
  Ahead ahead = {begin + (W_GROUP - 1) * m->row_bytes + 2 * W_GROUP * c + PLAIN_AHEAD, 2 * STEP, 2 * STEP * W_GROUP, !x0};
  if (stays(m)) { /* for the same rows' next turn, or the next ones' first */
    ahead.at = left > chunk ? begin + 2 * (c + chunk) : begin + TILE_ROWS * m->row_bytes;
    ahead.row = m->row_bytes, ahead.step = 2 * STEP;
  }
  const uint16_t *x = (const uint16_t *)m->packed + c * m->n + x0 * width;
  for (int64_t g = 0; g < groups->count; g++, ahead.asked = 0) {
    switch (groups->rows[g]) {
#define CASE(n) \
  case n: group(n, 0, W_GROUP, x, at, columns, ahead, sums); break;
#define HALVES(n) \
  case n: group(n, 0, 2, x, at, columns, ahead, sums), group(n, 2, 2, x, at, columns, ahead, sums); break;
      CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) HALVES(7) HALVES(8)
    }
    x += groups->rows[g] * width, sums += groups->rows[g];
  }
}

void avx512_bf16(const Matmul *m, int64_t first, int64_t last, void *room) {
  const int64_t turns = stays(m) ? TILE_ROWS : W_GROUP; /* rows of weights that take turns */
  for (int64_t x0 = 0; x0 < m->n; x0 += BLOCK) {
    const Groups groups = groups_of(m, x0);
    for (int64_t tile = first; tile < last; tile += turns) {
      const int64_t end = last - tile < turns ? last : tile + turns;
      __m512(*sums)[W_GROUP] = room; /* [turns / W_GROUP][n] */
      memset(sums, 0, (size_t)(groups.n * turns / W_GROUP) * sizeof *sums);
      for (int64_t c = 0; c < m->columns; c += chunk_of(m))
        for (int64_t w = tile, i = 0; w < end; w += W_GROUP, i += groups.n)
          columns_of(m, &groups, x0, c, w, end - w < W_GROUP ? end - w : W_GROUP, sums + i);
      for (int64_t w = tile; w < end; w += W_GROUP) {
        const __mmask8 stored = end - w < W_GROUP ? (__mmask8)((1 << (end - w)) - 1) : 15;
        for (int64_t r = 0; r < groups.n; r++, sums++)
          _mm_mask_storeu_ps((float *)m->out + (x0 + r) * m->out_stride + w, stored, totals(*sums));
      }
    }
  }
}
END_TARGET
#endif
