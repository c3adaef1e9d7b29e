/* Prints what the compiled kernels make of numbers that are the same everywhere: a line for each call, with a hash of its outputs'
   bits, at each level. Run on two machines, or on one and a model of another, it must print the same. */
#include <stdio.h>
#include <stdlib.h>

#include "native.h"

static uint64_t state;
static uint32_t next(void) { /* splitmix64 */
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return (uint32_t)(z >> 32 ^ z >> 1);
}
static float number(void) { return (float)((int32_t)next() >> 8) * 0x1p-20f; } /* up to 8, exactly */
static uint16_t small_half(void) { return (uint16_t)(0x1000 | (next() & 0x8BFF)); } /* about 0.001, of either sign */

static uint64_t hash(const void *p, size_t bytes) { /* FNV-1a */
  uint64_t h = 0xCBF29CE484222325;
  for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)p)[i]) * 0x100000001B3;
  return h;
}

static void *room(size_t bytes) {
  void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (!p) exit(3);
  memset(p, 0, bytes);
  return p;
}

/* Bytes of 256 columns of GGUF types, and where their fp16 numbers are in each block. */
static const struct {
  int bytes, columns, at[2];
} LAYOUT[FORMATS] = {[Q8_0] = {34, 32, {0, 0}},  [Q4_0] = {18, 32, {0, 0}},  [Q4_K] = {144, 256, {0, 2}}, [Q5_K] = {176, 256, {0, 2}},
                     [Q6_K] = {210, 256, {208, 208}}, [Q4_1] = {20, 32, {0, 2}}, [Q5_0] = {22, 32, {0, 0}}, [Q5_1] = {24, 32, {0, 2}},
                     [Q3_K] = {110, 256, {108, 108}}};

enum { ANY, EXTREME }; /* numbers: random, or those whose sums are the largest */

static void multiply(int format, int64_t rows, int64_t columns, int64_t n, int terms, int x_type, int out_type, int tried, int what) {
  state = (uint64_t)(format * 1000003 + rows * 1009 + columns);
  const int own = format == INT8 || format == INT4;
  int64_t row_bytes = 2 * columns, held = format == INT4 ? (columns + 63) / 64 * 64 : columns;
  if (own) row_bytes = format == INT8 ? columns : held / 2 + held / 64;
  else if (!is_plain(format)) row_bytes = columns / LAYOUT[format].columns * LAYOUT[format].bytes;
  uint8_t *weights = room((size_t)(rows * row_bytes + 32768)); /* as behind a layer's last row others lie */
  float *scale = room((size_t)rows * 4), *x = room((size_t)(n * columns) * 4), *out = room((size_t)(n * rows) * 4);
  for (int64_t i = 0; i < rows * row_bytes; i++) weights[i] = (uint8_t)next();
  if (what == EXTREME) /* of Q6_K numbers of -32 (all bits 0), scales of -128 */
    for (int64_t i = 0; i < rows * row_bytes; i++) weights[i] = format == Q6_K ? (i % 210 < 192 ? 0 : 0x80) : i % 2 ? 0x80 : 0x7F;
  for (int64_t i = 0; own && i < rows; i++) scale[i] = number() * 0x1p-10f;
  for (int64_t i = 0; is_plain(format) && i < rows * columns; i++) {
    const uint16_t half = small_half();
    memcpy(weights + 2 * i, &half, 2);
  }
  for (int64_t i = 0; !own && !is_plain(format) && i < rows * row_bytes; i += LAYOUT[format].bytes)
    for (int k = 0; k < 2; k++) {
      const uint16_t half = small_half();
      memcpy(weights + i + LAYOUT[format].at[k], &half, 2);
    }
  for (int64_t i = 0; i < n * columns; i++) x[i] = what == EXTREME ? 3.0f : number() * (i % 97 == 3 ? 100 : 1);
  for (int64_t i = 0; x_type && i < n * columns; i++) ((uint16_t *)x)[i] = (uint16_t)(next() & 0xBFFF); /* below 2 */
  Matrix m = {format, weights, row_bytes, rows, own ? scale : NULL, (held + SUPER - 1) / SUPER, rows};
  void *outs[1] = {out};
  const int64_t bytes = es_linear(&m, 1, columns, x, x_type, n, 0, tried, terms, outs, out_type, 2, NULL, 0);
  es_linear(&m, 1, columns, x, x_type, n, 0, tried, terms, outs, out_type, 2, room((size_t)bytes), bytes);
  printf("matmul %d %dx%d n=%d terms=%d type=%d,%d %s%s: %016llx\n", format, (int)rows, (int)columns, (int)n, terms, x_type,
         out_type, tried ? "side by side" : "", what ? "extreme" : "", (unsigned long long)hash(out, (size_t)(n * rows) * (out_type ? 2 : 4)));
  if (is_plain(format) || n > 1) return;
  float *numbers = room((size_t)(rows * columns) * 4);
  m.out_stride = columns;
  es_dense(&m, columns, numbers, x_type == 2, 2);
  printf("numbers %d: %016llx\n", format, (unsigned long long)hash(numbers, (size_t)(rows * columns) * (x_type == 2 ? 2 : 4)));
}

static void attend(int type, int64_t n, int64_t heads, int64_t kv_heads, int64_t e, int64_t shared, int64_t window) {
  state = (uint64_t)(type * 31 + n * 1009 + e);
  const int64_t own = n + 8, span = n + 1;
  uint16_t *many[7]; /* q, k, v, own k, own v, new k, new v */
  const int64_t sizes[7] = {n * heads * e,         kv_heads * shared * e, kv_heads * shared * e, kv_heads * own * e,
                            kv_heads * own * e,    n * kv_heads * e,      n * kv_heads * e};
  for (int k = 0; k < 7; k++) {
    many[k] = room((size_t)sizes[k] * 4 + 64);
    for (int64_t i = 0; i < sizes[k]; i++)
      if (type) many[k][i] = type == 1 ? (uint16_t)(next() & 0xBFFF) : (uint16_t)(0x3C00 | (next() & 0x83FF));
      else ((float *)many[k])[i] = number();
  }
  float *out = room((size_t)sizes[0] * 4);
  int32_t *place = room((size_t)(n * span) * 4);
  int64_t *position = room((size_t)n * 8);
  for (int64_t r = 0; r < n; r++) { /* a chain whose rows lie where they came */
    position[r] = shared + r;
    for (int64_t i = 0; i < span; i++) place[r * span + i] = (int32_t)(i <= r ? i : r);
  }
  Attention a = {.type = type, .q = many[0], .out = out, .n = n, .heads = heads, .kv_heads = kv_heads, .e = e, .q_stride = heads * e,
                 .k = many[1], .v = many[2], .head_stride = shared * e, .shared = shared, .own_k = many[3], .own_v = many[4],
                 .own_stride = own * e, .own = own, .new_k = many[5], .new_v = many[6], .new_stride = kv_heads * e, .place = place,
                 .span = span, .position = position, .window = window, .scale = 0.125f};
  const int64_t bytes = es_attend(&a, 1, 2, NULL, 0);
  es_attend(&a, 1, 2, room((size_t)bytes), bytes);
  printf("attention type=%d n=%d heads=%d/%d e=%d window=%d: %016llx\n", type, (int)n, (int)heads, (int)kv_heads, (int)e, (int)window,
         (unsigned long long)hash(out, (size_t)sizes[0] * (type ? 2 : 4)));
}

int main(void) {
  const int best = es_level(1 << 30);
  static const int64_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 67};
  for (int level = 0; level <= best; level++) {
    if (es_level(level) != level) continue; /* not every CPU has AVX2 with VNNI that has more */
    printf("level %d\n", level);
    for (int format = 0; format <= BFLOAT; format++)
      for (int i = 0; i < (int)(sizeof counts / sizeof *counts); i++) {
        const int blocks = !is_plain(format) && LAYOUT[format].columns == 256; /* no row is a part of one */
        multiply(format, 19, 768, counts[i], 1, 0, 0, 0, ANY);
        const int64_t cut = format == INT4 ? 576 : format == INT8 || is_plain(format) ? 300 : 288;
        multiply(format, 9, blocks ? 768 : cut, counts[i], 1, 2, 2, 0, ANY);
        multiply(format, 17, blocks ? 512 : 320, counts[i], 1, 1, 1, 0, ANY);
        if (is_plain(format)) continue;
        multiply(format, 5, 256, counts[i], 2, 0, 0, 0, ANY);
        multiply(format, 18, 512, counts[i], 1, 0, 0, 1 + 2 * (level < AVX512 ? level : AVX2), ANY); /* side by side, also few rows */
        multiply(format, 3, 512, counts[i], 1, 0, 0, 0, EXTREME);
      }
    for (int type = 0; type < 3; type++) {
      attend(type, 1, 4, 2, 64, 128, 0);
      attend(type, 7, 6, 2, 40, 64, 0);
      attend(type, 33, 4, 4, 128, 192, 50);
    }
  }
  return 0;
}
