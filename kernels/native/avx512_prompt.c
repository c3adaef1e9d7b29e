/* A prompt's rows of bf16 times bf16 or low-bit weights, by AVX-512 BF16 or AMX. Weights are decoded to bf16, as es_dense rounds
   them, 32 rows of a chunk of columns at a time, which then serve all rows of x from the first cache; that chunk of x serves all
   of the task's weights from the second one. Products are summed in fp32, in an order that depends neither on the number of rows
   nor on threads, but is not that of a tree's rows. */
#include "native.h"

#ifdef HAS_BF16
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#include "turned.h"

#define STEPS PROMPT_STEPS
#define CHUNK (STEPS / GROUPS)         /* supers */
#define PAIR (2 * TILE_ROWS)           /* rows of weights that are decoded together; of x, that are multiplied together */
#define ROWS 8                         /* of x at a time, by dot products */
#define TILE 1024                      /* bytes */
#define PAIR_BYTES (2 * STEPS * TILE)  /* of a chunk */

static int64_t pairs_of(int64_t n) { return (n + PAIR - 1) / PAIR; }
static int64_t chunks_of(int64_t supers) { return (supers + CHUNK - 1) / CHUNK; }

int64_t prompt_rows(int64_t n) { return pairs_of(n) * PAIR; }
int64_t prompt_packed(const Matmul *m) { return chunks_of(m->supers) * pairs_of(m->n) * PAIR_BYTES; }
int64_t prompt_room(void) { return PAIR_BYTES + GROUPS * (int64_t)sizeof(Group); }

/* Where a group of columns is stored: int4's supers have 128 of each half. -1: nowhere. */
static int64_t place_of(int format, int64_t group, int64_t columns) {
  const int64_t half = (columns + 63) / 64;
  if (format != INT4) return group;
  const int64_t in = group < half ? group : group - half;
  return in / 4 * GROUPS + in % 4 + (group < half ? 0 : 4);
}

/* Every other block: PAIR rows of x [n][columns] bf16 -> [chunks][pairs][2][STEPS][16 rows][32 columns], in the order of
   turned.h; of bf16 as they are. */
void prompt_pack(const Matmul *m, const void *x, int64_t block, void *packed) {
  const int64_t n = m->n, columns = m->columns, pair = block / 2;
  const int64_t pairs = pairs_of(n), groups = (columns + GROUP - 1) / GROUP;
  if (block % 2) return;
  for (int64_t c = 0; c < chunks_of(m->supers); c++) memset((uint8_t *)packed + (c * pairs + pair) * PAIR_BYTES, 0, PAIR_BYTES);
  for (int64_t i = 0; i < PAIR && pair * PAIR + i < n; i++)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t left = columns - g * GROUP, at = place_of(m->format, g, columns);
      const __mmask32 some = left < GROUP ? (1u << left) - 1 : ~0u;
      const __m512i v = _mm512_maskz_loadu_epi16(some, (const uint16_t *)x + (pair * PAIR + i) * columns + g * GROUP);
      uint8_t *to = (uint8_t *)packed + (at / STEPS * pairs + pair) * PAIR_BYTES;
      _mm512_store_si512(to + (i / 16 * STEPS + at % STEPS) * TILE + i % 16 * 64, m->format == BFLOAT ? v : in_order(v));
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

/* Supers [s0, s0 + count) of two times 16 rows of low-bit weights, as numbers [2][STEPS][TILE]. */
INLINE void decoded(const Matmul *m, int format, int64_t w, int64_t last, int64_t s0, int64_t count, Group *groups, uint8_t *numbers) {
  const int64_t span = m->row_bytes / m->supers;
  for (int64_t t = 0; t < 2; t++) {
    const Sixteen rows = sixteen(m, w + t * TILE_ROWS, last);
    for (int64_t s = 0; s < count; s++) {
      for (int l = 0; l < TILE_ROWS; l++) fetch(rows.row[l] + PAIR * m->row_bytes + (s0 + s) * span, span); /* the next ones' */
      turn(format, &rows, s0 + s, groups, 1);
      for (int g = 0; g < GROUPS; g++) dense(format, groups + g, numbers + (t * STEPS + s * GROUPS + g) * TILE);
    }
  }
}

/* `steps` groups from super s0 on of bf16, which are turned alone: pairs of columns are as wide as an fp32 number. */
static void in_pairs(const Matmul *m, int64_t w, int64_t last, int64_t s0, int64_t steps, uint8_t *numbers) {
  for (int64_t t = 0; t < 2; t++) {
    const Sixteen rows = sixteen(m, w + t * TILE_ROWS, last);
    for (int64_t g = 0; g < steps; g++) {
      const int64_t column = s0 * SUPER + g * GROUP, left = m->columns - column;
      __m512i *to = (__m512i *)(numbers + (t * STEPS + g) * TILE);
      uint8_t end[TILE_ROWS][2 * GROUP];
      Sixteen some = rows;
      if (left < GROUP) { /* what lies behind a row is another's, or nobody's */
        memset(end, 0, sizeof end);
        for (int l = 0; l < TILE_ROWS; l++) memcpy(end[l], rows.row[l] + 2 * column, 2 * left), some.row[l] = end[l];
      } else {
        for (int l = 0; l < TILE_ROWS; l++) fetch(rows.row[l] + PAIR * m->row_bytes + 2 * column, 2 * GROUP);
      }
      for (int part = 0; part < 4; part++) turned(&some, (left < GROUP ? 0 : 2 * column) + 16 * part, to + 4 * part);
    }
  }
}

/* By dot products: each pair of columns adds its odd one's product, then its even one's; then the chunk's sum is added. */
static void multiply(const uint8_t *x, int64_t n, const uint8_t *w, int64_t steps, int first, float *out, int64_t stride) {
  for (int64_t r = 0; r < n; r += ROWS) { /* ROWS rows of x by two tiles of weights: their sums fit into registers */
    __m512 sums[ROWS][2];
    const uint8_t *of_x = x + r / TILE_ROWS * STEPS * TILE + r % TILE_ROWS * 64;
    for (int i = 0; i < ROWS; i++) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; s++, of_x += TILE)
      for (int k = 0; k < 16; k++) {
        const uint8_t *numbers = w + s * TILE + 64 * k;
        const __m512bh a = (__m512bh)_mm512_load_si512(numbers), b = (__m512bh)_mm512_load_si512(numbers + STEPS * TILE);
        for (int i = 0; i < ROWS; i++) {
          int32_t two;
          memcpy(&two, of_x + 64 * i + 4 * k, 4);
          const __m512bh pair = (__m512bh)_mm512_set1_epi32(two);
          sums[i][0] = _mm512_dpbf16_ps(sums[i][0], a, pair);
          sums[i][1] = _mm512_dpbf16_ps(sums[i][1], b, pair);
        }
      }
    for (int i = 0; i < ROWS; i++)
      for (int t = 0; t < 2; t++) {
        float *to = out + (r + i) * stride + t * TILE_ROWS;
        _mm512_storeu_ps(to, first ? sums[i][t] : _mm512_add_ps(_mm512_loadu_ps(to), sums[i][t]));
      }
  }
}

INLINE void of_format(const Matmul *m, int format, int64_t first, int64_t last, void *room, PromptTimes *times) {
  uint8_t *numbers = room; /* [2][STEPS][TILE] */
  const int64_t pairs = pairs_of(m->n);
  for (int64_t s0 = 0; s0 < m->supers; s0 += CHUNK) {
    const int64_t count = m->supers - s0 < CHUNK ? m->supers - s0 : CHUNK, left = (m->columns - s0 * SUPER + GROUP - 1) / GROUP;
    const int64_t steps = format == BFLOAT && left < STEPS ? left : count * GROUPS;
    for (int64_t w = first; w < last; w += PAIR) {
      if (format == BFLOAT) in_pairs(m, w, last, s0, steps, numbers);
      else decoded(m, format, w, last, s0, count, (Group *)(numbers + PAIR_BYTES), numbers);
      for (int64_t p = 0; p < pairs; p++)
        times((const uint8_t *)m->packed + (s0 / CHUNK * pairs + p) * PAIR_BYTES, m->n - p * PAIR < PAIR ? m->n - p * PAIR : PAIR,
              numbers, steps, !s0, (float *)m->out + p * PAIR * m->out_stride + w, m->out_stride);
    }
  }
}

#define CASE(which) \
  case which: of_format(m, which, first, last, room, times); return;

void prompt(const Matmul *m, int64_t first, int64_t last, void *room, PromptTimes *times) {
  switch (m->format) {
    LOW_BIT(CASE)
    CASE(BFLOAT)
  }
}

void avx512_prompt(const Matmul *m, int64_t first, int64_t last, void *room) { prompt(m, first, last, room, multiply); }
END_TARGET
#endif
