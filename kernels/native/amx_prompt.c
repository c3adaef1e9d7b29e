/* A prompt's rows of bf16 times low-bit weights on AMX. Weights are decoded to bf16, as es_dense rounds them, 32 rows of a
   chunk of columns at a time, which then serve all rows of x from the first cache; that chunk of x serves all of the task's
   weights from the second one. Products are summed in fp32, in an order that depends neither on the number of rows nor on
   threads, but is not that of a tree's rows. */
#include "native.h"

#ifdef HAS_AMX
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,amx-tile,amx-bf16")
#include "turned.h"

#define CHUNK 2                        /* supers */
#define STEPS (CHUNK * GROUPS)         /* of 32 columns */
#define PAIR (2 * TILE_ROWS)           /* rows of weights that are decoded together; of x, that are multiplied together */
#define TILE 1024                      /* bytes */
#define PAIR_BYTES (2 * STEPS * TILE)  /* of a chunk */

int amx_prompt_allowed(void) { return es_level(-1) == AMX && __builtin_cpu_supports("avx512bf16"); }

static int64_t pairs_of(int64_t n) { return (n + PAIR - 1) / PAIR; }
static int64_t chunks_of(int64_t supers) { return (supers + CHUNK - 1) / CHUNK; }

int64_t amx_prompt_rows(int64_t n) { return pairs_of(n) * PAIR; }
int64_t amx_prompt_packed(int64_t n, int64_t supers) { return chunks_of(supers) * pairs_of(n) * PAIR_BYTES; }
int64_t amx_prompt_room(void) { return PAIR_BYTES + GROUPS * (int64_t)sizeof(Group); }

/* Where a group of columns is stored: int4's supers have 128 of each half. -1: nowhere. */
static int64_t place_of(int format, int64_t group, int64_t columns) {
  const int64_t half = (columns + 63) / 64;
  if (format != INT4) return group;
  const int64_t in = group < half ? group : group - half;
  return in / 4 * GROUPS + in % 4 + (group < half ? 0 : 4);
}

/* PAIR rows of x [n][columns] bf16 -> [chunks][pairs][2][STEPS][16 rows][32 columns], in the order of turned.h. */
void amx_prompt_pack(int format, const uint16_t *x, int64_t n, int64_t columns, int64_t supers, int64_t pair, void *packed) {
  const int64_t pairs = pairs_of(n), groups = (columns + GROUP - 1) / GROUP;
  for (int64_t c = 0; c < chunks_of(supers); c++) memset((uint8_t *)packed + (c * pairs + pair) * PAIR_BYTES, 0, PAIR_BYTES);
  for (int64_t i = 0; i < PAIR && pair * PAIR + i < n; i++)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t left = columns - g * GROUP, at = place_of(format, g, columns);
      const __mmask32 some = left < GROUP ? (1u << left) - 1 : ~0u;
      const __m512i v = _mm512_maskz_loadu_epi16(some, x + (pair * PAIR + i) * columns + g * GROUP);
      uint8_t *to = (uint8_t *)packed + (at / STEPS * pairs + pair) * PAIR_BYTES;
      _mm512_store_si512(to + (i / 16 * STEPS + at % STEPS) * TILE + i % 16 * 64, in_order(v));
    }
}

/* Numbers of two columns, rounded and beside each other. */
INLINE void put_pair(uint8_t *to, __m512 even, __m512 odd) {
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                          20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_store_si512(to, _mm512_permutexvar_epi16(places, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}

/* The numbers times their factors, less the minima: [16 pairs][16 rows][2]. */
INLINE void dense(int format, const Group *w, uint8_t *to) {
  const __m512 factor = _mm512_load_ps(w->factor), minimum = _mm512_load_ps(w->minimum);
  for (int k = 0; k < 8 && in_bytes(format); k++) {
    const __m512i v = _mm512_load_si512(w->numbers + 64 * k), low = _mm512_load_si512(w->numbers + 512 + 64 * k);
    __m512 number[4];
    for (int c = 0; c < 4; c++) {
      __m512i n = _mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * c), 24);
      if (format == Q6_K)
        n = _mm512_add_epi32(_mm512_slli_epi32(n, 8), _mm512_srai_epi32(_mm512_slli_epi32(low, 24 - 8 * c), 24));
      number[c] = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(n));
    }
    put_pair(to + 128 * k, number[0], number[2]);
    put_pair(to + 128 * k + 64, number[1], number[3]);
  }
  for (int k = 0; k < 16 && !in_bytes(format); k++) {
    const __m512i v = _mm512_load_si512(w->numbers + 64 * k);
    __m512 number[2] = {_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
                        _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xFFFF0000)))};
    for (int c = 0; c < 2; c++) {
      if (format == INT4) number[c] = _mm512_mul_ps(minimum, number[c]);
      number[c] = _mm512_mul_ps(factor, number[c]);
      if (has_minima(format)) number[c] = _mm512_sub_ps(number[c], minimum);
    }
    put_pair(to + 64 * k, number[0], number[1]);
  }
}

#define WRITTEN __asm__ volatile("" ::: "memory") /* compilers do not know what tiles read and write */

/* out [32 rows of x][32 of weights] += a chunk's products. */
INLINE void multiply(const uint8_t *x, const uint8_t *w, int64_t steps, int first, float *out, int64_t stride) {
  WRITTEN;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, out, 4 * stride);
    _tile_loadd(1, out + TILE_ROWS, 4 * stride);
    _tile_loadd(2, out + 16 * stride, 4 * stride);
    _tile_loadd(3, out + 16 * stride + TILE_ROWS, 4 * stride);
  }
  for (int64_t s = 0; s < steps; s++, x += TILE, w += TILE) {
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + STEPS * TILE, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + STEPS * TILE, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, 4 * stride);
  _tile_stored(1, out + TILE_ROWS, 4 * stride);
  _tile_stored(2, out + 16 * stride, 4 * stride);
  _tile_stored(3, out + 16 * stride + TILE_ROWS, 4 * stride);
  WRITTEN;
}

INLINE void prompt(const Matmul *m, int format, int64_t first, int64_t last, void *room) {
  Tiles shape = {.palette = 1};
  for (int t = 0; t < 8; t++) shape.rows[t] = 16, shape.colsb[t] = 64;
  _tile_loadconfig(&shape);
  uint8_t *numbers = room; /* [2][STEPS][TILE] */
  Group *groups = (Group *)(numbers + PAIR_BYTES);
  const int64_t pairs = pairs_of(m->n), span = m->row_bytes / m->supers;
  for (int64_t s0 = 0; s0 < m->supers; s0 += CHUNK) {
    const int64_t count = m->supers - s0 < CHUNK ? m->supers - s0 : CHUNK;
    for (int64_t w = first; w < last; w += PAIR) {
      for (int64_t t = 0; t < 2; t++) {
        const Sixteen rows = sixteen(m, w + t * TILE_ROWS, last);
        for (int64_t s = 0; s < count; s++) {
          for (int l = 0; l < TILE_ROWS; l++) fetch(rows.row[l] + PAIR * m->row_bytes + (s0 + s) * span, span); /* the next ones' */
          turn(format, &rows, s0 + s, groups, 1);
          for (int g = 0; g < GROUPS; g++) dense(format, groups + g, numbers + (t * STEPS + s * GROUPS + g) * TILE);
        }
      }
      for (int64_t p = 0; p < pairs; p++)
        multiply((const uint8_t *)m->packed + (s0 / CHUNK * pairs + p) * PAIR_BYTES, numbers, count * GROUPS, !s0,
                 (float *)m->out + p * PAIR * m->out_stride + w, m->out_stride);
    }
  }
  _tile_release();
}

#define CASE(which) \
  case which: prompt(m, which, first, last, room); return;

void amx_prompt(const Matmul *m, int64_t first, int64_t last, void *room) {
  switch (m->format) {
    LOW_BIT(CASE)
  }
}
#endif
