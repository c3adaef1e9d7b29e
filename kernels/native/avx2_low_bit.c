/* Low-bit weights on AVX2, and how rows of x are arranged for them, with VNNI (avx_vnni.c) or without. */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx2,fma,f16c")
#define NAME(x) avx2_##x
#include "avx2_few.inc"
#include "avx2_many.inc"

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

/* A group, in place: even columns, then odd ones. */
INLINE void arrange_words(int16_t *x) {
  const __m256i a = bytes32(x), b = bytes32(x + 16);
  const __m256i even_a = _mm256_srai_epi32(_mm256_slli_epi32(a, 16), 16), even_b = _mm256_srai_epi32(_mm256_slli_epi32(b, 16), 16);
  const __m256i even = _mm256_packs_epi32(even_a, even_b);
  const __m256i odd = _mm256_packs_epi32(_mm256_srai_epi32(a, 16), _mm256_srai_epi32(b, 16));
  _mm256_store_si256((__m256i *)x, _mm256_permute4x64_epi64(even, 0xD8));
  _mm256_store_si256((__m256i *)x + 1, _mm256_permute4x64_epi64(odd, 0xD8));
}

/* Of 8 columns of each group, each with a factor, the sums. */
INLINE __m256i sums_of(__m256i (*v)[2], int factor) {
  __m256i pairs[2];
  for (int q = 0; q < 2; q++)
    pairs[q] = merged(_mm256_madd_epi16(v[4 * q][0], each(factor)), _mm256_madd_epi16(v[4 * q][1], each(factor)));
  return merged(pairs[0], pairs[1]);
}

/* 256 columns, in place: 32 high digits, 32 low ones, beside the vectors that `Numbers` has; and what the numbers' offsets
   subtract of each group, of Q6_K of the groups' first halves and then of the others. */
INLINE void arrange_bytes(int format, int16_t *x, int32_t *offset) {
  __m256i v[8][2]; /* as `Numbers`: of groups 2 * q and 2 * q + 4; of the two behind them */
  for (int i = 0; i < 8; i++) {
    const int16_t *from = x + i / 4 * 2 * GROUP + i % 4 * 8;
    for (int k = 0; k < 2; k++, from += GROUP) v[i][k] = two_halves(from, from + 4 * GROUP);
  }
  for (int i = 0; i < 8; i++) {
    const __m256i a = v[i][0], b = v[i][1], low = each(127);
    __m256i *to = (__m256i *)x + 2 * i;
    _mm256_store_si256(to, _mm256_packs_epi16(_mm256_srai_epi16(a, 7), _mm256_srai_epi16(b, 7)));
    _mm256_store_si256(to + 1, _mm256_packs_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)));
  }
  if (!offset_of(format)) return;
  __m256i less[4];
  for (int c = 0; c < 4; c++) less[c] = sums_of(v + c, -offset_of(format));
  const __m256i first = _mm256_add_epi32(less[0], less[1]), second = _mm256_add_epi32(less[2], less[3]);
  _mm256_store_si256((__m256i *)offset, format == Q6_K ? first : _mm256_add_epi32(first, second));
  _mm256_store_si256((__m256i *)(offset + GROUPS), second);
}

void avx2_arrange(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum) {
  (void)step, (void)sum;
  for (int64_t s = 0; s < supers; s++, x += SUPER, offset += SUPER / 4)
    if (in_bytes(format)) arrange_bytes(format, x, offset);
    else if (!is_rare(format))
      for (int g = 0; g < GROUPS; g++) arrange_words(x + g * GROUP);
}
END_TARGET
#endif
