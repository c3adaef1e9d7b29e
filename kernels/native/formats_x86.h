/* formats.h's decoding where AVX2 can be relied on: the same numbers, bit for bit, without hoping for what a compiler
   makes of the loops. */
#pragma once

#include "formats.h"

INLINE float x86_half(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return _cvtsh_ss(h);
}

INLINE __m256i bytes32(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

#ifdef BYTES /* the includer multiplies bytes: number[256] holds their low digits, 256 bytes, then their high ones */
INLINE void digits_of(__m512i v, void *low, void *high) { /* 32 int16 numbers, as low + 256 * high */
  _mm256_storeu_si256(low, _mm512_cvtepi16_epi8(v));
  v = _mm512_srai_epi16(_mm512_add_epi16(v, _mm512_set1_epi16(128)), 8);
  _mm256_storeu_si256(high, _mm512_cvtepi16_epi8(v));
}
INLINE void put_digits(Decoded *out, int at, __m512i v) {
  int8_t *to = (int8_t *)out->number + at;
  digits_of(v, to, to + SUPER);
}
INLINE void put(Decoded *out, int at, __m256i v) { _mm256_store_si256((__m256i *)((int8_t *)out->number + at), v); }
INLINE void put_times(Decoded *out, int at, __m256i v, int a, int b) {
  __m512i factors = _mm512_inserti64x4(_mm512_set1_epi16((short)a), _mm256_set1_epi16((short)b), 1);
  put_digits(out, at, _mm512_mullo_epi16(_mm512_cvtepi8_epi16(v), factors));
}
INLINE void portably(Decoded *out) {
  int16_t number[SUPER];
  memcpy(number, out->number, sizeof number);
  for (int j = 0; j < SUPER; j += 32) put_digits(out, j, _mm512_loadu_si512(number + j));
}
#else
/* 32 int8 numbers, or bytes below 128. */
INLINE void put(Decoded *out, int at, __m256i v) {
  __m256i *to = (__m256i *)(out->number + at);
  _mm256_store_si256(to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v)));
  _mm256_store_si256(to + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1)));
}

/* The same, those of each 16 times a factor. */
INLINE void put_times(Decoded *out, int at, __m256i v, int a, int b) {
  __m256i *to = (__m256i *)(out->number + at);
  __m256i low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v));
  __m256i high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(v, 1));
  _mm256_store_si256(to, _mm256_mullo_epi16(low, _mm256_set1_epi16((short)a)));
  _mm256_store_si256(to + 1, _mm256_mullo_epi16(high, _mm256_set1_epi16((short)b)));
}
/* What formats.h decoded, as the includer wants it. */
INLINE void portably(Decoded *out) { (void)out; }
#endif

INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
INLINE __m256i minus(__m256i v, int n) { return _mm256_sub_epi8(v, _mm256_set1_epi8((char)n)); }
/* Bits `at` and `at` + 1 of each byte, moved to bits 4 and 5. */
INLINE __m256i two_bits(__m256i v, int at) {
  __m256i moved = at < 4 ? _mm256_slli_epi16(v, 4 - at) : _mm256_srli_epi16(v, at - 4);
  return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}
INLINE __m256i one_bit(__m256i v, int at) { return _mm256_and_si256(two_bits(v, at), _mm256_set1_epi8(0x10)); }

INLINE void x86_int8(const Row *r, int64_t s, Decoded *out) {
  if (clip(r->columns - s * SUPER, SUPER) < SUPER) {
    decode_int8(r, s, out);
    portably(out);
    return;
  }
  for (int j = 0; j < SUPER; j += 32) put(out, j, bytes32(r->row + s * SUPER + j));
  _mm256_storeu_ps(out->factor, _mm256_set1_ps(r->scale));
}

INLINE void x86_int4(const Row *r, int64_t s, Decoded *out) {
  int64_t groups = (r->columns + 63) / 64; /* groups of 32 in each half */
  int some = clip(groups - 4 * s, 4);
#ifndef BYTES
  if (some < 4) {
    decode_int4(r, s, out);
    return;
  }
#endif
  const int8_t *m = (const int8_t *)r->row + groups * 32, *a = m + 2 * s;
  for (int g = 0; g < some; g++) {
    __m256i v = bytes32(r->row + s * 128 + 32 * g);
    int b = m[(groups + 4 * s + g) / 2];
#ifdef BYTES /* the multipliers apart, in `minimum` */
    put(out, 32 * g, minus(low_nibbles(v), 8));
    put(out, 128 + 32 * g, minus(high_nibbles(v), 8));
    out->minimum[g] = a[g / 2], out->minimum[4 + g] = b;
#else
    put_times(out, 32 * g, minus(low_nibbles(v), 8), a[g / 2], a[g / 2]);
    put_times(out, 128 + 32 * g, minus(high_nibbles(v), 8), b, b);
#endif
  }
#ifdef BYTES
  for (int g = some; g < 4; g++) {
    put(out, 32 * g, _mm256_setzero_si256());
    put(out, 128 + 32 * g, _mm256_setzero_si256());
    out->minimum[g] = out->minimum[4 + g] = 0;
  }
#endif
  _mm256_storeu_ps(out->factor, _mm256_set1_ps(r->scale));
}

/* int4's multipliers of eight groups: one for two groups, of each half; the second half may begin within such a pair. */
INLINE __m256i times_of_int4(const int8_t *m, int64_t s, int64_t groups, int some) {
  const int8_t *low = m + 2 * s, *high = m + (groups + 4 * s) / 2;
  if (some < 4) {
    int32_t times[GROUPS] = {0};
    for (int g = 0; g < some; g++) times[g] = low[g / 2], times[4 + g] = high[(groups % 2 + g) / 2];
    return bytes32(times);
  }
  uint16_t a, b;
  memcpy(&a, low, 2);
  memcpy(&b, high, 2);
  uint64_t bytes = a | (uint64_t)b << 16 | (uint64_t)(groups % 2 ? (uint8_t)high[2] : 0) << 32;
  __m128i place = _mm_cvtsi64_si128(groups % 2 ? 0x0403030201010000 : 0x0303020201010000);
  return _mm256_cvtepi8_epi32(_mm_shuffle_epi8(_mm_cvtsi64_si128((int64_t)bytes), place));
}

/* Eight fp16 numbers, `stride` bytes apart. */
INLINE __m256 eight_halves(const uint8_t *p, int stride) {
  uint64_t bits[2] = {0, 0};
  for (int g = 0; g < 8; g++) {
    uint16_t h;
    memcpy(&h, p + g * stride, 2);
    bits[g / 4] |= (uint64_t)h << 16 * (g % 4);
  }
  return _mm256_cvtph_ps(_mm_set_epi64x((int64_t)bits[1], (int64_t)bits[0]));
}

INLINE void x86_q8_0(const Row *r, int64_t s, Decoded *out) {
  if (clip(r->columns / GROUP - s * GROUPS, GROUPS) < GROUPS) {
    decode_q8_0(r, s, out);
    portably(out);
    return;
  }
  const uint8_t *block = r->row + s * GROUPS * 34;
  _mm256_storeu_ps(out->factor, eight_halves(block, 34));
  for (int g = 0; g < GROUPS; g++) put(out, 32 * g, bytes32(block + 34 * g + 2));
}

INLINE void x86_scales_k(const uint8_t *block, Decoded *out) {
  const __m128i all = _mm_loadu_si128((const __m128i *)block), six = _mm_srli_si128(all, 4);
  __m128i low = _mm_shuffle_epi32(six, 0x98); /* bytes 0-3, 8-11, 4-7, 8-11 */
  __m128i high = _mm_shuffle_epi32(six, 0x50); /* 0-3, 0-3, 4-7, 4-7 */
  low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                      _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F));
  high = _mm_and_si128(_mm_srli_epi32(high, 2), _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
  const __m128i bytes = _mm_or_si128(low, high); /* eight factors, then eight minima */
  const __m128 d = _mm_cvtph_ps(all); /* of the factors, of the minima */
  const __m256 factors = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  const __m256 minima = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
  _mm256_storeu_ps(out->factor, _mm256_mul_ps(factors, _mm256_broadcastss_ps(d)));
  _mm256_storeu_ps(out->minimum, _mm256_mul_ps(minima, _mm256_broadcastss_ps(_mm_movehdup_ps(d))));
}

INLINE void x86_q4_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 144;
  x86_scales_k(block, out);
  for (int c = 0; c < 4; c++) {
    __m256i v = bytes32(block + 16 + 32 * c);
    put(out, 64 * c, low_nibbles(v));
    put(out, 64 * c + 32, high_nibbles(v));
  }
}

INLINE void x86_q5_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 176;
  __m256i high = bytes32(block + 16);
  x86_scales_k(block, out);
  for (int c = 0; c < 4; c++) {
    __m256i v = bytes32(block + 48 + 32 * c);
    put(out, 64 * c, _mm256_or_si256(low_nibbles(v), one_bit(high, 2 * c)));
    put(out, 64 * c + 32, _mm256_or_si256(high_nibbles(v), one_bit(_mm256_srli_epi16(high, 1), 2 * c)));
  }
}

INLINE void x86_q6_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 210;
  const int8_t *scale = (const int8_t *)block + 192;
  for (int h = 0; h < 2; h++, scale += 8) {
    __m256i a = bytes32(block + 64 * h), b = bytes32(block + 64 * h + 32), high = bytes32(block + 128 + 32 * h);
      put_times(out, 128 * h, minus(_mm256_or_si256(low_nibbles(a), two_bits(high, 0)), 32), scale[0], scale[1]);
    put_times(out, 128 * h + 32, minus(_mm256_or_si256(low_nibbles(b), two_bits(high, 2)), 32), scale[2], scale[3]);
    put_times(out, 128 * h + 64, minus(_mm256_or_si256(high_nibbles(a), two_bits(high, 4)), 32), scale[4], scale[5]);
    put_times(out, 128 * h + 96, minus(_mm256_or_si256(high_nibbles(b), two_bits(high, 6)), 32), scale[6], scale[7]);
  }
  _mm256_storeu_ps(out->factor, _mm256_set1_ps(x86_half(block + 208)));
}

/* 32 bits as bytes, 16 for each that is set. */
INLINE __m256i fifth_bits(const uint8_t *p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  const __m256i place = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i one = _mm256_set1_epi64x((long long)0x8040201008040201);
  const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), place), one);
  return _mm256_and_si256(_mm256_cmpeq_epi8(set, one), _mm256_set1_epi8(16));
}

INLINE void x86_block(const Row *r, int64_t s, Decoded *out, int adds, int five) {
  if (clip(r->columns / GROUP - s * GROUPS, GROUPS) < GROUPS) {
    decode_block(r, s, out, adds, five);
    portably(out);
    return;
  }
  const int bytes = group_bytes(adds, five);
  const uint8_t *block = r->row + s * GROUPS * bytes;
  _mm256_storeu_ps(out->factor, eight_halves(block, bytes));
  if (adds) _mm256_storeu_ps(out->minimum, _mm256_xor_ps(eight_halves(block + 2, bytes), _mm256_set1_ps(-0.0f)));
  for (int g = 0; g < GROUPS; g++, block += bytes) {
    const uint8_t *q = block + bytes - 16;
    const __m128i v = _mm_loadu_si128((const __m128i *)q);
    __m256i number = low_nibbles(_mm256_set_m128i(_mm_srli_epi16(v, 4), v));
    if (five) number = _mm256_or_si256(number, fifth_bits(q - 4));
    put(out, 32 * g, minus(number, group_middle(adds, five)));
  }
}
INLINE void x86_q4_0(const Row *r, int64_t s, Decoded *out) { x86_block(r, s, out, 0, 0); }
INLINE void x86_q4_1(const Row *r, int64_t s, Decoded *out) { x86_block(r, s, out, 1, 0); }
INLINE void x86_q5_0(const Row *r, int64_t s, Decoded *out) { x86_block(r, s, out, 0, 1); }
INLINE void x86_q5_1(const Row *r, int64_t s, Decoded *out) { x86_block(r, s, out, 1, 1); }

INLINE void x86_q3_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 110, *scales = block + 96;
  const __m256i third = bytes32(block);
#pragma GCC unroll 8
  for (int g = 0; g < GROUPS; g++) {
    const __m256i two = _mm256_and_si256(_mm256_srli_epi16(bytes32(block + 32 + g / 4 * 32), g % 4 * 2), _mm256_set1_epi8(3));
    const __m256i four = _mm256_and_si256(g < 2 ? _mm256_slli_epi16(third, 2 - g) : _mm256_srli_epi16(third, g - 2), _mm256_set1_epi8(4));
    put_times(out, 32 * g, minus(_mm256_or_si256(two, four), 4), q3_k_scale(scales, 2 * g), q3_k_scale(scales, 2 * g + 1));
  }
  _mm256_storeu_ps(out->factor, _mm256_set1_ps(x86_half(block + 108)));
}

/* Of rows.inc's eight sums, side by side. */
INLINE float eight_total(__m256 v) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); /* 0+4 1+5 2+6 3+7 */
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
