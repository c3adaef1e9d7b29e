/* A row of low-bit weights in NEON's registers: numbers as signed bytes, all formats alike. */
#pragma once

#include "native.h"

/* 256 columns of a row. Vector 2 * g + h: columns 16 * h to 16 * h + 15 of group g. */
typedef struct {
  int8x16_t number[16];
  float32x4_t factor[2], minimum[2]; /* of groups 0 to 3, 4 to 7 */
  int32x4_t times[2], more[2];       /* int4: of a group; Q6_K and Q3_K: of a group's first 16 columns, of the others */
} Numbers;

/* Whether each 16 columns have a factor of their own. */
INLINE int of_sixteen(int format) { return format == Q6_K || format == Q3_K; }

INLINE int with_times(int format) { return format == INT4 || of_sixteen(format); }

INLINE uint8x16_t low_nibbles(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }
INLINE uint8x16_t high_nibbles(uint8x16_t v) { return vshrq_n_u8(v, 4); }
INLINE int8x16_t minus(uint8x16_t v, int n) { return vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8((int8_t)n)); }
/* The bits of `mask`, of bytes that are moved `left` places, or right. */
INLINE uint8x16_t bits_at(uint8x16_t v, int left, int mask) {
  return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)left)), vdupq_n_u8((uint8_t)mask));
}

/* Digits of eight numbers of x, 256 * high + low: high ones, then low ones. */
INLINE int8x16_t eight_digits(const int16_t *x) {
  const int16x8_t v = vld1q_s16(x);
  return vcombine_s8(vrshrn_n_s16(v, 8), vmovn_s16(v)); /* rounded up: what is low is signed */
}

INLINE float32x4_t four_halves(uint16x4_t bits) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }

INLINE float one_half(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return vgetq_lane_f32(four_halves(vdup_n_u16(h)), 0);
}

/* Eight fp16 numbers, `stride` bytes apart. */
INLINE void eight_halves(const uint8_t *p, int stride, float32x4_t *to) {
  for (int q = 0; q < 2; q++) {
    uint64_t bits = 0;
    for (int g = 0; g < 4; g++) {
      uint16_t h;
      memcpy(&h, p + (4 * q + g) * stride, 2);
      bits |= (uint64_t)h << 16 * g;
    }
    to[q] = four_halves(vcreate_u16(bits));
  }
}

/* Q4_K's and Q5_K's eight 6-bit numbers times their own factor. */
INLINE void eight_scales(uint64_t bytes, float factor, float32x4_t *to) {
  const uint16x8_t wide = vmovl_u8(vcreate_u8(bytes));
  to[0] = vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), factor);
  to[1] = vmulq_n_f32(vcvtq_f32_u32(vmovl_high_u16(wide)), factor);
}

INLINE void scales_of(const uint8_t *block, Numbers *w) {
  uint32_t a, b, c;
  memcpy(&a, block + 4, 4), memcpy(&b, block + 8, 4), memcpy(&c, block + 12, 4);
  const uint32_t factors = (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030), minima = (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030);
  eight_scales((a & 0x3F3F3F3F) | (uint64_t)factors << 32, one_half(block), w->factor);
  eight_scales((b & 0x3F3F3F3F) | (uint64_t)minima << 32, one_half(block + 2), w->minimum);
}

/* 16 int8 factors: even ones are of groups' first halves. */
INLINE void sixteen_times(int8x16_t v, Numbers *w) {
  const int16x8_t first = vmovl_s8(vget_low_s8(vuzp1q_s8(v, v))), others = vmovl_s8(vget_low_s8(vuzp2q_s8(v, v)));
  w->times[0] = vmovl_s16(vget_low_s16(first)), w->times[1] = vmovl_high_s16(first);
  w->more[0] = vmovl_s16(vget_low_s16(others)), w->more[1] = vmovl_high_s16(others);
}

/* Q4_0, Q4_1, Q5_0 and Q5_1 (formats.h). */
INLINE void blocks_of(const Row *r, int64_t s, int adds, int five, Numbers *w) {
  uint8_t room[GROUPS * 24];
  const int bytes = group_bytes(adds, five), some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
  const uint8_t *block = whole(r->row + s * GROUPS * bytes, some * bytes, GROUPS * bytes, room);
  eight_halves(block, bytes, w->factor);
  if (adds) {
    eight_halves(block + 2, bytes, w->minimum);
    w->minimum[0] = vnegq_f32(w->minimum[0]), w->minimum[1] = vnegq_f32(w->minimum[1]);
  }
#pragma GCC unroll 8
  for (int g = 0; g < GROUPS; g++, block += bytes) {
    const uint8x16_t q = vld1q_u8(block + bytes - 16);
    uint8x16_t half[2] = {low_nibbles(q), high_nibbles(q)};
    if (five) {
      const uint8_t *fifth = block + bytes - 20;
      const uint8x16_t one = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
      for (int h = 0; h < 2; h++) {
        const uint8x16_t bits = vcombine_u8(vdup_n_u8(fifth[2 * h]), vdup_n_u8(fifth[2 * h + 1]));
        half[h] = vorrq_u8(half[h], vandq_u8(vtstq_u8(bits, one), vdupq_n_u8(16)));
      }
    }
    for (int h = 0; h < 2; h++) w->number[2 * g + h] = minus(half[h], group_middle(adds, five));
  }
}

INLINE void q3_k_of(const uint8_t *block, Numbers *w) {
  int8_t scale[16];
  for (int i = 0; i < 16; i++) scale[i] = (int8_t)q3_k_scale(block + 96, i);
  sixteen_times(vld1q_s8(scale), w);
  w->factor[0] = w->factor[1] = vdupq_n_f32(one_half(block + 108));
#pragma GCC unroll 16
  for (int v = 0; v < 16; v++) {
    const int g = v / 2, h = v % 2;
    const uint8x16_t two = bits_at(vld1q_u8(block + 32 + g / 4 * 32 + 16 * h), -(g % 4 * 2), 3);
    w->number[v] = minus(vorrq_u8(two, bits_at(vld1q_u8(block + 16 * h), 2 - g, 4)), 4);
  }
}

INLINE void q6_k_of(const uint8_t *block, Numbers *w) {
  sixteen_times(vld1q_s8((const int8_t *)block + 192), w);
  w->factor[0] = w->factor[1] = vdupq_n_f32(one_half(block + 208));
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const int half = i / 2, h = i % 2;
    const uint8_t *low = block + 64 * half + 16 * h;
    const uint8x16_t a = vld1q_u8(low), b = vld1q_u8(low + 32), high = vld1q_u8(block + 128 + 32 * half + 16 * h);
    int8x16_t *to = w->number + 8 * half + h;
    to[0] = minus(vorrq_u8(low_nibbles(a), bits_at(high, 4, 0x30)), 32);
    to[2] = minus(vorrq_u8(low_nibbles(b), bits_at(high, 2, 0x30)), 32);
    to[4] = minus(vorrq_u8(high_nibbles(a), bits_at(high, 0, 0x30)), 32);
    to[6] = minus(vorrq_u8(high_nibbles(b), bits_at(high, -2, 0x30)), 32);
  }
}

/* Q4_K, Q5_K: a group's nibbles are the low halves of 32 bytes, the next one's the high halves. */
INLINE void q45_k_of(const uint8_t *block, int five, Numbers *w) {
  scales_of(block, w);
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    const int c = i / 2, h = i % 2;
    const uint8x16_t q = vld1q_u8(block + (five ? 48 : 16) + 32 * c + 16 * h);
    uint8x16_t first = low_nibbles(q), second = high_nibbles(q);
    if (five) { /* bit g of byte j: column j of group g */
      const uint8x16_t fifth = vld1q_u8(block + 16 + 16 * h);
      first = vorrq_u8(first, bits_at(fifth, 4 - 2 * c, 16));
      second = vorrq_u8(second, bits_at(fifth, 3 - 2 * c, 16));
    }
    w->number[4 * c + h] = vreinterpretq_s8_u8(first);
    w->number[4 * c + 2 + h] = vreinterpretq_s8_u8(second);
  }
}

INLINE void int4_of(const Row *r, int64_t s, Numbers *w) {
  uint8_t room[SUPER / 2];
  int32_t times[GROUPS] = {0};
  const int64_t groups = (r->columns + 63) / 64; /* of 32, in each half */
  const int8_t *m = (const int8_t *)r->row + groups * 32;
  const int some = clip(groups - 4 * s, 4);
  const uint8_t *q = whole(r->row + s * 128, 32 * some, 128, room);
  for (int g = 0; g < some; g++) times[g] = m[(4 * s + g) / 2], times[4 + g] = m[(groups + 4 * s + g) / 2];
  w->times[0] = vld1q_s32(times), w->times[1] = vld1q_s32(times + 4);
#pragma GCC unroll 8
  for (int v = 0; v < 8; v++) {
    const uint8x16_t both = vld1q_u8(q + 16 * v);
    w->number[v] = minus(low_nibbles(both), 8), w->number[8 + v] = minus(high_nibbles(both), 8);
  }
}

/* The s-th 256 columns of a row. */
INLINE void numbers_of(int format, const Row *r, int64_t s, Numbers *w) {
  uint8_t room[GROUPS * 34];
  w->factor[0] = w->factor[1] = vdupq_n_f32(r->scale);
  switch (format) {
    case INT8: {
      const uint8_t *q = whole(r->row + s * SUPER, clip(r->columns - s * SUPER, SUPER), SUPER, room);
#pragma GCC unroll 16
      for (int v = 0; v < 16; v++) w->number[v] = vld1q_s8((const int8_t *)q + 16 * v);
      return;
    }
    case Q8_0: {
      const int some = clip(r->columns / GROUP - s * GROUPS, GROUPS);
      const uint8_t *q = whole(r->row + s * GROUPS * 34, some * 34, GROUPS * 34, room);
      eight_halves(q, 34, w->factor);
#pragma GCC unroll 16
      for (int v = 0; v < 16; v++) w->number[v] = vld1q_s8((const int8_t *)q + v / 2 * 34 + 2 + v % 2 * 16);
      return;
    }
    case INT4: int4_of(r, s, w); return;
    case Q4_K: q45_k_of(r->row + s * 144, 0, w); return;
    case Q5_K: q45_k_of(r->row + s * 176, 1, w); return;
    case Q6_K: q6_k_of(r->row + s * 210, w); return;
    case Q3_K: q3_k_of(r->row + s * 110, w); return;
    case Q4_0: blocks_of(r, s, 0, 0, w); return;
    case Q4_1: blocks_of(r, s, 1, 0, w); return;
    case Q5_0: blocks_of(r, s, 0, 1, w); return;
    default: blocks_of(r, s, 1, 1, w);
  }
}

#define EACH_FORMAT(DO) \
  DO(INT8) DO(INT4) DO(Q8_0) DO(Q4_0) DO(Q4_K) DO(Q5_K) DO(Q6_K) DO(Q4_1) DO(Q5_0) DO(Q5_1) DO(Q3_K)
