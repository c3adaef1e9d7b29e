/* Two rows of weights at a time, 256 columns, decoded into registers for AVX-512 VNNI: bytes without a sign, in vectors that
   hold those of four groups, so that little is left to add up when they were multiplied. */
#pragma once

#include "formats_x86.h"
#include "native.h"

/* 256 columns of two rows of weights. */
typedef struct {
  __m512i bytes[2][4];    /* of each row two vectors of a set of four groups, two of the other set; see `place` */
  __m512i times, more;    /* of a group, int4; of its first and second 16 columns, Q6_K */
  __m512 factor, minimum; /* of a group, in the order of `group_at` */
} Pair;

/* The groups of the first set, then of the second, as `turned` leaves them. */
INLINE int group_of(int format, int i) {
  static const uint8_t nibbles[GROUPS] = {0, 2, 1, 3, 4, 6, 5, 7}, twos[GROUPS] = {0, 4, 2, 6, 1, 5, 3, 7},
                       others[GROUPS] = {0, 4, 1, 5, 2, 6, 3, 7};
  return (format == INT4 ? nibbles : format == Q4_K || format == Q5_K ? twos : others)[i];
}

/* Where the q-th eight bytes of the i-th vector are from: a group, and its first column of these. */
INLINE int place(int format, int i, int q, int *column) {
  if (format == Q4_0) { /* all groups; low halves of bytes are columns 0 to 15 */
    *column = i % 2 * 16 + i / 2 * 8;
    return q / 2 + q % 2 * 4;
  }
  *column = 8 * (i % 2 + q / 2 % 2 * 2);
  return group_of(format, i / 2 * 4 + q / 4 * 2 + q % 2);
}

/* The group whose sum is in a lane: two of the first set, two of the second, ... */
INLINE int group_at(int format, int lane) {
  return format == Q4_0 ? lane : group_of(format, lane % 4 / 2 * 4 + lane / 4 * 2 + lane % 2);
}

/* What is stored, and used as a number without a sign, is so much more than the number. */
INLINE int offset_of(int format) {
  return format == INT8 || format == Q8_0 ? 128 : format == Q4_0 || format == INT4 ? 8 : format == Q6_K ? 32 : 0;
}

INLINE __m512i load512(const void *p) { return _mm512_loadu_si512(p); }
INLINE __m512i each(int n) { return _mm512_set1_epi8((char)n); }
INLINE __m512i join(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
INLINE __m256i join16(const uint8_t *a, const uint8_t *b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                 _mm_loadu_si128((const __m128i *)b), 1);
}
INLINE __m512i low_half(__m512i v) { return _mm512_and_si512(v, each(15)); }
INLINE __m512i high_half(__m512i v) { return low_half(_mm512_srli_epi16(v, 4)); }
/* A byte's lower four bits and, above them, bits of another: those of `bits`. */
INLINE __m512i with_bits(__m512i nibble, __m512i high, int bits) {
  return _mm512_and_si512(_mm512_ternarylogic_epi32(each(15), nibble, high, 0xCA), each(bits | 15));
}

/* Four times 32 bytes of a row: of the first and the third bytes 0 to 7, then 16 to 23, of the second and fourth the same;
   then bytes 8 to 15 and 24 to 31. */
INLINE void turned(__m512i first, __m512i second, __m512i *out) {
  out[0] = _mm512_unpacklo_epi64(first, second), out[1] = _mm512_unpackhi_epi64(first, second);
}
INLINE void turned_at(const uint8_t *q, int64_t apart, __m512i *out) { turned(load512(q), load512(q + apart), out); }

/* Of 32 bytes: the first eight of each half, then the other ones. */
INLINE __m256i by_kind(__m256i v) { return _mm256_permute4x64_epi64(v, 0xD8); }

/* Q4_K's and Q5_K's factors and minima. */
INLINE void scales_of(const uint8_t *a, const uint8_t *b, Pair *p) {
  const __m256i all = join16(a, b);
  const __m256i which = _mm256_set1_epi64x(0x0F0F0F0F3F3F3F3F);
  __m256i low = _mm256_shuffle_epi32(all, 0xED); /* bytes 0-3, 8-11, 4-7, 8-11 of the twelve */
  low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4));
  const __m256i high = _mm256_srli_epi32(_mm256_shuffle_epi32(all, 0xA5), 2); /* 0-3, 0-3, 4-7, 4-7 */
  __m256i six = _mm256_and_si256(_mm256_ternarylogic_epi32(which, low, high, 0xCA), _mm256_set1_epi8(63));
  six = _mm256_shuffle_epi8(six, _mm256_broadcastsi128_si256(
                                     _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)));
  six = by_kind(six);
  const __m512 d = _mm512_cvtph_ps(all); /* of the factors, of the minima, ... */
  const __m512 factor = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8), d);
  const __m512 minimum = _mm512_permutexvar_ps(_mm512_setr_epi32(1, 1, 1, 1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9), d);
  p->factor = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(six))), factor);
  p->minimum = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_extracti128_si256(six, 1))), minimum);
}

/* fp16 numbers of two rows' groups, `stride` bytes apart (0: one of all). */
INLINE __m512 factors_of(int format, const uint8_t *a, const uint8_t *b, int stride) {
  uint64_t bits[4] = {0, 0, 0, 0};
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    uint16_t h;
    memcpy(&h, (i < 8 ? a : b) + group_at(format, i % 8) * stride, 2);
    bits[i / 4] |= (uint64_t)h << 16 * (i % 4);
  }
  return _mm512_cvtph_ps(_mm256_setr_epi64x((int64_t)bits[0], (int64_t)bits[1], (int64_t)bits[2], (int64_t)bits[3]));
}

INLINE void pair_of_int8(const Row *r, int64_t s, Pair *p) {
  uint8_t room[SUPER];
#pragma GCC unroll 4
  for (int i = 0; i < 2; i++) {
    const uint8_t *q = whole(r[i].row + s * SUPER, clip(r->columns - s * SUPER, SUPER), SUPER, room);
#pragma GCC unroll 4
    for (int set = 0; set < 2; set++) turned_at(q + 64 * set, 128, p->bytes[i] + 2 * set);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) p->bytes[i][v] = _mm512_xor_si512(p->bytes[i][v], each(128));
  }
}

INLINE void pair_of_int4(const Row *r, int64_t s, Pair *p) {
  uint8_t room[128];
  const int64_t groups = (r->columns + 63) / 64; /* of 32, in each half */
  const int some = clip(groups - 4 * s, 4);
  __m256i times[2];
#pragma GCC unroll 4
  for (int i = 0; i < 2; i++) {
    __m512i v[2];
    turned_at(whole(r[i].row + s * 128, 32 * some, 128, room), 64, v);
#pragma GCC unroll 4
    for (int u = 0; u < 2; u++) p->bytes[i][u] = low_half(v[u]), p->bytes[i][2 + u] = high_half(v[u]);
    times[i] = times_of_int4((const int8_t *)r[i].row + groups * 32, s, groups, some);
  }
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  p->times = _mm512_permutexvar_epi32(order, join(times[0], times[1]));
}

INLINE void pair_of_q8_0(const Row *r, int64_t s, Pair *p) {
  uint8_t room[2][GROUPS * 34];
  const int some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
  const uint8_t *rows[2];
#pragma GCC unroll 4
  for (int i = 0; i < 2; i++) {
    const uint8_t *q = rows[i] = whole(r[i].row + s * sizeof room[i], 34 * some, sizeof room[i], room[i]);
#pragma GCC unroll 4
    for (int set = 0; set < 2; set++, q += 68)
      turned(join(bytes32(q + 2), bytes32(q + 36)), join(bytes32(q + 138), bytes32(q + 172)), p->bytes[i] + 2 * set);
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) p->bytes[i][v] = _mm512_xor_si512(p->bytes[i][v], each(128));
  }
  p->factor = factors_of(Q8_0, rows[0], rows[1], 34);
}

INLINE void pair_of_q4_0(const Row *r, int64_t s, Pair *p) {
  uint8_t room[2][GROUPS * 18];
  const int some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
  const uint8_t *rows[2];
#pragma GCC unroll 4
  for (int i = 0; i < 2; i++) {
    const uint8_t *q = rows[i] = whole(r[i].row + s * sizeof room[i], 18 * some, sizeof room[i], room[i]);
    __m512i v[2];
    turned(join(join16(q + 2, q + 20), join16(q + 38, q + 56)), join(join16(q + 74, q + 92), join16(q + 110, q + 128)), v);
#pragma GCC unroll 4
    for (int u = 0; u < 2; u++) p->bytes[i][2 * u] = low_half(v[u]), p->bytes[i][2 * u + 1] = high_half(v[u]);
  }
  p->factor = factors_of(Q4_0, rows[0], rows[1], 18);
}

INLINE void pair_of_q4_k(const Row *r, int64_t s, Pair *p) {
#pragma GCC unroll 4
  for (int i = 0; i < 2; i++) {
    __m512i v[2];
    turned_at(r[i].row + s * 144 + 16, 64, v);
#pragma GCC unroll 4
    for (int u = 0; u < 2; u++) p->bytes[i][u] = low_half(v[u]), p->bytes[i][2 + u] = _mm512_and_si512(v[u], each(0xF0));
  }
  scales_of(r[0].row + s * 144, r[1].row + s * 144, p);
  /* The second set's bytes are 16 times their numbers. */
  p->factor = _mm512_mul_ps(p->factor, _mm512_broadcast_f32x4(_mm_setr_ps(1, 1, 0x1p-4f, 0x1p-4f)));
}

INLINE void pair_of_q5_k(const Row *r, int64_t s, Pair *p) {
#pragma GCC unroll 4
  for (int i = 0; i < 2; i++) {
    const uint8_t *block = r[i].row + s * 176;
    const __m512i all = _mm512_broadcast_i64x4(bytes32(block + 16)); /* bit g of byte j: column j of group g */
    __m512i v[2], high[2];
    turned_at(block + 48, 64, v);
    turned(all, all, high);
#pragma GCC unroll 4
    for (int u = 0; u < 2; u++) {
      const __m512i first = _mm512_rolv_epi64(high[u], _mm512_setr_epi64(4, 0, 4, 0, 2, 62, 2, 62));
      const __m512i second = _mm512_rolv_epi64(high[u], _mm512_setr_epi64(3, 63, 3, 63, 1, 61, 1, 61));
      p->bytes[i][u] = with_bits(v[u], first, 0x10);
      p->bytes[i][2 + u] = with_bits(_mm512_srli_epi16(v[u], 4), second, 0x10);
    }
  }
  scales_of(r[0].row + s * 176, r[1].row + s * 176, p);
}

INLINE void pair_of_q6_k(const Row *r, int64_t s, Pair *p) {
  const uint8_t *a = r[0].row + s * 210, *b = r[1].row + s * 210;
#pragma GCC unroll 4
  for (int i = 0; i < 2; i++) {
    const uint8_t *block = i ? b : a;
    const __m512i all = load512(block + 128);
    __m512i v[2];
    turned_at(block, 64, v);
#pragma GCC unroll 4
    for (int u = 0; u < 2; u++) {
      const __m512i high = _mm512_permutexvar_epi64(
          _mm512_setr_epi64(u, 4 + u, 2 + u, 6 + u, u, 4 + u, 2 + u, 6 + u), all);
      const __m512i first = _mm512_rolv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2));
      const __m512i second = _mm512_rolv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 62, 62, 62, 62));
      p->bytes[i][u] = with_bits(v[u], first, 0x30);
      p->bytes[i][2 + u] = with_bits(_mm512_srli_epi16(v[u], 4), second, 0x30);
    }
  }
  __m256i times = _mm256_shuffle_epi8(join16(a + 192, b + 192), _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                                                    0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15)));
  times = by_kind(times);
  p->times = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(times));
  p->more = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(times, 1));
  p->factor = factors_of(Q6_K, a + 208, b + 208, 0);
}

/* The s-th 256 columns of two rows. */
INLINE void pair_of(int format, const Row *r, int64_t s, Pair *p) {
  if (format == INT8) pair_of_int8(r, s, p);
  if (format == INT4) pair_of_int4(r, s, p);
  if (format == Q8_0) pair_of_q8_0(r, s, p);
  if (format == Q4_0) pair_of_q4_0(r, s, p);
  if (format == Q4_K) pair_of_q4_k(r, s, p);
  if (format == Q5_K) pair_of_q5_k(r, s, p);
  if (format == Q6_K) pair_of_q6_k(r, s, p);
  if (format == INT8 || format == INT4)
    p->factor = _mm512_insertf32x8(_mm512_set1_ps(r[0].scale), _mm256_set1_ps(r[1].scale), 1);
}
