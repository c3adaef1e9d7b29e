/* Several rows of x on AVX2: native.h's sums, bit for bit. Rows of x lie side by side, pairs of columns as int16, packed once a
   call; a row of weights is decoded for up to BLOCK of them, and each of its pairs of columns serves eight rows at once. (Weights
   side by side had to be turned for every tile, and rows of x, a power of two apart, had but a few places in the first cache.) */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx2,fma,f16c")
#include "formats_x86.h"
#include "native.h"

#define LANES 8
#define PAIRS (GROUP / 2)

typedef struct { /* a group of columns of X_ROWS rows of x */
  int32_t pair[PAIRS][X_ROWS];
  float step[X_ROWS], sum[X_ROWS];
} Columns;

typedef float Sums[GROUPS][X_ROWS]; /* of a row of weights */

int64_t avx2_packed(const Matmul *m) {
  const int64_t groups = m->supers * GROUPS;
  return (m->n + X_ROWS - 1) / X_ROWS * groups * (int64_t)sizeof(Columns);
}

/* [8 rows][8 pairs] -> [8 pairs][8 rows] */
INLINE void turn(__m256i *v) {
  __m256i t[LANES];
  for (int l = 0; l < LANES; l += 2) {
    t[l] = _mm256_unpacklo_epi32(v[l], v[l + 1]);
    t[l + 1] = _mm256_unpackhi_epi32(v[l], v[l + 1]);
  }
  for (int l = 0; l < LANES; l += 4) {
    v[l] = _mm256_unpacklo_epi64(t[l], t[l + 2]);
    v[l + 1] = _mm256_unpackhi_epi64(t[l], t[l + 2]);
    v[l + 2] = _mm256_unpacklo_epi64(t[l + 1], t[l + 3]);
    v[l + 3] = _mm256_unpackhi_epi64(t[l + 1], t[l + 3]);
  }
  for (int c = 0; c < 4; c++) {
    t[c] = _mm256_permute2x128_si256(v[c], v[4 + c], 0x20);
    t[4 + c] = _mm256_permute2x128_si256(v[c], v[4 + c], 0x31);
  }
  for (int l = 0; l < LANES; l++) v[l] = t[l];
}

/* The block's rows of x, int16 [n][supers][8][32], with steps and sums; what lies behind the last row is 0. */
void avx2_pack(const Matmul *m, const void *unused, int64_t block, void *packed) {
  (void)unused;
  const int64_t groups = m->supers * GROUPS, left = m->n - block * X_ROWS;
  Columns *to = (Columns *)packed + block * groups;
  for (int64_t g = 0; g < groups; g++, to++) {
    for (int first = 0; first < X_ROWS; first += LANES)
      for (int k = 0; k < PAIRS; k += LANES) {
        __m256i v[LANES];
        for (int l = 0; l < LANES; l++)
          v[l] = first + l < left ? bytes32(m->x + ((block * X_ROWS + first + l) * groups + g) * GROUP + 2 * k) : _mm256_setzero_si256();
        turn(v);
        for (int l = 0; l < LANES; l++) _mm256_store_si256((__m256i *)(to->pair[k + l] + first), v[l]);
      }
    for (int64_t r = 0; r < X_ROWS; r++) {
      const int64_t at = (block * X_ROWS + r) * groups + g;
      to->step[r] = r < left ? m->step[at] : 0;
      to->sum[r] = r < left ? m->sum[at] : 0;
    }
  }
}

/* sums [weights] += a super of eight / `vectors` rows of weights times as many vectors of rows of x. */
INLINE void times(int minima, int vectors, const Decoded *w, const Columns *x, Sums *sums) {
  const int weights = 8 / vectors;
  for (int g = 0; g < GROUPS; g++, x++) {
    __m256i dot[8];
    for (int i = 0; i < 8; i++) dot[i] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int k = 0; k < PAIRS; k++) {
      __m256i of_x[2];
      for (int v = 0; v < vectors; v++) of_x[v] = _mm256_load_si256((const __m256i *)(x->pair[k] + LANES * v));
      for (int i = 0; i < weights; i++) {
        int32_t two;
        memcpy(&two, w[i].number + g * GROUP + 2 * k, 4);
        const __m256i pair = _mm256_set1_epi32(two);
        for (int v = 0; v < vectors; v++)
          dot[i * vectors + v] = _mm256_add_epi32(dot[i * vectors + v], _mm256_madd_epi16(pair, of_x[v]));
      }
    }
    for (int i = 0; i < weights; i++)
      for (int v = 0; v < vectors; v++) {
        float *sum = sums[i][g] + LANES * v;
        __m256 t = _mm256_mul_ps(_mm256_broadcast_ss(w[i].factor + g), _mm256_cvtepi32_ps(dot[i * vectors + v]));
        if (minima) t = _mm256_fnmadd_ps(_mm256_broadcast_ss(w[i].minimum + g), _mm256_load_ps(x->sum + LANES * v), t);
        _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_load_ps(x->step + LANES * v), t, _mm256_load_ps(sum)));
      }
  }
}

INLINE __m256 total_of(const float *sums) {
  __m256 v[GROUPS];
  for (int g = 0; g < GROUPS; g++) v[g] = _mm256_load_ps(sums + g * X_ROWS);
  return _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(v[0], v[4]), _mm256_add_ps(v[2], v[6])),
                       _mm256_add_ps(_mm256_add_ps(v[1], v[5]), _mm256_add_ps(v[3], v[7])));
}

typedef void Decode(const Row *row, int64_t s, Decoded *out);

/* The s-th super of `lanes` rows of weights. */
INLINE void decode_tile(const Matmul *m, Decode *decode, int64_t w, int lanes, int64_t s, int ahead, Decoded *tile) {
  const int64_t span = m->row_bytes / m->supers;
  for (int l = 0; l < lanes; l++) {
    const Row row = row_of(m, w + l);
    if (ahead) fetch(row.row + TILE_ROWS * m->row_bytes + s * span, span); /* of the next tile */
    decode(&row, s, tile + l);
  }
}

INLINE void many(const Matmul *m, Decode *decode, int minima, int64_t first, int64_t last, void *room) {
  Decoded tile[TILE_ROWS] __attribute__((aligned(64)));
  memset(tile, 0, sizeof tile); /* rows behind the last: their results are not stored */
  Sums(*sums)[TILE_ROWS] = room; /* [BLOCK / X_ROWS] */
  const int64_t groups = m->supers * GROUPS;
  for (int64_t x0 = 0; x0 < m->n; x0 += BLOCK) {
    const int64_t n = m->n - x0 < BLOCK ? m->n - x0 : BLOCK, blocks = (n + X_ROWS - 1) / X_ROWS;
    for (int64_t w = first; w < last; w += TILE_ROWS) {
      const int lanes = last - w < TILE_ROWS ? (int)(last - w) : TILE_ROWS;
      memset(sums, 0, (size_t)blocks * sizeof *sums);
      for (int64_t s = 0; s < m->supers; s++) {
        decode_tile(m, decode, w, lanes, s, !x0, tile);
        for (int64_t b = 0; b < blocks; b++) {
          const Columns *x = (const Columns *)m->packed + (x0 / X_ROWS + b) * groups + s * GROUPS;
          if (n - b * X_ROWS > LANES)
            for (int i = 0; i < lanes; i += 4) times(minima, 2, tile + i, x, sums[b] + i);
          else
            for (int i = 0; i < lanes; i += 8) times(minima, 1, tile + i, x, sums[b] + i);
        }
      }
      for (int64_t r = 0; r < n; r += LANES)
        for (int i = 0; i < lanes; i++) {
          float of_x[LANES];
          _mm256_storeu_ps(of_x, total_of(sums[r / X_ROWS][i][0] + r % X_ROWS));
          for (int64_t l = 0; l < LANES && r + l < n; l++) ((float *)m->out)[(x0 + r + l) * m->out_stride + w + i] = of_x[l];
        }
    }
  }
}

#define CASE(which, name) \
  case which: \
    many(m, x86_##name, has_minima(which), first, last, room); \
    return;

void avx2_rows(const Matmul *m, int64_t first, int64_t last, void *room) {
  switch (m->format) {
    CASE(INT8, int8)
    CASE(INT4, int4)
    CASE(Q8_0, q8_0)
    CASE(Q4_0, q4_0)
    CASE(Q4_K, q4_k)
    CASE(Q5_K, q5_k)
    CASE(Q6_K, q6_k)
    CASE(Q4_1, q4_1)
    CASE(Q5_0, q5_0)
    CASE(Q5_1, q5_1)
    CASE(Q3_K, q3_k)
  }
}
END_TARGET
#endif
