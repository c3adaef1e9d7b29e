/* One to six rows of x on AVX2, where decoding is most of the work: native.h's sums, bit for bit. A row's numbers stay in
   registers. Those of 4 to 6 bits as bytes, 8 columns of each of four groups, that are multiplied with two digits of x, 128 * high
   + low, whose sums of up to 8 columns (of 6 bits 4, 32256 at most) fit into 16 bits: so a vector of sums has few of each group, which takes
   less adding up than one group by itself. Those of 8 bits as words, a group's even columns and its odd ones. x is arranged to
   match once a call. */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx2,fma,f16c")
#include "formats_x86.h"
#include "native.h"

#define LANES 8

/* 256 columns of a row. Bytes, vector 4 * q + c: columns 8 * c to 8 * c + 7 of groups 2 * q, 2 * q + 1, 2 * q + 4 and 2 * q + 5,
   so that sums end up in the order of the groups. Words, 2 * g: the even columns of group g; 2 * g + 1: its odd ones. */
typedef struct {
  __m256i number[16];
  __m256 factor, minimum;
  __m256i times; /* int4: of a group; Q6_K: of a group's first 16 columns */
  __m256i more;  /* Q6_K: of the others */
} Numbers;

INLINE int in_bytes(int format) { return format != INT8 && format != Q8_0; }

INLINE int offset_of(int format) { return format == Q4_0 || format == INT4 ? 8 : format == Q6_K ? 32 : 0; }

INLINE __m256i each(int n) { return _mm256_set1_epi16((short)n); }

INLINE void words(__m256i bytes, __m256i *to) { /* even ones, odd ones */
  to[0] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
  to[1] = _mm256_srai_epi16(bytes, 8);
}

/* 16 bytes, and again with all bits four places lower: what the high halves of bytes are for. */
INLINE __m256i moved(const uint8_t *p) {
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
  return _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
}

INLINE __m256i two_halves(const void *a, const void *b) { /* 16 bytes each */
  const __m128i low = _mm_loadu_si128((const __m128i *)a), high = _mm_loadu_si128((const __m128i *)b);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Q4_K's and Q5_K's eight factors and minima: out of ordinary registers, as vectors' are what there is too little of. */
INLINE void scales_of(const uint8_t *block, Numbers *w) {
  int32_t both; /* the factors' and the minima's own, fp16 */
  uint32_t a, b, c;
  memcpy(&both, block, 4), memcpy(&a, block + 4, 4), memcpy(&b, block + 8, 4), memcpy(&c, block + 12, 4);
  const uint32_t factors = (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030), minima = (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030);
  const uint64_t f = (a & 0x3F3F3F3F) | (uint64_t)factors << 32, m = (b & 0x3F3F3F3F) | (uint64_t)minima << 32;
  const __m256 d = _mm256_cvtph_ps(_mm_set1_epi32(both));
  w->factor = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)f))), _mm256_moveldup_ps(d));
  w->minimum = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)m))), _mm256_movehdup_ps(d));
}

/* A row's bytes, or where it ends before them a copy with zeros behind it. */
INLINE const uint8_t *whole(const uint8_t *q, int some, int all, uint8_t *room) {
  if (some == all) return q;
  memset(room, 0, (size_t)all);
  return memcpy(room, q, (size_t)some);
}

/* The s-th 256 columns of a row; of bytes vector 2 * g + h: half h of groups g and g + 4. */
INLINE void pairs_of(int format, const Row *r, int64_t s, Numbers *w) {
  uint8_t room[GROUPS * 34];
  w->factor = _mm256_set1_ps(r->scale);
  if (format == INT8) {
    const uint8_t *q = whole(r->row + s * SUPER, clip(r->columns - s * SUPER, SUPER), SUPER, room);
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g++) words(bytes32(q + 32 * g), w->number + 2 * g);
  } else if (format == INT4) {
    const int64_t groups = (r->columns + 63) / 64; /* of 32, in each half */
    const int8_t *m = (const int8_t *)r->row + groups * 32;
    const int some = clip(groups - 4 * s, 4);
    const uint8_t *q = whole(r->row + s * 128, 32 * some, 128, room);
    w->times = times_of_int4(m, s, groups, some);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) w->number[v] = low_nibbles(moved(q + 16 * v));
  } else if (format == Q8_0 || format == Q4_0) {
    const int bytes = format == Q8_0 ? 34 : 18, some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
    const uint8_t *q = whole(r->row + s * GROUPS * bytes, some * bytes, GROUPS * bytes, room);
    w->factor = eight_halves(q, bytes);
#pragma GCC unroll 8
    for (int g = 0; format == Q8_0 && g < GROUPS; g++) words(bytes32(q + 34 * g + 2), w->number + 2 * g);
#pragma GCC unroll 8
    for (int g = 0; format == Q4_0 && g < GROUPS / 2; g++) {
      const __m256i both = two_halves(q + 18 * g + 2, q + 18 * (4 + g) + 2);
      w->number[2 * g] = low_nibbles(both), w->number[2 * g + 1] = high_nibbles(both);
    }
  } else if (format == Q4_K) {
    const uint8_t *block = r->row + s * 144;
    scales_of(block, w);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) { /* 16 columns of two groups are the low halves, of the next ones the high halves */
      const uint8_t *q = block + 16 + v / 2 * 32 + v % 2 * 16;
      const __m256i both = two_halves(q, q + 64);
      w->number[v / 2 * 4 + v % 2] = low_nibbles(both), w->number[v / 2 * 4 + 2 + v % 2] = high_nibbles(both);
    }
  } else if (format == Q5_K) {
    const uint8_t *block = r->row + s * 176;
    scales_of(block, w);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) { /* bit g of byte j: column j of group g */
      const __m256i high = moved(block + 16 + 16 * h), odd = _mm256_srli_epi16(high, 1);
#pragma GCC unroll 2
      for (int c = 0; c < 2; c++) {
        const uint8_t *q = block + 48 + 32 * c + 16 * h;
        const __m256i both = two_halves(q, q + 64);
        w->number[4 * c + h] = _mm256_or_si256(low_nibbles(both), one_bit(high, 2 * c));
        w->number[4 * c + 2 + h] = _mm256_or_si256(high_nibbles(both), one_bit(odd, 2 * c));
      }
    }
  } else { /* Q6_K: groups 0 to 3 lie in its first half, 4 to 7 in the second */
    const uint8_t *block = r->row + s * 210;
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const uint8_t *q = block + 16 * h, *p = block + 128 + 16 * h;
      const __m256i a = two_halves(q, q + 64), b = two_halves(q + 32, q + 96), high = two_halves(p, p + 32);
      w->number[h] = _mm256_or_si256(low_nibbles(a), two_bits(high, 0));
      w->number[2 + h] = _mm256_or_si256(low_nibbles(b), two_bits(high, 2));
      w->number[4 + h] = _mm256_or_si256(high_nibbles(a), two_bits(high, 4));
      w->number[6 + h] = _mm256_or_si256(high_nibbles(b), two_bits(high, 6));
    }
    /* Of each 16 columns: even ones are groups' first halves. */
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m128i times = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 192)), order);
    w->times = _mm256_cvtepi8_epi32(times);
    w->more = _mm256_cvtepi8_epi32(_mm_srli_si128(times, 8));
    w->factor = _mm256_set1_ps(x86_half(block + 208));
  }
}

/* The same in vectors as `Numbers` has them. */
INLINE void numbers_of(int format, const Row *r, int64_t s, Numbers *w) {
  pairs_of(format, r, s, w);
  if (!in_bytes(format)) return;
#pragma GCC unroll 2
  for (int q = 0; q < 2; q++) {
    __m256i *v = w->number + 4 * q;
    const __m256i a = v[0], b = v[1], c = v[2], d = v[3];
    v[0] = _mm256_unpacklo_epi64(a, c), v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d), v[3] = _mm256_unpackhi_epi64(b, d);
  }
}

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
         : format == Q8_0 ? GROUPS * 34 : SUPER;
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
      __m256i dot[AVX2_FEW]; /* of all rows before anything else: what waits for a row's sums is much, and the CPU looks not far ahead */
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
    else
      for (int g = 0; g < GROUPS; g++) arrange_words(x + g * GROUP);
}
END_TARGET
#endif
