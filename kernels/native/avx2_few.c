/* One to six rows of x on AVX2, where decoding is most of the work: native.h's sums, bit for bit. A row's numbers stay in
   registers. Those of 4 to 6 bits as bytes, 8 columns of each of four groups, that are multiplied with two digits of x, 128 * high
   + low, whose sums of up to 8 columns (of 6 bits 4, 32256 at most) fit into 16 bits: so a vector of sums has few of each group,
   which takes less adding up than one group by itself. Those of 8 bits as words, a group's even columns and its odd ones. x is
   arranged to match once a call. */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx2,fma,f16c")
#include "avx2_numbers.h"

/* Neighbouring sums added, in each half of the vectors: a's, then b's. */
INLINE __m256i merged(__m256i first, __m256i second) {
  const __m256 a = _mm256_castsi256_ps(first), b = _mm256_castsi256_ps(second);
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD)));
}

/* 16-bit sums of products with both digits -> 32-bit ones with x. */
INLINE __m256i joined(__m256i high, __m256i low) {
  return _mm256_add_epi32(_mm256_madd_epi16(high, each(128)), _mm256_madd_epi16(low, each(1)));
}

/* The groups' sums of products with a row of x, of bytes. */
INLINE __m256i byte_dots(int format, const Numbers *w, const int16_t *x, const int32_t *offset) {
  __m256i first[2], second[2]; /* of Q6_K: of a group's halves */
#pragma GCC unroll 2
  for (int q = 0; q < 2; q++, x += SUPER / 2) {
    __m256i high[4], low[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      high[c] = _mm256_maddubs_epi16(w->number[4 * q + c], bytes32(x + 32 * c));
      low[c] = _mm256_maddubs_epi16(w->number[4 * q + c], bytes32(x + 32 * c + 16));
    }
    for (int c = 0; c < 4; c += 2) {
      high[c] = _mm256_add_epi16(high[c], high[c + 1]);
      low[c] = _mm256_add_epi16(low[c], low[c + 1]);
    }
    if (format == Q6_K)
      first[q] = joined(high[0], low[0]), second[q] = joined(high[2], low[2]);
    else
      first[q] = joined(_mm256_add_epi16(high[0], high[2]), _mm256_add_epi16(low[0], low[2]));
  }
  __m256i sum = merged(first[0], first[1]);
  if (offset_of(format)) sum = _mm256_add_epi32(sum, bytes32(offset));
  if (format == INT4) return _mm256_mullo_epi32(sum, w->times);
  if (format != Q6_K) return sum;
  const __m256i other = _mm256_add_epi32(merged(second[0], second[1]), bytes32(offset + GROUPS));
  return _mm256_add_epi32(_mm256_mullo_epi32(sum, w->times), _mm256_mullo_epi32(other, w->more));
}

/* The same of words. */
INLINE __m256i word_dots(const Numbers *w, const int16_t *x) {
  __m256i half[2]; /* groups 0 to 3, 4 to 7: their first columns, then their last */
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++) {
    __m256i sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, x += GROUP) {
      const __m256i *number = w->number + 8 * h + 2 * i;
      sum[i] = _mm256_add_epi32(_mm256_madd_epi16(number[0], bytes32(x)), _mm256_madd_epi16(number[1], bytes32(x + 16)));
    }
    half[h] = merged(merged(sum[0], sum[1]), merged(sum[2], sum[3]));
  }
  return _mm256_add_epi32(_mm256_permute2x128_si256(half[0], half[1], 0x20), _mm256_permute2x128_si256(half[0], half[1], 0x31));
}

INLINE int bytes_of(int format) { /* of 256 columns; int4's multipliers apart */
  return format == INT4 ? 128 : format == Q4_0 || format == Q4_K ? 144 : format == Q5_K ? 176 : format == Q6_K ? 210
         : format == Q8_0 ? GROUPS * 34 : format == Q4_1 ? GROUPS * 20 : format == Q5_0 ? GROUPS * 22 : format == Q5_1 ? GROUPS * 24
         : format == Q3_K ? 110 : SUPER;
}

INLINE void few(const Matmul *m, int format, int rows, int64_t first, int64_t last) {
  const int span = bytes_of(format);
  for (int64_t w = first; w < last; w++) {
    const Row row = row_of(m, w);
    __m256 sums[AVX2_FEW];
    for (int r = 0; r < rows; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t s = 0; s < m->supers; s++) {
      Numbers numbers;
      fetch(row.row + s * span + AHEAD, span);
      numbers_of(format, &row, s, &numbers);
      __m256i dot[AVX2_FEW]; /* of all rows before what waits for them: the CPU does not look far ahead */
      for (int r = 0; r < rows; r++) {
        const int64_t at = r * m->supers + s;
        const int16_t *x = m->x + at * SUPER;
        dot[r] = in_bytes(format) ? byte_dots(format, &numbers, x, m->offset + at * (SUPER / 4)) : word_dots(&numbers, x);
      }
      for (int r = 0; r < rows; r++) {
        const int64_t at = r * m->supers + s;
        __m256 t = _mm256_mul_ps(numbers.factor, _mm256_cvtepi32_ps(dot[r]));
        if (has_minima(format)) t = _mm256_fnmadd_ps(numbers.minimum, _mm256_loadu_ps(m->sum + at * GROUPS), t);
        sums[r] = _mm256_fmadd_ps(_mm256_loadu_ps(m->step + at * GROUPS), t, sums[r]);
      }
    }
    for (int r = 0; r < rows; r++) ((float *)m->out)[r * m->out_stride + w] = eight_total(sums[r]);
  }
}

#define CASE(format, n) \
  case 8 * format + n: few(m, format, n, first, last); return;
#define CASES(format) \
  CASE(format, 1) CASE(format, 2) CASE(format, 3) CASE(format, 4) CASE(format, 5) CASE(format, 6)

void avx2_few(const Matmul *m, int64_t first, int64_t last, void *room) {
  (void)room;
  switch (8 * m->format + m->n) {
    CASES(INT8)
    CASES(INT4)
    CASES(Q8_0)
    CASES(Q4_0)
    CASES(Q4_K)
    CASES(Q5_K)
    CASES(Q6_K)
    CASES(Q4_1)
    CASES(Q5_0)
    CASES(Q5_1)
    CASES(Q3_K)
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
