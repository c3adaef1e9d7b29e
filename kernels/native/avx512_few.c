/* One to four rows of x on AVX-512 VNNI, where decoding is most of the work: native.h's sums, bit for bit. Two rows of
   weights at a time share what is done once a group. Their numbers stay in registers, as the words that a shift and a
   mask make of what is stored (the even columns' numbers, then the odd ones'), and x is arranged to match once a call. */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#include "formats_x86.h"
#include "native.h"

#define LANES 16
#define FLOATS (SUPER / 4) /* columns that one lane adds up: 4 */

/* 256 columns of a row: int16 words for each of four sums (two, of Q4_0) of 16 lanes, each a group's 8 (4) lanes. */
typedef struct {
  __m512i word[8];
  __m512i times; /* Q6_K: 16 factors of 16 columns each; int4: eight of a group */
} Words;

INLINE int offset_of(int format) { return format == Q4_0 || format == INT4 ? 8 : format == Q6_K ? 32 : 0; }

/* The first of the two groups in each sum's lanes: (0, 2), (1, 3) ... for Q4_K and Q5_K, else (0, 1), (2, 3) ... */
INLINE int crossed(int format) { return format == Q4_K || format == Q5_K; }

INLINE __m512i words(const void *p) { return _mm512_loadu_si512(p); }
INLINE __m512i two(const uint8_t *a, const uint8_t *b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(bytes32(a)),
                            bytes32(b), 1);
}
INLINE __m512i both(const uint8_t *p) { return _mm512_broadcast_i64x4(bytes32(p)); }
INLINE __m512i each(int n) { return _mm512_set1_epi16((short)n); }
INLINE __m512i halves(int a, int b) { return _mm512_inserti64x4(each(a), _mm256_set1_epi16((short)b), 1); }

/* Even and odd columns' numbers out of bytes, without and with a sign. */
INLINE void unsigned_words(__m512i v, __m512i *word) {
  word[0] = _mm512_and_si512(v, each(255));
  word[1] = _mm512_srli_epi16(v, 8);
}
INLINE void signed_words(__m512i v, __m512i *word) {
  word[0] = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8);
  word[1] = _mm512_srai_epi16(v, 8);
}
/* The same of a byte's low and high halves. */
INLINE void nibbles(__m512i v, __m512i *low, __m512i *high) {
  low[0] = _mm512_and_si512(v, each(15));
  high[0] = _mm512_and_si512(_mm512_srli_epi16(v, 4), each(15));
  low[1] = _mm512_and_si512(_mm512_srli_epi16(v, 8), each(15));
  high[1] = _mm512_srli_epi16(v, 12);
}
/* nibble | (bits & mask), for bytes. */
INLINE __m512i with_bits(__m512i nibble, __m512i bits, int mask) {
  return _mm512_ternarylogic_epi32(nibble, bits, _mm512_set1_epi8((char)mask), 0xF8);
}
INLINE __m512i low_half(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE __m512i high_half(__m512i v) { return low_half(_mm512_srli_epi16(v, 4)); }

/* Q4_K's and Q5_K's 16 bytes: eight factors, then eight minima. */
INLINE __m512 scales_k16(const uint8_t *block) {
  __m128i all = _mm_loadu_si128((const __m128i *)block), six = _mm_srli_si128(all, 4);
  __m128i low = _mm_shuffle_epi32(six, 0x98); /* bytes 0-3, 8-11, 4-7, 8-11 */
  __m128i high = _mm_shuffle_epi32(six, 0x50); /* 0-3, 0-3, 4-7, 4-7 */
  low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                      _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F));
  high = _mm_and_si128(_mm_srli_epi32(high, 2), _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
  __m512 d = _mm512_castps128_ps512(_mm_cvtph_ps(all)); /* d, dmin */
  d = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), d);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_or_si128(low, high))), d);
}

/* The s-th 256 columns of a row: its numbers, eight factors and eight minima (in the upper half). */
INLINE __m512 words_of(int format, const Row *r, int64_t s, Words *w) {
  uint8_t whole[GROUPS * 34]; /* what a row's end lacks is 0 here */
  __m256 scale = _mm256_set1_ps(r->scale);
  if (format == INT8) {
    const uint8_t *q = r->row + s * SUPER;
    int some = clip(r->columns - s * SUPER, SUPER);
    if (some < SUPER) {
      memset(whole, 0, SUPER);
      memcpy(whole, q, (size_t)some);
      q = whole;
    }
    for (int v = 0; v < 4; v++) signed_words(words(q + 64 * v), w->word + 2 * v);
  } else if (format == INT4) {
    const int64_t groups = (r->columns + 63) / 64; /* of 32, in each half */
    const uint8_t *q = r->row + s * 128;
    const int8_t *m = (const int8_t *)r->row + groups * 32;
    int some = clip(groups - 4 * s, 4);
    w->times = _mm512_castsi256_si512(times_of_int4(m, s, groups, some));
    if (some < 4) {
      memset(whole, 0, 128);
      memcpy(whole, q, 32 * (size_t)some);
      q = whole;
    }
    for (int h = 0; h < 2; h++) nibbles(words(q + 64 * h), w->word + 2 * h, w->word + 4 + 2 * h);
  } else if (format == Q8_0 || format == Q4_0) {
    const int bytes = format == Q8_0 ? 34 : 18;
    const uint8_t *q = r->row + s * GROUPS * bytes;
    int some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
    if (some < GROUPS) {
      memset(whole, 0, sizeof whole);
      memcpy(whole, q, (size_t)(some * bytes));
      q = whole;
    }
    scale = eight_halves(q, bytes);
    if (format == Q8_0)
      for (int v = 0; v < 4; v++) signed_words(two(q + 68 * v + 2, q + 68 * v + 36), w->word + 2 * v);
    else
      for (int h = 0; h < 2; h++, q += 72) {
        __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(q + 2)));
        v = _mm512_mask_broadcast_i32x4(v, 0x00F0, _mm_loadu_si128((const __m128i *)(q + 20)));
        v = _mm512_mask_broadcast_i32x4(v, 0x0F00, _mm_loadu_si128((const __m128i *)(q + 38)));
        v = _mm512_mask_broadcast_i32x4(v, 0xF000, _mm_loadu_si128((const __m128i *)(q + 56)));
        nibbles(v, w->word + 4 * h, w->word + 4 * h + 2);
      }
  } else if (format == Q4_K) {
    const uint8_t *block = r->row + s * 144;
    for (int h = 0; h < 2; h++) nibbles(words(block + 16 + 64 * h), w->word + 4 * h, w->word + 4 * h + 2);
    return scales_k16(block);
  } else if (format == Q5_K) {
    const uint8_t *block = r->row + s * 176;
    const __m512i high = both(block + 16); /* bit g of byte j: column j of group g */
    for (int h = 0; h < 2; h++) {
      __m512i v = words(block + 48 + 64 * h);
      __m512i even = h ? _mm512_srlv_epi16(high, halves(0, 2)) : _mm512_sllv_epi16(high, halves(4, 2));
      __m512i odd = h ? _mm512_srlv_epi16(high, halves(1, 3)) : _mm512_sllv_epi16(high, halves(3, 1));
      unsigned_words(with_bits(low_half(v), even, 0x10), w->word + 4 * h);
      unsigned_words(with_bits(high_half(v), odd, 0x10), w->word + 4 * h + 2);
    }
    return scales_k16(block);
  } else { /* Q6_K */
    const uint8_t *block = r->row + s * 210;
    for (int h = 0; h < 2; h++) {
      __m512i v = words(block + 64 * h), high = both(block + 128 + 32 * h);
      __m512i first = _mm512_sllv_epi16(high, halves(4, 2)), second = _mm512_srlv_epi16(high, halves(0, 2));
      unsigned_words(with_bits(low_half(v), first, 0x30), w->word + 4 * h);
      unsigned_words(with_bits(high_half(v), second, 0x30), w->word + 4 * h + 2);
    }
    w->times = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(block + 192)));
    scale = _mm256_set1_ps(x86_half(block + 208));
  }
  return _mm512_castps256_ps512(scale);
}

/* The products of one row of weights and one of x, in lanes: of four columns each. */
INLINE void products(int format, const Words *w, const int16_t *x, const int32_t *offset, __m512i *sum) {
  const int sums = format == Q4_0 ? 2 : 4, each_sum = 8 / sums;
  for (int v = 0; v < sums; v++) {
    sum[v] = offset_of(format) ? words(offset + LANES * v) : _mm512_setzero_si512();
    for (int i = each_sum * v; i < each_sum * (v + 1); i++)
      sum[v] = _mm512_dpwssd_epi32(sum[v], w->word[i], words(x + 32 * i));
    if (format == Q6_K) { /* four columns of the 16 that have one factor */
      __m512i place = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
      place = _mm512_add_epi32(place, _mm512_set1_epi32(4 * v));
      sum[v] = _mm512_mullo_epi32(sum[v], _mm512_permutexvar_epi32(place, w->times));
    }
  }
}

INLINE __m512i add_32(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
INLINE __m512i add_64(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Each group's sum: eight of row a, then eight of row b. */
INLINE __m512i totals(int format, const __m512i *a, const __m512i *b) {
  if (format == Q4_0)
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                    add_64(add_32(a[0], a[1]), add_32(b[0], b[1])));
  __m512i p = add_64(add_32(a[0], a[1]), add_32(a[2], a[3])); /* 128 bits: four sums' first groups, half of each */
  __m512i q = add_64(add_32(b[0], b[1]), add_32(b[2], b[3]));
  __m512i t = _mm512_add_epi32(_mm512_shuffle_i32x4(p, q, 0x88), _mm512_shuffle_i32x4(p, q, 0xDD));
  return _mm512_permutexvar_epi32(crossed(format)
                                      ? _mm512_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)
                                      : _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15),
                                  t);
}

INLINE __m512 twice(const float *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }

INLINE void few(const Matmul *m, int format, int rows, int64_t first, int64_t last) {
  const int64_t span = m->row_bytes / m->supers;
  for (int64_t w = first; w < last; w += 2) {
    const int64_t other = w + 1 < last ? w + 1 : w; /* an odd row is its own partner */
    Row row[2] = {row_of(m, w), row_of(m, other)};
    __m512 sums[FEW];
    for (int r = 0; r < rows; r++) sums[r] = _mm512_setzero_ps();
    for (int64_t s = 0; s < m->supers; s++) {
      fetch(row[0].row + m->row_bytes + 2 * s * span + AHEAD, 2 * span); /* in the order of memory */
      Words number[2];
      __m512 a = words_of(format, row, s, number), b = words_of(format, row + 1, s, number + 1);
      __m512 factor = _mm512_insertf32x8(a, _mm512_castps512_ps256(b), 1);
      __m512 minimum = _mm512_shuffle_f32x4(a, b, 0xEE);
      __m512i times = _mm512_inserti64x4(number[0].times, _mm512_castsi512_si256(number[1].times), 1);
      for (int r = 0; r < rows; r++) {
        const int64_t at = r * m->supers + s;
        __m512i dot[2][4];
        for (int i = 0; i < 2; i++)
          products(format, number + i, m->x + at * SUPER, m->offset + at * FLOATS, dot[i]);
        __m512i sum = totals(format, dot[0], dot[1]);
        if (format == INT4) sum = _mm512_mullo_epi32(sum, times);
        __m512 t = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(sum));
        if (has_minima(format)) t = _mm512_fnmadd_ps(minimum, twice(m->sum + at * GROUPS), t);
        sums[r] = _mm512_fmadd_ps(twice(m->step + at * GROUPS), t, sums[r]);
      }
    }
    for (int r = 0; r < rows; r++) {
      float *out = (float *)m->out + r * m->out_stride;
      out[w] = eight_total(_mm512_castps512_ps256(sums[r]));
      if (other > w) out[other] = eight_total(_mm512_extractf32x8_ps(sums[r], 1));
    }
  }
}

#define CASE(format, n) \
  case 8 * format + n: few(m, format, n, first, last); return;
#define CASES(format) CASE(format, 1) CASE(format, 2) CASE(format, 3) CASE(format, 4)

void avx512_few(const Matmul *m, int64_t first, int64_t last, void *room) {
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

/* A row of x, in place: its numbers in the order of `Words`, and what the numbers' offsets subtract in each lane. */
void avx512_arrange(int format, int64_t supers, int16_t *x, int32_t *offset) {
  const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24, 22,
                                        20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  /* Of two groups of 32: the first 8 words take columns 0, 2 .. 14 of the one, the next 8 those of the other. */
  const __m512i eights = _mm512_add_epi16(_mm512_and_si512(even, each(15)),
                                          _mm512_slli_epi16(_mm512_and_si512(even, each(16)), 1));
  for (int64_t s = 0; s < supers; s++, x += SUPER, offset += FLOATS) {
    __m512i g[GROUPS], out[8];
    for (int i = 0; i < GROUPS; i++) g[i] = words(x + GROUP * i);
    for (int i = 0; i < 8; i++)
      if (format == Q4_0) { /* low halves' even columns, their odd ones, high halves' (columns 16 to 31) the same */
        __m512i place = _mm512_add_epi16(eights, each(i % 2 + (i % 4 > 1 ? 16 : 0)));
        const __m512i *four = g + (i & 4);
        out[i] = _mm512_inserti64x4(_mm512_permutex2var_epi16(four[0], place, four[1]),
                                    _mm512_castsi512_si256(_mm512_permutex2var_epi16(four[2], place, four[3])), 1);
      } else {
        int v = i / 2, a = crossed(format) ? v / 2 * 4 + v % 2 : 2 * v;
        __m512i place = _mm512_add_epi16(even, each(i % 2));
        out[i] = _mm512_permutex2var_epi16(g[a], place, g[a + (crossed(format) ? 2 : 1)]);
      }
    for (int i = 0; i < 8; i++) _mm512_storeu_si512(x + 32 * i, out[i]);
    if (!offset_of(format)) continue;
    const int sums = format == Q4_0 ? 2 : 4, each_sum = 8 / sums;
    for (int v = 0; v < sums; v++) {
      __m512i sum = _mm512_setzero_si512();
      for (int i = each_sum * v; i < each_sum * (v + 1); i++)
        sum = _mm512_dpwssd_epi32(sum, out[i], each(-offset_of(format)));
      _mm512_storeu_si512(offset + LANES * v, sum);
    }
  }
}
#endif
