/* One to four rows of x on AVX2, where decoding is most of the work: native.h's sums, bit for bit. A row's numbers stay in
   registers: as the words that a shift and a mask make of what is stored (a group's even columns, then its odd ones), or, of four
   bits, as bytes, that are multiplied with two digits of x, 128 * high + low, whose sums of up to 16 columns fit into 16 bits. x
   is arranged to match once a call. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "formats_x86.h"
#include "native.h"

#define LANES 8
#define WORDS_OF 16 /* vectors of 16 words: 256 columns */

/* 256 columns of a row: of each group even and odd columns. Of four bits eight vectors: of groups 0 and 4 the first 16 columns
   of both, then the other 16; the same of 1 and 5, ... So sums end up in the order of the groups. */
typedef struct {
  __m256i word[WORDS_OF];
  __m256 factor, minimum;
  __m256i times; /* int4: of a group; Q6_K: of 16 columns, groups 0 to 3, the first halves, then the second */
  __m256i more;  /* Q6_K: groups 4 to 7 */
} Words;

INLINE int of_four_bits(int format) { return format == Q4_0 || format == INT4 || format == Q4_K; }

INLINE int offset_of(int format) { return format == Q4_0 || format == INT4 ? 8 : format == Q6_K ? 32 : 0; }

INLINE __m256i each(int n) { return _mm256_set1_epi16((short)n); }

/* Even and odd columns' numbers out of bytes, without and with a sign. */
INLINE void unsigned_words(__m256i v, __m256i *word) {
  word[0] = _mm256_and_si256(v, each(255));
  word[1] = _mm256_srli_epi16(v, 8);
}
INLINE void signed_words(__m256i v, __m256i *word) {
  word[0] = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
  word[1] = _mm256_srai_epi16(v, 8);
}
/* The low halves of 16 bytes, then their high halves. */
INLINE __m256i nibbles(const uint8_t *p) {
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
  return _mm256_and_si256(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)), _mm256_set1_epi8(15));
}

INLINE __m256i two_halves(const uint8_t *a, const uint8_t *b) {
  const __m128i low = _mm_loadu_si128((const __m128i *)a), high = _mm_loadu_si128((const __m128i *)b);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Q4_K's and Q5_K's eight factors and minima: out of ordinary registers, as vectors' are what there is too little of. */
INLINE void scales_of(const uint8_t *block, Words *w) {
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

/* The s-th 256 columns of a row. */
INLINE void words_of(int format, const Row *r, int64_t s, Words *w) {
  uint8_t room[GROUPS * 34];
  w->factor = _mm256_set1_ps(r->scale);
  if (format == INT8) {
    const uint8_t *q = whole(r->row + s * SUPER, clip(r->columns - s * SUPER, SUPER), SUPER, room);
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g++) signed_words(bytes32(q + 32 * g), w->word + 2 * g);
  } else if (format == INT4) {
    const int64_t groups = (r->columns + 63) / 64; /* of 32, in each half */
    const int8_t *m = (const int8_t *)r->row + groups * 32;
    const int some = clip(groups - 4 * s, 4);
    const uint8_t *q = whole(r->row + s * 128, 32 * some, 128, room);
    w->times = times_of_int4(m, s, groups, some);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) w->word[v] = nibbles(q + 16 * v);
  } else if (format == Q8_0 || format == Q4_0) {
    const int bytes = format == Q8_0 ? 34 : 18, some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
    const uint8_t *q = whole(r->row + s * GROUPS * bytes, some * bytes, GROUPS * bytes, room);
    w->factor = eight_halves(q, bytes);
#pragma GCC unroll 8
    for (int g = 0; format == Q8_0 && g < GROUPS; g++) signed_words(bytes32(q + 34 * g + 2), w->word + 2 * g);
#pragma GCC unroll 8
    for (int g = 0; format == Q4_0 && g < GROUPS / 2; g++) {
      const __m256i both = two_halves(q + 18 * g + 2, q + 18 * (4 + g) + 2);
      w->word[2 * g] = low_nibbles(both), w->word[2 * g + 1] = high_nibbles(both);
    }
  } else if (format == Q4_K) {
    const uint8_t *block = r->row + s * 144;
    scales_of(block, w);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) { /* 16 columns of two groups are the low halves, of the next ones the high halves */
      const uint8_t *q = block + 16 + v / 2 * 32 + v % 2 * 16;
      const __m256i both = two_halves(q, q + 64);
      w->word[v / 2 * 4 + v % 2] = low_nibbles(both), w->word[v / 2 * 4 + 2 + v % 2] = high_nibbles(both);
    }
  } else if (format == Q5_K) {
    const uint8_t *block = r->row + s * 176;
    const __m256i high = bytes32(block + 16), odd = _mm256_srli_epi16(high, 1); /* bit g of byte j: column j of group g */
    scales_of(block, w);
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g += 2) {
      const __m256i v = bytes32(block + 48 + 16 * g);
      unsigned_words(_mm256_or_si256(low_nibbles(v), one_bit(high, g)), w->word + 2 * g);
      unsigned_words(_mm256_or_si256(high_nibbles(v), one_bit(odd, g)), w->word + 2 * g + 2);
    }
  } else { /* Q6_K */
    const uint8_t *block = r->row + s * 210;
#pragma GCC unroll 8
    for (int h = 0; h < 2; h++) {
      const __m256i a = bytes32(block + 64 * h), b = bytes32(block + 64 * h + 32), high = bytes32(block + 128 + 32 * h);
      __m256i *word = w->word + 8 * h;
      unsigned_words(_mm256_or_si256(low_nibbles(a), two_bits(high, 0)), word);
      unsigned_words(_mm256_or_si256(low_nibbles(b), two_bits(high, 2)), word + 2);
      unsigned_words(_mm256_or_si256(high_nibbles(a), two_bits(high, 4)), word + 4);
      unsigned_words(_mm256_or_si256(high_nibbles(b), two_bits(high, 6)), word + 6);
    }
    /* Factors 0 2 4 6 1 3 5 7, and of 8 to 15 the same. */
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const __m128i times = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 192)), order);
    w->times = _mm256_cvtepi8_epi32(times);
    w->more = _mm256_cvtepi8_epi32(_mm_srli_si128(times, 8));
    w->factor = _mm256_set1_ps(x86_half(block + 208));
  }
}

INLINE __m256i add_32(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
INLINE __m256i add_64(__m256i a, __m256i b) {
  return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Neighbouring sums of each of two vectors added: 32 bits of the one, then of the other, twice. */
INLINE __m256i halved(__m256i a, __m256i b) {
  return _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

/* The groups' sums of products with a row of x, of four bits. A sum of 16 columns is at most 15 * 128 * 16, below 2^15. */
INLINE __m256i byte_dots(int format, const Words *w, const int16_t *x, const int32_t *offset) {
  __m256i high[2], low[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; h++, x += 128) {
    const __m256i *word = w->word + 4 * h;
    __m256i sums[2][2];
#pragma GCC unroll 2
    for (int c = 0; c < 2; c++)
      for (int digit = 0; digit < 2; digit++)
        sums[c][digit] = _mm256_add_epi16(_mm256_maddubs_epi16(word[2 * c], bytes32(x + 64 * c + 16 * digit)),
                                          _mm256_maddubs_epi16(word[2 * c + 1], bytes32(x + 64 * c + 16 * digit + 32)));
    high[h] = halved(sums[0][0], sums[1][0]), low[h] = halved(sums[0][1], sums[1][1]);
    __asm__ volatile("" ::: "memory"); /* or all products are made first, for which there are not enough registers */
  }
  const __m256i top = _mm256_add_epi16(_mm256_unpacklo_epi64(high[0], high[1]), _mm256_unpackhi_epi64(high[0], high[1]));
  const __m256i rest = _mm256_add_epi16(_mm256_unpacklo_epi64(low[0], low[1]), _mm256_unpackhi_epi64(low[0], low[1]));
  __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(top, each(128)), _mm256_madd_epi16(rest, each(1)));
  if (offset_of(format)) sum = _mm256_add_epi32(sum, bytes32(offset));
  return format == INT4 ? _mm256_mullo_epi32(sum, w->times) : sum;
}

/* The same of longer numbers. */
INLINE __m256i dots(int format, const Words *w, const int16_t *x, const int32_t *offset) {
  if (of_four_bits(format)) return byte_dots(format, w, x, offset);
  __m256i sum[GROUPS];
#pragma GCC unroll 8
  for (int g = 0; g < GROUPS; g++) {
    const __m256i even = _mm256_madd_epi16(w->word[2 * g], bytes32(x + GROUP * g));
    sum[g] = _mm256_add_epi32(even, _mm256_madd_epi16(w->word[2 * g + 1], bytes32(x + GROUP * g + 16)));
  }
  __m256i a = add_64(add_32(sum[0], sum[1]), add_32(sum[2], sum[3])); /* first halves of groups 0 to 3, second ones */
  __m256i b = add_64(add_32(sum[4], sum[5]), add_32(sum[6], sum[7]));
  if (format == Q6_K) {
    a = _mm256_mullo_epi32(_mm256_add_epi32(a, bytes32(offset)), w->times);
    b = _mm256_mullo_epi32(_mm256_add_epi32(b, bytes32(offset + LANES)), w->more);
  }
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* Of 256 columns; int4's multipliers apart. */
INLINE int bytes_of(int format) {
  switch (format) {
    case INT4: return 128;
    case Q8_0: return GROUPS * 34;
    case Q4_0: return GROUPS * 18;
    case Q4_K: return 144;
    case Q5_K: return 176;
    case Q6_K: return 210;
    default: return SUPER;
  }
}

INLINE void few(const Matmul *m, int format, int rows, int64_t first, int64_t last) {
  const int span = bytes_of(format);
  for (int64_t w = first; w < last; w++) {
    const Row row = row_of(m, w);
    __m256 sums[FEW];
    for (int r = 0; r < rows; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t s = 0; s < m->supers; s++) {
      Words numbers;
      fetch(row.row + s * span + AHEAD, span);
      words_of(format, &row, s, &numbers);
      for (int r = 0; r < rows; r++) {
        const int64_t at = r * m->supers + s;
        __m256i dot = dots(format, &numbers, m->x + at * SUPER, m->offset + at * (SUPER / 4));
        __m256 t = _mm256_mul_ps(numbers.factor, _mm256_cvtepi32_ps(dot));
        if (has_minima(format)) t = _mm256_fnmadd_ps(numbers.minimum, _mm256_loadu_ps(m->sum + at * GROUPS), t);
        sums[r] = _mm256_fmadd_ps(_mm256_loadu_ps(m->step + at * GROUPS), t, sums[r]);
      }
    }
    for (int r = 0; r < rows; r++) ((float *)m->out)[r * m->out_stride + w] = eight_total(sums[r]);
  }
}

#define CASE(format, n) \
  case 8 * format + n: few(m, format, n, first, last); return;
#define CASES(format) CASE(format, 1) CASE(format, 2) CASE(format, 3) CASE(format, 4)

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

/* 256 numbers of a row of x as two digits, beside the pairs of groups that `Words` has: 32 high ones, 32 low ones, ... */
static void arrange_bytes(int format, const int16_t *from, int8_t *to, int32_t *offset) {
  for (int v = 0; v < 8; v++, to += 64)
    for (int j = 0; j < GROUP; j++) {
      const int g = v / 2 + j / 16 * 4;
      const int16_t number = from[g * GROUP + v % 2 * 16 + j % 16];
      to[j] = (int8_t)(number >> 7), to[GROUP + j] = (int8_t)(number & 127);
    }
  for (int g = 0; offset_of(format) && g < GROUPS; g++) {
    int32_t sum = 0;
    for (int j = 0; j < GROUP; j++) sum += from[g * GROUP + j];
    offset[g] = -offset_of(format) * sum;
  }
}

/* A row of x, in place: its numbers in the order of `Words`, and what the numbers' offsets subtract in each lane. */
void avx2_arrange(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum) {
  (void)step, (void)sum;
  for (int64_t s = 0; s < supers; s++, x += SUPER, offset += SUPER / 4) {
    int16_t from[SUPER];
    memcpy(from, x, sizeof from);
    if (of_four_bits(format)) {
      arrange_bytes(format, from, (int8_t *)x, offset);
      continue;
    }
    for (int i = 0; i < SUPER; i++) x[i] = from[i / GROUP * GROUP + 2 * (i % 16) + i / 16 % 2];
    for (int i = 0; offset_of(format) && i < 2 * GROUPS; i++) { /* halves of groups: as `times` and `more` */
      int32_t sum = 0;
      for (int j = 0; j < GROUP / 2; j++) sum += from[(i / 8 * 4 + i % 4) * GROUP + i / 4 % 2 * 16 + j];
      offset[i] = -offset_of(format) * sum;
    }
  }
}
#endif
