/* A row of low-bit weights in AVX2's registers, and what multiplies it. */
#pragma once

#include "formats_x86.h"
#include "native.h"

#define LANES 8

/* 256 columns of a row. Bytes, vector 4 * q + c: columns 8 * c to 8 * c + 7 of groups 2 * q, 2 * q + 1, 2 * q + 4 and 2 * q + 5,
   so that sums end up in the order of the groups. Words, 2 * g: the even columns of group g; 2 * g + 1: its odd ones;
   of the rare formats its first columns, and its others. */
typedef struct {
  __m256i number[16];
  __m256 factor, minimum;
  __m256i times; /* int4: of a group; Q6_K: of a group's first 16 columns */
  __m256i more;  /* Q6_K: of the others */
} Numbers;

INLINE int in_bytes(int format) { return format != INT8 && format != Q8_0 && !is_rare(format); }

INLINE int offset_of(int format) { return format == Q4_0 || format == INT4 ? 8 : format == Q6_K ? 32 : 0; }

INLINE __m256i each(int n) { return _mm256_set1_epi16((short)n); }

#ifdef VNNI
/* sum + products of bytes, without sign by with, four at a time; of words two at a time. */
INLINE __m256i times_bytes(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
INLINE __m256i times_words(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
#else
/* Bytes two at a time, in 16 bits. */
INLINE __m256i times_bytes(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b)); }
INLINE __m256i times_words(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
#endif

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

/* Of the rare formats, as they are decoded everywhere. */
INLINE void decoded_of(int format, const Row *r, int64_t s, Numbers *w) {
  Decoded d __attribute__((aligned(64)));
  switch (format) {
    case Q4_1: x86_q4_1(r, s, &d); break;
    case Q5_0: x86_q5_0(r, s, &d); break;
    case Q5_1: x86_q5_1(r, s, &d); break;
    default: x86_q3_k(r, s, &d);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) w->number[i] = bytes32(d.number + 16 * i);
  w->factor = _mm256_loadu_ps(d.factor);
  if (has_minima(format)) w->minimum = _mm256_loadu_ps(d.minimum);
}

/* The same in vectors as `Numbers` has them. */
INLINE void numbers_of(int format, const Row *r, int64_t s, Numbers *w) {
  if (is_rare(format)) {
    decoded_of(format, r, s, w);
    return;
  }
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
