/* The stored encodings, decoded: 256 weights of a row at a time, as int16 numbers in eight groups of 32, with a
   factor and a minimum for each group:

       w = factor * number - minimum

   Block layouts: ggml-common.h for the GGUF types (see gguf_blocks.py), quantize.py for int8 and int4. Plain
   loops: compilers make vectors of them. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "target.h"

#define INLINE static inline __attribute__((always_inline))

#define GROUP 32
#define GROUPS 8
#define SUPER (GROUP * GROUPS) /* weights decoded at a time */

typedef struct {
  int16_t number[SUPER];
  float factor[GROUPS];
  float minimum[GROUPS];
} Decoded;

/* From Q4_1 on: what files hold beside the others, multiplied by NEON, and on x86 by AVX2 alone. The last two: fp16 and bf16. */
enum { INT8, INT4, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, Q4_1, Q5_0, Q5_1, Q3_K, FORMATS, HALF = FORMATS, BFLOAT };

INLINE int is_plain(int format) { return format >= HALF; } /* numbers, nothing to decode */

INLINE int has_minima(int format) { return format == Q4_K || format == Q5_K || format == Q4_1 || format == Q5_1; }

INLINE int is_rare(int format) { return format >= Q4_1 && format < FORMATS; }

static inline float half(const uint8_t *p) { /* fp16, little-endian -> fp32, exactly */
  uint32_t h = (uint32_t)p[0] | (uint32_t)p[1] << 8;
  uint32_t sign = (h & 0x8000) << 16, rest = h & 0x7FFF;
  float f;
  if (rest >= 0x7C00) { /* infinite or NaN */
    uint32_t bits = sign | 0x7F800000 | (rest & 0x3FF) << 13;
    memcpy(&f, &bits, 4);
    return f;
  }
  uint32_t bits = rest << 13;
  memcpy(&f, &bits, 4);
  f *= 0x1p112f; /* moves the exponent's bias from 15 to 127; exact for subnormal numbers too */
  memcpy(&bits, &f, 4);
  bits |= sign;
  memcpy(&f, &bits, 4);
  return f;
}

/* The k-th 256 columns of a row that has `groups` groups of 32 (the last of int8 may be cut: `columns`). */
typedef struct {
  const uint8_t *row;
  int64_t columns;
  float scale; /* of the row: int8, int4 */
} Row;

INLINE int clip(int64_t left, int most) {
  return left < most ? (left < 0 ? 0 : (int)left) : most;
}

/* A row's bytes, or where it ends before them a copy with zeros behind it. */
INLINE const uint8_t *whole(const uint8_t *q, int some, int all, uint8_t *room) {
  if (some == all) return q;
  memset(room, 0, (size_t)all);
  return memcpy(room, q, (size_t)some);
}

INLINE void decode_int8(const Row *r, int64_t s, Decoded *out) {
  const int8_t *q = (const int8_t *)r->row + s * SUPER;
  int n = clip(r->columns - s * SUPER, SUPER);
  if (n == SUPER)
    for (int j = 0; j < SUPER; j++) out->number[j] = q[j];
  else
    for (int j = 0; j < SUPER; j++) out->number[j] = j < n ? q[j] : 0;
  for (int g = 0; g < GROUPS; g++) out->factor[g] = r->scale;
}

/* Byte j holds column j and column K/2 + j: 128 bytes are four groups of each half (quantise_rows in
   activations.h puts x in the same order). After the K/2 bytes: a multiplier for each 64 columns. */
INLINE void decode_int4(const Row *r, int64_t s, Decoded *out) {
  int64_t padded = (r->columns + 63) / 64 * 64, groups = padded / 64; /* groups of 32 in each half */
  const uint8_t *q = r->row + s * 128;
  const int8_t *m = (const int8_t *)r->row + padded / 2;
  int whole = clip(groups - 4 * s, 4);
  for (int g = 0; g < whole; g++) {
    int64_t low = 4 * s + g;
    int16_t a = m[low / 2], b = m[(groups + low) / 2];
    for (int j = 0; j < GROUP; j++) {
      out->number[g * GROUP + j] = (int16_t)(((q[g * GROUP + j] & 15) - 8) * a);
      out->number[(4 + g) * GROUP + j] = (int16_t)(((q[g * GROUP + j] >> 4) - 8) * b);
    }
  }
  for (int g = whole; g < 4; g++) {
    memset(out->number + g * GROUP, 0, 2 * GROUP);
    memset(out->number + (4 + g) * GROUP, 0, 2 * GROUP);
  }
  for (int g = 0; g < GROUPS; g++) out->factor[g] = r->scale;
}

INLINE void decode_q8_0(const Row *r, int64_t s, Decoded *out) {
  int whole = clip(r->columns / GROUP - s * GROUPS, GROUPS);
  const uint8_t *block = r->row + s * GROUPS * 34;
  for (int g = 0; g < whole; g++, block += 34) {
    out->factor[g] = half(block);
    const int8_t *q = (const int8_t *)block + 2;
    for (int j = 0; j < GROUP; j++) out->number[g * GROUP + j] = q[j];
  }
  for (int g = whole; g < GROUPS; g++) {
    out->factor[g] = 0;
    memset(out->number + g * GROUP, 0, 2 * GROUP);
  }
}

/* Q4_0, Q4_1, Q5_0 and Q5_1: a group is a block. A factor, of those with minima what is added (so less a minimum), of five bits
   the fifth ones in four bytes, and 16 bytes of nibbles; without a minimum 0 lies in the middle. */
INLINE int group_bytes(int adds, int five) { return 2 + 2 * adds + 4 * five + 16; }
INLINE int group_middle(int adds, int five) { return adds ? 0 : five ? 16 : 8; }

INLINE void decode_block(const Row *r, int64_t s, Decoded *out, int adds, int five) {
  const int bytes = group_bytes(adds, five), minus = group_middle(adds, five);
  const int whole = clip(r->columns / GROUP - s * GROUPS, GROUPS);
  const uint8_t *block = r->row + s * GROUPS * bytes;
  for (int g = 0; g < whole; g++, block += bytes) {
    const uint8_t *q = block + bytes - 16;
    uint32_t fifth = 0;
    if (five) memcpy(&fifth, q - 4, 4);
    out->factor[g] = half(block);
    if (adds) out->minimum[g] = -half(block + 2);
    for (int j = 0; j < 16; j++) {
      out->number[g * GROUP + j] = (int16_t)(((q[j] & 15) | (fifth >> j & 1) << 4) - minus);
      out->number[g * GROUP + 16 + j] = (int16_t)(((q[j] >> 4) | (fifth >> (16 + j) & 1) << 4) - minus);
    }
  }
  for (int g = whole; g < GROUPS; g++) {
    out->factor[g] = 0;
    if (adds) out->minimum[g] = 0;
    memset(out->number + g * GROUP, 0, 2 * GROUP);
  }
}
INLINE void decode_q4_0(const Row *r, int64_t s, Decoded *out) { decode_block(r, s, out, 0, 0); }
INLINE void decode_q4_1(const Row *r, int64_t s, Decoded *out) { decode_block(r, s, out, 1, 0); }
INLINE void decode_q5_0(const Row *r, int64_t s, Decoded *out) { decode_block(r, s, out, 0, 1); }
INLINE void decode_q5_1(const Row *r, int64_t s, Decoded *out) { decode_block(r, s, out, 1, 1); }

/* Q4_K's and Q5_K's twelve bytes: eight 6-bit factors and eight 6-bit minima. */
INLINE void scales_k(const uint8_t *block, Decoded *out) {
  float d = half(block), m = half(block + 2);
  const uint8_t *p = block + 4;
  for (int g = 0; g < 4; g++) {
    out->factor[g] = d * (float)(p[g] & 63);
    out->minimum[g] = m * (float)(p[4 + g] & 63);
    out->factor[4 + g] = d * (float)((p[8 + g] & 15) | (p[g] >> 6) << 4);
    out->minimum[4 + g] = m * (float)((p[8 + g] >> 4) | (p[4 + g] >> 6) << 4);
  }
}

INLINE void decode_q4_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 144, *q = block + 16;
  scales_k(block, out);
  for (int c = 0; c < 4; c++)
    for (int j = 0; j < 32; j++) {
      out->number[c * 64 + j] = q[c * 32 + j] & 15;
      out->number[c * 64 + 32 + j] = q[c * 32 + j] >> 4;
    }
}

INLINE void decode_q5_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 176, *high = block + 16, *q = block + 48;
  scales_k(block, out);
  for (int c = 0; c < 4; c++)
    for (int j = 0; j < 32; j++) {
      out->number[c * 64 + j] = (int16_t)((q[c * 32 + j] & 15) | (high[j] >> (2 * c) & 1) << 4);
      out->number[c * 64 + 32 + j] = (int16_t)((q[c * 32 + j] >> 4) | (high[j] >> (2 * c + 1) & 1) << 4);
    }
}

/* The int8 scales of 16 weights each are multiplied in: at most 32 * 128, an int16 number. */
INLINE void decode_q6_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 210;
  const int8_t *scale = (const int8_t *)block + 192;
  float d = half(block + 208);
  for (int h = 0; h < 2; h++) {
    const uint8_t *low = block + 64 * h, *high = block + 128 + 32 * h;
    int16_t *n = out->number + 128 * h;
    for (int j = 0; j < 32; j++) {
      n[j] = (int16_t)(((low[j] & 15) | (high[j] & 3) << 4) - 32);
      n[32 + j] = (int16_t)(((low[32 + j] & 15) | (high[j] >> 2 & 3) << 4) - 32);
      n[64 + j] = (int16_t)(((low[j] >> 4) | (high[j] >> 4 & 3) << 4) - 32);
      n[96 + j] = (int16_t)(((low[32 + j] >> 4) | (high[j] >> 6) << 4) - 32);
    }
    for (int c = 0; c < 8; c++)
      for (int j = 0; j < 16; j++) n[16 * c + j] = (int16_t)(n[16 * c + j] * scale[8 * h + c]);
  }
  for (int g = 0; g < GROUPS; g++) out->factor[g] = d;
}

/* Q3_K's scale of 16 weights, 6 bits less 32: four low bits each in eight bytes, then two high bits each in four. */
INLINE int q3_k_scale(const uint8_t *scales, int i) {
  return ((scales[i % 8] >> (i / 8 * 4) & 15) | (scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4) - 32;
}

/* Scales are multiplied in, as Q6_K's. */
INLINE void decode_q3_k(const Row *r, int64_t s, Decoded *out) {
  const uint8_t *block = r->row + s * 110, *q = block + 32;
  const float d = half(block + 108);
  for (int g = 0; g < GROUPS; g++) {
    for (int j = 0; j < GROUP; j++) { /* bit g of byte j: that 4 is not subtracted */
      const int two = q[g / 4 * 32 + j] >> (g % 4 * 2) & 3;
      out->number[g * GROUP + j] = (int16_t)((two - (block[j] >> g & 1 ? 0 : 4)) * q3_k_scale(block + 96, 2 * g + j / 16));
    }
    out->factor[g] = d;
  }
}
