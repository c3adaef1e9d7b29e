/* Several rows of x on AVX-512 VNNI: native.h's sums, bit for bit. Sixteen rows of weights are decoded side by side, pairs of
   columns as int16, for up to BLOCK rows of x; the sums of a row of x, eight vectors, wait in memory. */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#define WORDS
#include "turned.h"

typedef float Sums[GROUPS][TILE_ROWS];

/* Up to `rows` rows of x times a super; as many sums at a time as hide the multiplication's latency. */
INLINE void times(const Matmul *m, int format, int rows, int some, int64_t r, int64_t s, const Group *w, Sums *sums) {
  const int parts = 8 / rows;
  const int16_t *x[8];
  for (int i = 0; i < rows; i++) x[i] = m->x + ((r + (i < some ? i : 0)) * m->supers + s) * SUPER;
  for (int g = 0; g < GROUPS; g++, w++) {
    __m512i dot[8];
    for (int i = 0; i < 8; i++) dot[i] = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
      const __m512i pair = _mm512_load_si512(w->numbers + 64 * k);
      for (int i = 0; i < rows; i++) {
        int32_t two;
        memcpy(&two, x[i] + g * GROUP + 2 * k, 4);
        dot[k % parts * rows + i] = _mm512_dpwssd_epi32(dot[k % parts * rows + i], pair, _mm512_set1_epi32(two));
      }
    }
    for (int i = 0; i < some; i++) {
      const int64_t at = ((r + i) * m->supers + s) * GROUPS + g;
      for (int p = 1; p < parts; p++) dot[i] = _mm512_add_epi32(dot[i], dot[p * rows + i]);
      __m512 v = _mm512_cvtepi32_ps(dot[i]), factor = _mm512_load_ps(w->factor), minimum = _mm512_load_ps(w->minimum);
      if (format == INT4) v = _mm512_mul_ps(minimum, v); /* exact up to here: its rounding is the whole integer's */
      v = _mm512_mul_ps(factor, v);
      if (has_minima(format)) v = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(m->sum[at]), v);
      _mm512_store_ps(sums[i][g], _mm512_fmadd_ps(_mm512_set1_ps(m->step[at]), v, _mm512_load_ps(sums[i][g])));
    }
  }
}

INLINE void many(const Matmul *m, int format, int64_t first, int64_t last, void *room) {
  const int64_t span = m->row_bytes / m->supers;
  Group groups[GROUPS] __attribute__((aligned(64)));
  Sums *sums = room; /* [BLOCK] */
  for (int64_t x0 = 0; x0 < m->n; x0 += BLOCK) {
    const int64_t n = m->n - x0 < BLOCK ? m->n - x0 : BLOCK;
    for (int64_t w = first; w < last; w += TILE_ROWS) {
      const int lanes = last - w < TILE_ROWS ? (int)(last - w) : TILE_ROWS;
      const Sixteen rows = sixteen(m, w, last);
      memset(sums, 0, (size_t)n * sizeof *sums);
      for (int64_t s = 0; s < m->supers; s++) {
        for (int l = 0; l < lanes && !x0; l++) fetch(rows.row[l] + TILE_ROWS * m->row_bytes + s * span, span); /* the next tile's */
        turn(format, &rows, s, groups, 1);
        int64_t r = 0;
        for (; r + 8 <= n; r += 8) times(m, format, 8, 8, x0 + r, s, groups, sums + r);
        for (; r + 4 <= n; r += 4) times(m, format, 4, 4, x0 + r, s, groups, sums + r);
        for (; r < n; r += 2) times(m, format, 2, n - r < 2 ? 1 : 2, x0 + r, s, groups, sums + r);
      }
      for (int64_t r = 0; r < n; r++) {
        float(*t)[TILE_ROWS] = sums[r];
        __m512 v[GROUPS];
        for (int g = 0; g < GROUPS; g++) v[g] = _mm512_load_ps(t[g]);
        __m512 a = _mm512_add_ps(_mm512_add_ps(v[0], v[4]), _mm512_add_ps(v[2], v[6]));
        __m512 b = _mm512_add_ps(_mm512_add_ps(v[1], v[5]), _mm512_add_ps(v[3], v[7]));
        _mm512_mask_storeu_ps((float *)m->out + (x0 + r) * m->out_stride + w, (__mmask16)((1 << lanes) - 1), _mm512_add_ps(a, b));
      }
    }
  }
}

/* A row of x, in place, in the numbers' order. */
void avx512_order(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum) {
  (void)format, (void)offset, (void)step, (void)sum;
  for (int64_t i = 0; i < supers * GROUPS; i++, x += GROUP) _mm512_storeu_si512(x, in_order(_mm512_loadu_si512(x)));
}

#define CASE(which) \
  case which: many(m, which, first, last, room); return;

void avx512_rows(const Matmul *m, int64_t first, int64_t last, void *room) {
  switch (m->format) {
    LOW_BIT(CASE)
  }
}
END_TARGET
#endif
