/* bf16 weights times rows of bf16 by AVX-512 BF16's dot products. Weights are read from where they lie, 32 columns at a time;
   x is arranged once a call. Of 32 columns each of 16 pairs adds its odd column's product to its own sum, then its even one's,
   as VDPBF16PS does (to nearest; it takes subnormal numbers as 0, and makes none); then the sums are added in halves. Bits that
   depend neither on the number of rows nor on threads. */
#include "floats.h"

#ifdef HAS_BF16
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")

#define STEP 32   /* columns of a vector */
#define X_GROUP 6 /* rows of x by W_GROUP of weights: their sums fit into registers */
#define W_GROUP 4

/* Columns after which the next rows of x take their turn: of few rows so many that those of W_GROUP of weights stay in the first
   cache meanwhile; of more it is better to load and store sums less often (64 rows: 1.04 to 1.07 times as fast). */
INLINE int64_t chunk_of(const Matmul *m) { return m->n <= 24 ? 1024 : 4096; }
INLINE int64_t whole_steps(int64_t columns) { return (columns + STEP - 1) / STEP * STEP; }
INLINE int64_t width_of(const Matmul *m, int64_t c) { /* of the chunk that begins with column c, in x [chunks][n][width] */
  const int64_t left = whole_steps(m->columns - c);
  return left < chunk_of(m) ? left : chunk_of(m);
}
int64_t avx512_bf16_packed(const Matmul *m) { return m->n * whole_steps(m->columns) * 2; }

INLINE __mmask32 first_of(int64_t columns) { return columns < STEP ? (1u << columns) - 1 : ~0u; }

/* X_ROWS rows of x, with zeros behind their columns. */
void avx512_bf16_pack(const Matmul *m, const void *x, int64_t block, void *packed) {
  const int64_t n = m->n, columns = m->columns, chunk = chunk_of(m);
  for (int64_t r = block * X_ROWS; r < n && r < (block + 1) * X_ROWS; r++)
    for (int64_t c = 0; c < columns; c += STEP) {
      const int64_t first = c / chunk * chunk;
      uint16_t *to = (uint16_t *)packed + first * n + r * width_of(m, first) + c % chunk;
      _mm512_store_si512(to, _mm512_maskz_loadu_epi16(first_of(columns - c), (const uint16_t *)x + r * columns + c));
    }
}

/* Some columns of n rows of x, `width` apart, times W_GROUP rows of weights: added to sums [n][W_GROUP]. `ahead`: from where on as
   many bytes are asked for, if not NULL. */
INLINE void group(int n, const uint16_t *x, int64_t width, const uint16_t *const *w, int64_t columns, const char *ahead,
                  __m512 (*sums)[W_GROUP]) {
  __m512 s[X_GROUP][W_GROUP];
  for (int r = 0; r < n; r++)
    for (int i = 0; i < W_GROUP; i++) s[r][i] = sums[r][i];
  for (int64_t c = 0; c < columns; c += STEP) {
    const __mmask32 some = first_of(columns - c);
    __m512bh weight[W_GROUP];
    for (int i = 0; i < W_GROUP; i++) {
      if (ahead) __builtin_prefetch(ahead + 2 * (W_GROUP * c + STEP * i), 0, 2);
      weight[i] = (__m512bh)(some == ~0u ? _mm512_loadu_si512(w[i] + c) : _mm512_maskz_loadu_epi16(some, w[i] + c));
    }
    for (int r = 0; r < n; r++) {
      const __m512bh of_x = (__m512bh)_mm512_load_si512(x + r * width + c);
      for (int i = 0; i < W_GROUP; i++) s[r][i] = _mm512_dpbf16_ps(s[r][i], weight[i], of_x);
    }
  }
  for (int r = 0; r < n; r++)
    for (int i = 0; i < W_GROUP; i++) sums[r][i] = s[r][i];
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

void avx512_bf16(const Matmul *m, int64_t first, int64_t last, void *room) {
  __m512(*sums)[W_GROUP] = room; /* [BLOCK] */
  const int64_t columns = m->columns, chunk = chunk_of(m);
  for (int64_t x0 = 0; x0 < m->n; x0 += BLOCK) {
    const int64_t n = m->n - x0 < BLOCK ? m->n - x0 : BLOCK;
    for (int64_t w = first; w < last; w += W_GROUP) {
      const int64_t rows = last - w < W_GROUP ? last - w : W_GROUP;
      memset(sums, 0, (size_t)n * sizeof *sums);
      for (int64_t c = 0; c < columns; c += chunk) {
        const int64_t some = columns - c < chunk ? columns - c : chunk, width = width_of(m, c);
        const uint16_t *at[W_GROUP]; /* results of rows behind the last one are not stored */
        for (int64_t i = 0; i < W_GROUP; i++)
          at[i] = (const uint16_t *)(m->weights + (w + (i < rows ? i : rows - 1)) * m->row_bytes) + c;
        const uint16_t *x = (const uint16_t *)m->packed + c * m->n + x0 * width;
        const char *ahead = x0 ? NULL : (const char *)m->weights + w * m->row_bytes + 2 * W_GROUP * c + PLAIN_AHEAD;
        int64_t groups = (n + X_GROUP - 1) / X_GROUP;
        for (int64_t r = 0, taken; r < n; r += taken, groups--, ahead = NULL) {
          taken = (n - r + groups - 1) / groups; /* groups of about the same size */
#define CASE(n) \
  case n: group(n, x + r * width, width, at, some, ahead, sums + r); break;
          switch (taken) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
        }
      }
      const __mmask8 stored = (__mmask8)((1 << rows) - 1);
      for (int64_t r = 0; r < n; r++)
        _mm_mask_storeu_ps((float *)m->out + (x0 + r) * m->out_stride + w, stored, totals(sums[r]));
    }
  }
}
#endif
