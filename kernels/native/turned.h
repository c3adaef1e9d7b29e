/* Sixteen rows of weights side by side: of each group of 32 columns the numbers, and the rows' factors and minima. Rows are
   turned into columns while their bytes are still packed, four of a row at a time; then every vector holds the same columns
   of sixteen rows. Numbers lie in pairs of columns, [16 pairs][16 rows][2], in the order 0 2, 1 3, 4 6, 5 7, ...: int16 if the
   includer defines WORDS. Else they are made for AMX: bf16, or, where four or five bits are not enough, bytes. */
#pragma once

#include "native.h"

typedef struct {
  uint8_t numbers[1024]; /* as bytes: [8][16 rows][4 columns]; of Q6_K high digits, then low ones (256 * high + low) */
  float factor[TILE_ROWS], minimum[TILE_ROWS]; /* int4: its multipliers are the minima */
} Group;

typedef struct {
  const uint8_t *row[TILE_ROWS];
  __m512i offset; /* of each row, from the first one */
  int64_t columns;
  __m512 scale; /* int8, int4 */
} Sixteen;

/* Rows w to w + 15; those from `last` on are the one before it: what they give is not used. */
static Sixteen sixteen(const Matmul *m, int64_t w, int64_t last) {
  Sixteen r = {.columns = m->columns};
  int32_t offset[TILE_ROWS];
  float scale[TILE_ROWS];
  for (int l = 0; l < TILE_ROWS; l++) {
    const int64_t at = w + l < last ? w + l : last - 1;
    r.row[l] = m->weights + at * m->row_bytes;
    offset[l] = (int32_t)(r.row[l] - r.row[0]);
    scale[l] = m->scale ? m->scale[at] : 1;
  }
  r.offset = _mm512_loadu_si512(offset);
  r.scale = _mm512_loadu_ps(scale);
  return r;
}

/* A group of x in the order of the numbers. */
INLINE __m512i in_order(__m512i x) {
  return _mm512_permutexvar_epi16(_mm512_set_epi16(31, 29, 30, 28, 27, 25, 26, 24, 23, 21, 22, 20, 19, 17, 18, 16, 15, 13, 14,
                                                   12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0), x);
}

INLINE int in_bytes(int format) { return format == INT8 || format == Q8_0 || format == Q6_K; }

INLINE __m512i each16(int n) { return _mm512_set1_epi16((short)n); }
INLINE __m512i each8(int n) { return _mm512_set1_epi8((char)n); }
INLINE __m512i choose(__m512i mask, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xCA); }

/* 16 bytes of each row: v[j] holds bytes 4 j to 4 j + 3 of all rows. */
INLINE void turned(const Sixteen *r, int64_t at, __m512i *v) {
  __m512i l[4];
  for (int i = 0; i < 4; i++) {
    l[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(r->row[i] + at)));
    l[i] = _mm512_mask_broadcast_i32x4(l[i], 0x00F0, _mm_loadu_si128((const __m128i *)(r->row[4 + i] + at)));
    l[i] = _mm512_mask_broadcast_i32x4(l[i], 0x0F00, _mm_loadu_si128((const __m128i *)(r->row[8 + i] + at)));
    l[i] = _mm512_mask_broadcast_i32x4(l[i], 0xF000, _mm_loadu_si128((const __m128i *)(r->row[12 + i] + at)));
  }
  __m512i a = _mm512_unpacklo_epi32(l[0], l[1]), b = _mm512_unpackhi_epi32(l[0], l[1]);
  __m512i c = _mm512_unpacklo_epi32(l[2], l[3]), d = _mm512_unpackhi_epi32(l[2], l[3]);
  v[0] = _mm512_unpacklo_epi64(a, c), v[1] = _mm512_unpackhi_epi64(a, c);
  v[2] = _mm512_unpacklo_epi64(b, d), v[3] = _mm512_unpackhi_epi64(b, d);
}

/* fp16 numbers: the lower halves of v, and those of which each row has one, at byte `at`. */
INLINE __m512 halves_of(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
INLINE __m512 halves_at(const Sixteen *r, int64_t at) {
  return halves_of(_mm512_i32gather_epi32(r->offset, r->row[0] + at, 1));
}

/* The numbers 0 to 31, or 0 to 15 less `less`, twice. */
INLINE __m512i table(int most, int less) {
  uint16_t t[32];
  for (int i = 0; i < 32; i++) {
#ifdef WORDS
    t[i] = (uint16_t)(i % most - less);
#else
    float f = (float)(i % most - less);
    uint32_t bits;
    memcpy(&bits, &f, 4);
    t[i] = (uint16_t)(bits >> 16);
#endif
  }
  return _mm512_loadu_si512(t);
}

INLINE void put(Group *to, int row, __m512i v) { _mm512_store_si512(to->numbers + 64 * row, v); }

/* Four columns of low halves of bytes to tile rows 2 i and 2 i + 1 of `low`, of high halves to those of `high`. */
INLINE void put_nibbles(__m512i v, __m512i numbers, Group *low, Group *high, int i, int j) {
  put(low, 2 * i, _mm512_permutexvar_epi16(v, numbers)); /* takes five bits of each index */
  put(low, 2 * i + 1, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), numbers));
  put(high, 2 * j, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), numbers));
  put(high, 2 * j + 1, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), numbers));
}

/* Of the s-th 256 columns the `some` bytes that there are, and zeros, in `room` [16][288]. */
static Sixteen cut(const Sixteen *r, int64_t at, int some, uint8_t *room) {
  Sixteen c = *r;
  memset(room, 0, TILE_ROWS * 288);
  for (int l = 0; l < TILE_ROWS; l++) c.row[l] = memcpy(room + 288 * l, r->row[l] + at, (size_t)some);
  c.offset = _mm512_mullo_epi32(_mm512_set1_epi32(288), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  return c;
}

INLINE void turn_bytes(const Sixteen *r, int64_t at, int64_t block, Group *to, int64_t stride) {
  for (int g = 0; g < GROUPS; g++)
    for (int p = 0; p < 2; p++) {
      __m512i v[4];
      turned(r, at + g * block + 16 * p, v);
      for (int j = 0; j < 4; j++) {
        const int quad = 4 * p + j;
#ifdef WORDS
        put(to + g * stride, 2 * quad, _mm512_srai_epi16(_mm512_slli_epi16(v[j], 8), 8));
        put(to + g * stride, 2 * quad + 1, _mm512_srai_epi16(v[j], 8));
#else
        put(to + g * stride, quad, v[j]);
#endif
      }
    }
}

static void turn_int8(const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  uint8_t room[TILE_ROWS * 288];
  const int some = clip(r->columns - s * SUPER, SUPER);
  if (some < SUPER) {
    const Sixteen c = cut(r, s * SUPER, some, room);
    turn_bytes(&c, 0, GROUP, to, stride);
  } else {
    turn_bytes(r, s * SUPER, GROUP, to, stride);
  }
  for (int g = 0; g < GROUPS; g++) _mm512_store_ps(to[g * stride].factor, r->scale);
}

static void turn_q8_0(const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  uint8_t room[TILE_ROWS * 288];
  const int some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
  int64_t at = s * GROUPS * 34;
  Sixteen c = *r;
  if (some < GROUPS) c = cut(r, at, some * 34, room), at = 0;
  turn_bytes(&c, at + 2, 34, to, stride);
  for (int g = 0; g < GROUPS; g++) _mm512_store_ps(to[g * stride].factor, halves_at(&c, at + 34 * g));
}

static void turn_q4_0(const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  uint8_t room[TILE_ROWS * 288];
  const __m512i numbers = table(16, 8);
  const int some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
  int64_t at = s * GROUPS * 18;
  Sixteen c = *r;
  if (some < GROUPS) c = cut(r, at, some * 18, room), at = 0;
  for (int g = 0; g < GROUPS; g++) {
    __m512i v[4];
    Group *t = to + g * stride;
    turned(&c, at + 18 * g + 2, v);
    for (int j = 0; j < 4; j++) put_nibbles(v[j], numbers, t, t, j, 4 + j);
    _mm512_store_ps(t->factor, halves_at(&c, at + 18 * g));
  }
}

static void turn_int4(const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  uint8_t room[TILE_ROWS * 288];
  const __m512i numbers = table(16, 8);
  const int64_t groups = (r->columns + 63) / 64; /* of 32, in each half */
  const int some = clip(groups - 4 * s, 4);
  int64_t at = s * 128;
  Sixteen c = *r;
  if (some < 4) c = cut(r, at, some * 32, room), at = 0;
  for (int p = 0; p < 8; p++) {
    __m512i v[4];
    Group *t = to + p / 2 * stride;
    turned(&c, at + 16 * p, v);
    for (int j = 0; j < 4; j++) put_nibbles(v[j], numbers, t, t + 4 * stride, p % 2 * 4 + j, p % 2 * 4 + j);
  }
  int8_t times[5][TILE_ROWS] = {{0}}; /* one for two groups; the second half may begin within such a pair */
  for (int l = 0; l < TILE_ROWS; l++) {
    const int8_t *m = (const int8_t *)r->row[l] + groups * 32, *low = m + 2 * s, *high = m + (groups + 4 * s) / 2;
    if (some == 4) {
      times[0][l] = low[0], times[1][l] = low[1], times[2][l] = high[0], times[3][l] = high[1];
      if (groups % 2) times[4][l] = high[2];
    } else {
      for (int g = 0; g < some; g++) times[g / 2][l] = low[g / 2], times[2 + (groups % 2 + g) / 2][l] = high[(groups % 2 + g) / 2];
    }
  }
  for (int g = 0; g < GROUPS; g++) {
    const int8_t *t = times[g < 4 ? g / 2 : (int)(2 + (groups % 2 + g - 4) / 2)];
    const __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)t)));
    _mm512_store_ps(to[g * stride].minimum, g % 4 < some ? v : _mm512_setzero_ps());
    _mm512_store_ps(to[g * stride].factor, r->scale);
  }
}

/* Q4_K's and Q5_K's first 16 bytes: scales_k of formats.h. */
INLINE void turn_scales(const Sixteen *r, int64_t at, Group *to, int64_t stride) {
  __m512i v[4];
  turned(r, at, v);
  const __m512 d = halves_of(v[0]), m = halves_of(_mm512_srli_epi32(v[0], 16));
  const __m512i six = _mm512_set1_epi32(0x3F3F3F3F), four = _mm512_set1_epi32(0x0F0F0F0F);
  const __m512i factors[2] = {_mm512_and_si512(v[1], six),
                              choose(four, v[3], _mm512_and_si512(_mm512_srli_epi32(v[1], 2), six))};
  const __m512i minima[2] = {_mm512_and_si512(v[2], six),
                             choose(four, _mm512_srli_epi32(v[3], 4), _mm512_and_si512(_mm512_srli_epi32(v[2], 2), six))};
  for (int g = 0; g < GROUPS; g++) {
    __m512i f = _mm512_srli_epi32(factors[g / 4], 8 * (g % 4)), n = _mm512_srli_epi32(minima[g / 4], 8 * (g % 4));
    f = _mm512_and_si512(f, _mm512_set1_epi32(63)), n = _mm512_and_si512(n, _mm512_set1_epi32(63));
    _mm512_store_ps(to[g * stride].factor, _mm512_mul_ps(d, _mm512_cvtepi32_ps(f)));
    _mm512_store_ps(to[g * stride].minimum, _mm512_mul_ps(m, _mm512_cvtepi32_ps(n)));
  }
}

static void turn_q4_k(const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  const __m512i numbers = table(16, 0);
  turn_scales(r, s * 144, to, stride);
  for (int p = 0; p < 8; p++) {
    __m512i v[4];
    Group *t = to + p / 2 * 2 * stride;
    turned(r, s * 144 + 16 + 16 * p, v);
    for (int j = 0; j < 4; j++) put_nibbles(v[j], numbers, t, t + stride, p % 2 * 4 + j, p % 2 * 4 + j);
  }
}

/* Bit `from` of each word, or a bit of its two bytes, at bit 4. */
INLINE __m512i moved(__m512i v, int from) { return from < 4 ? _mm512_slli_epi16(v, 4 - from) : _mm512_srli_epi16(v, from - 4); }

static void turn_q5_k(const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  const __m512i numbers = table(32, 0), fifth = each16(0x10);
  __m512i high[8], v[4];
  turn_scales(r, s * 176, to, stride);
  for (int p = 0; p < 2; p++) turned(r, s * 176 + 16 + 16 * p, high + 4 * p);
#pragma GCC unroll 8
  for (int p = 0; p < 8; p++) {
    Group *t = to + p / 2 * 2 * stride;
    turned(r, s * 176 + 48 + 16 * p, v);
    for (int j = 0; j < 4; j++) {
      const int g = p / 2 * 2, row = 2 * (p % 2 * 4 + j);
      const __m512i h = high[p % 2 * 4 + j];
      put(t, row, _mm512_permutexvar_epi16(choose(fifth, moved(h, g), v[j]), numbers));
      put(t, row + 1, _mm512_permutexvar_epi16(choose(fifth, moved(h, 8 + g), _mm512_srli_epi16(v[j], 8)), numbers));
      put(t + stride, row, _mm512_permutexvar_epi16(choose(fifth, moved(h, g + 1), _mm512_srli_epi16(v[j], 4)), numbers));
      put(t + stride, row + 1,
          _mm512_permutexvar_epi16(choose(fifth, moved(h, 9 + g), _mm512_srli_epi16(v[j], 12)), numbers));
    }
  }
}

/* A number times its scale. */
static void turn_q6_k(const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  const int64_t at = s * 210;
  const __m512i byte = each16(255), less = each16(32);
  __m512i scales[4];
  turned(r, at + 192, scales);
  /* Behind its last two bytes may be no memory. */
  const __m512 d = halves_of(_mm512_srli_epi32(_mm512_i32gather_epi32(r->offset, r->row[0] + at + 206, 1), 16));
  for (int h = 0; h < 2; h++) {
    __m512i high[8], v[4];
    for (int p = 0; p < 2; p++) turned(r, at + 128 + 32 * h + 16 * p, high + 4 * p);
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) {
      turned(r, at + 64 * h + 16 * p, v);
      for (int upper = 0; upper < 2; upper++) {
        const int g = 4 * h + p / 2 + 2 * upper, scale = 2 * g + p % 2;
        Group *t = to + g * stride;
        __m512i factor = _mm512_slli_epi32(scales[scale / 4], 24 - 8 * (scale % 4)); /* its byte first */
        factor = _mm512_srai_epi32(factor, 24);
        factor = _mm512_or_si512(_mm512_and_si512(factor, _mm512_set1_epi32(0xFFFF)), _mm512_slli_epi32(factor, 16));
        for (int j = 0; j < 4; j++) {
          const __m512i bits = moved(high[p % 2 * 4 + j], 2 * (p / 2) + 4 * upper);
          __m512i n = upper ? _mm512_srli_epi16(v[j], 4) : v[j];
          n = choose(each8(15), n, _mm512_and_si512(bits, each8(0x30)));
          __m512i even = _mm512_sub_epi16(_mm512_and_si512(n, byte), less);
          __m512i odd = _mm512_sub_epi16(_mm512_srli_epi16(n, 8), less);
          even = _mm512_mullo_epi16(even, factor), odd = _mm512_mullo_epi16(odd, factor);
          const int quad = p % 2 * 4 + j;
#ifdef WORDS
          put(t, 2 * quad, even), put(t, 2 * quad + 1, odd);
#else
          put(t, 8 + quad, choose(byte, even, _mm512_slli_epi16(odd, 8)));
          even = _mm512_add_epi16(even, each16(128)), odd = _mm512_add_epi16(odd, each16(128));
          put(t, quad, choose(byte, _mm512_srli_epi16(even, 8), odd));
#endif
        }
      }
    }
  }
  for (int g = 0; g < GROUPS; g++) _mm512_store_ps(to[g * stride].factor, d);
}

INLINE void turn(int format, const Sixteen *r, int64_t s, Group *to, int64_t stride) {
  switch (format) {
    case INT8: turn_int8(r, s, to, stride); return;
    case INT4: turn_int4(r, s, to, stride); return;
    case Q8_0: turn_q8_0(r, s, to, stride); return;
    case Q4_0: turn_q4_0(r, s, to, stride); return;
    case Q4_K: turn_q4_k(r, s, to, stride); return;
    case Q5_K: turn_q5_k(r, s, to, stride); return;
    case Q6_K: turn_q6_k(r, s, to, stride); return;
  }
}

/* What is compiled for each format by itself. */
#define LOW_BIT(of) of(INT8) of(INT4) of(Q8_0) of(Q4_0) of(Q4_K) of(Q5_K) of(Q6_K)
