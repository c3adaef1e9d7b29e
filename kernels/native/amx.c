/* Many rows of x on AMX: the sums of native.h, bit for bit. Activations are two digits, 256 * high + low; the numbers of Q6_K,
   which are longer than a byte, too. A tile holds the products of 16 rows of weights and 16 of x over one group of 32 columns,
   exact in int32; its sums then go on as everywhere. int4's are multiplied without a group's multiplier: their sums, below 32
   * 8 * 16384, are exact in fp32, so that times it they are rounded once, as the whole integer would be. */
#include "native.h"

#ifdef HAS_AMX
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,amx-tile,amx-int8")
#include <sys/syscall.h>
#include <unistd.h>

#define BYTES
#include "formats_x86.h"

typedef struct { /* one group of 16 rows of x; [4 columns' place][row and column] */
  int8_t high[GROUP / 4][4 * X_ROWS], low[GROUP / 4][4 * X_ROWS];
  float step[X_ROWS], sum[X_ROWS];
} Columns;

/* Linux gives a process the tiles' registers on request. */
int amx_allowed(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
  return cpu_has(7, 0, EDX, 22 /* AMX-BF16 */) && cpu_has(7, 0, EDX, 24 /* tiles */) && cpu_has(7, 0, EDX, 25 /* AMX-INT8 */) &&
         !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA);
}

int64_t amx_packed(const Matmul *m) {
  return (m->n + X_ROWS - 1) / X_ROWS * m->supers * GROUPS * (int64_t)sizeof(Columns);
}

/* The block's rows of x, int16 [n][supers][8][32], with steps and sums; what lies behind the last row is 0. */
void amx_pack(const Matmul *m, const void *unused, int64_t block, void *packed) {
  (void)unused;
  const int64_t groups = m->supers * GROUPS;
  for (int64_t column = 0; column < X_ROWS; column++)
    for (int64_t g = 0; g < groups; g++) {
      Columns *to = (Columns *)packed + block * groups + g;
      const int64_t r = block * X_ROWS + column, at = r * groups + g;
      to->step[column] = r < m->n ? m->step[at] : 0;
      to->sum[column] = r < m->n ? m->sum[at] : 0;
      __m512i x = r < m->n ? _mm512_loadu_si512(m->x + at * GROUP) : _mm512_setzero_si512();
      int32_t high[8], low[8];
      digits_of(x, low, high);
      for (int k = 0; k < GROUP / 4; k++) {
        memcpy(to->high[k] + 4 * column, high + k, 4);
        memcpy(to->low[k] + 4 * column, low + k, 4);
      }
    }
}

typedef int32_t Dots[3][TILE_ROWS][X_ROWS]; /* low, middle and high digits of one group's products */

INLINE void products(const Decoded *tile, const Columns *x, int g, int digits, Dots dots) {
  const int8_t *low = (const int8_t *)tile->number + g * GROUP;
  _tile_loadd(0, low, sizeof *tile);
  _tile_loadd(1, x->high, 64);
  _tile_loadd(2, x->low, 64);
  _tile_zero(4);
  _tile_zero(5);
  _tile_dpbssd(4, 0, 2);
  _tile_dpbssd(5, 0, 1);
  if (digits == 2) {
    _tile_loadd(3, low + SUPER, sizeof *tile);
    _tile_zero(6);
    _tile_dpbssd(5, 3, 2);
    _tile_dpbssd(6, 3, 1);
    _tile_stored(6, dots[2], 64);
  }
  _tile_stored(4, dots[0], 64);
  _tile_stored(5, dots[1], 64);
}

/* sums [8][16 weights][16 rows of x] += one super's groups. */
INLINE void multiply(const Decoded *tile, const Columns *x, int format, int digits, float (*sums)[TILE_ROWS][X_ROWS]) {
  Dots dots[2] __attribute__((aligned(64)));
  WRITTEN;
  products(tile, x, 0, digits, dots[0]);
  for (int g = 0; g < GROUPS; g++, x++) {
    if (g + 1 < GROUPS) products(tile, x + 1, g + 1, digits, dots[(g + 1) % 2]); /* while this group's are added */
    int32_t(*t)[TILE_ROWS][X_ROWS] = dots[g % 2];
    __m512 steps = _mm512_loadu_ps(x->step), totals = _mm512_loadu_ps(x->sum);
    for (int w = 0; w < TILE_ROWS; w++) {
      __m512i dot = _mm512_add_epi32(_mm512_load_si512(t[0][w]), _mm512_slli_epi32(_mm512_load_si512(t[1][w]), 8));
      if (digits == 2) dot = _mm512_add_epi32(dot, _mm512_slli_epi32(_mm512_load_si512(t[2][w]), 16));
      __m512 v = _mm512_cvtepi32_ps(dot);
      if (format == INT4) v = _mm512_mul_ps(_mm512_set1_ps(tile[w].minimum[g]), v); /* the multiplier is there */
      v = _mm512_mul_ps(_mm512_set1_ps(tile[w].factor[g]), v);
      if (has_minima(format)) v = _mm512_fnmadd_ps(_mm512_set1_ps(tile[w].minimum[g]), totals, v);
      _mm512_store_ps(sums[g][w], _mm512_fmadd_ps(steps, v, _mm512_load_ps(sums[g][w])));
    }
  }
}

static void total(const float (*sums)[TILE_ROWS][X_ROWS], int lanes, int64_t n, float *out, int64_t stride) {
  __m512i places = _mm512_mullo_epi32(_mm512_set1_epi32((int)stride), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6,
                                                                                       5, 4, 3, 2, 1, 0));
  for (int w = 0; w < lanes; w++) {
    __m512 s[GROUPS];
    for (int g = 0; g < GROUPS; g++) s[g] = _mm512_load_ps(sums[g][w]);
    __m512 a = _mm512_add_ps(_mm512_add_ps(s[0], s[4]), _mm512_add_ps(s[2], s[6]));
    __m512 b = _mm512_add_ps(_mm512_add_ps(s[1], s[5]), _mm512_add_ps(s[3], s[7]));
    __mmask16 some = (__mmask16)(n < X_ROWS ? (1 << n) - 1 : 0xFFFF);
    _mm512_mask_i32scatter_ps(out + w, some, places, _mm512_add_ps(a, b), 4);
  }
}

INLINE void tiles(const Matmul *m, void (*decode)(const Row *, int64_t, Decoded *), int format, int digits,
                  int64_t first, int64_t last, void *room) {
  Tiles shape = {.palette = 1};
  for (int t = 0; t < 8; t++) {
    shape.colsb[t] = t == 0 || t == 3 ? GROUP : 64;
    shape.rows[t] = t == 1 || t == 2 ? 8 : 16;
  }
  WRITTEN;
  _tile_loadconfig(&shape);
  Decoded tile[TILE_ROWS] __attribute__((aligned(64)));
  memset(tile, 0, sizeof tile); /* rows behind the last: their results are not stored */
  float(*sums)[GROUPS][TILE_ROWS][X_ROWS] = room; /* [BLOCK / X_ROWS] */
  const int64_t groups = m->supers * GROUPS, span = m->row_bytes / m->supers;
  for (int64_t x0 = 0; x0 < m->n; x0 += BLOCK) {
    int64_t blocks = ((m->n - x0 < BLOCK ? m->n - x0 : BLOCK) + X_ROWS - 1) / X_ROWS;
    for (int64_t w0 = first; w0 < last; w0 += TILE_ROWS) {
      int lanes = last - w0 < TILE_ROWS ? (int)(last - w0) : TILE_ROWS;
      memset(sums, 0, (size_t)blocks * sizeof *sums);
      for (int64_t s = 0; s < m->supers; s++) {
        for (int l = 0; l < lanes; l++) {
          Row row = row_of(m, w0 + l);
          if (!x0) fetch(row.row + TILE_ROWS * m->row_bytes + s * span, span); /* of the next tile */
          decode(&row, s, &tile[l]);
        }
        for (int64_t b = 0; b < blocks; b++) {
          int64_t at = (x0 / X_ROWS + b) * groups + s * GROUPS;
          multiply(tile, (const Columns *)m->packed + at, format, digits, sums[b]);
        }
      }
      for (int64_t b = 0; b < blocks; b++) {
        int64_t r = x0 + b * X_ROWS;
        total((const float(*)[TILE_ROWS][X_ROWS])sums[b], lanes, m->n - r, (float *)m->out + r * m->out_stride + w0,
              m->out_stride);
      }
    }
  }
  _tile_release();
}

#define CASE(which, name, digits) \
  case which: tiles(m, x86_##name, which, digits, first, last, room); return;

void amx_rows(const Matmul *m, int64_t first, int64_t last, void *room) {
  switch (m->format) {
    CASE(INT8, int8, 1)
    CASE(INT4, int4, 1)
    CASE(Q8_0, q8_0, 1)
    CASE(Q4_0, q4_0, 1)
    CASE(Q4_K, q4_k, 1)
    CASE(Q5_K, q5_k, 1)
    CASE(Q6_K, q6_k, 2)
  }
}
END_TARGET
#endif
