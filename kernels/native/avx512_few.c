/* One to sixteen rows of x on AVX-512 VNNI, where decoding is most of the work: native.h's sums, bit for bit. x is two digits
   of eight bits (256 * high + low), arranged once a call to match the weights' bytes, and both are multiplied out of registers. */
#if defined(__x86_64__)
#include "target.h"
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#include "avx512_pairs.h"

#define TOGETHER 8 /* rows of x whose sums stay in registers */
#define OFFSETS (SUPER / 4) /* numbers of `offset` for 256 columns */

/* Sums of neighbouring lanes: two of a, two of b, ... */
INLINE __m512i add_pairs(__m512i a, __m512i b) {
  const __m512 f = _mm512_castsi512_ps(a), g = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(f, g, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(f, g, 0xDD)));
}

INLINE __m512i twice_ints(const int32_t *p) { return _mm512_broadcast_i64x4(bytes32(p)); }
INLINE __m512 twice(const float *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }

/* The groups' exact sums of products with a row of x. */
INLINE __m512i dots(int format, const Pair *p, const int16_t *x, const int32_t *offset) {
  const int sets = format == Q4_0 ? 1 : 2;
  __m512i sum[2][2];
#pragma GCC unroll 4
  for (int digit = 0; digit < 2; digit++)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const int v = sets == 1 ? i : i % 2 * 2 + i / 2, set = sets == 1 ? 0 : v / 2; /* sums in turn: each waits for itself */
      const __m512i columns = load512(x + 128 * digit + 32 * v);
#pragma GCC unroll 4
      for (int row = 0; row < 2; row++) {
        __m512i *to = &sum[row][set];
        if (i < sets) *to = digit ? _mm512_slli_epi32(*to, 8) : _mm512_setzero_si512();
        *to = _mm512_dpbusd_epi32(*to, p->bytes[row][v], columns);
      }
    }
  __m512i all;
  if (format == Q4_0) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    all = _mm512_permutexvar_epi32(order, add_pairs(sum[0][0], sum[1][0]));
  } else {
    const __m512i a = add_pairs(sum[0][0], sum[0][1]), b = add_pairs(sum[1][0], sum[1][1]);
    __m512i first = _mm512_shuffle_i64x2(a, b, 0x88), second = _mm512_shuffle_i64x2(a, b, 0xDD); /* 16 columns each */
    if (format == Q6_K) {
      first = _mm512_mullo_epi32(_mm512_add_epi32(first, twice_ints(offset)), p->times);
      second = _mm512_mullo_epi32(_mm512_add_epi32(second, twice_ints(offset + GROUPS)), p->more);
      return _mm512_add_epi32(first, second);
    }
    all = _mm512_add_epi32(first, second);
  }
  if (offset_of(format)) all = _mm512_add_epi32(all, twice_ints(offset));
  return format == INT4 ? _mm512_mullo_epi32(all, p->times) : all;
}

/* eight_total, of sums in the order of group_at. */
INLINE float total_of(int format, __m256 v) {
  int32_t lane[GROUPS];
  for (int i = 0; i < GROUPS; i++) lane[group_at(format, i)] = i;
  return eight_total(_mm256_permutevar8x32_ps(v, bytes32(lane)));
}

/* Of so many rows of x and more a CHUNK of supers stays in the first cache while TILE_ROWS rows of weights take turns with it:
   else x and what memory is asked for wait for the second one together. From memory, two cores of Zen 5, 6 to 8 rows of 11008 x
   4096 take 1.0 (int4) to 1.5 times (int8) less time so; fewer rows fit in any case. */
#define STAYING 5
#define CHUNK 4

INLINE int64_t partner_of(int64_t w, int64_t last) { return w + 1 < last ? w + 1 : w; } /* an odd row is its own */

/* The sum with a super of a row of x, the `at`th. */
INLINE __m512 one_more(const Matmul *m, int format, const Pair *pair, int64_t at, __m512 sum) {
  const __m512i dot = dots(format, pair, m->x + at * SUPER, m->offset + at * OFFSETS);
  __m512 t = _mm512_mul_ps(pair->factor, _mm512_cvtepi32_ps(dot));
  if (has_minima(format)) t = _mm512_fnmadd_ps(pair->minimum, twice(m->sum + at * GROUPS), t);
  return _mm512_fmadd_ps(twice(m->step + at * GROUPS), t, sum);
}

/* Some supers of two rows of weights, w and its partner, are added to the sums of rows of x. */
INLINE void few_supers(const Matmul *m, int format, int rows, int64_t w, int64_t last, int64_t first, int64_t stop,
                       __m512 *sums) {
  const int64_t span = m->row_bytes / m->supers;
  const Row row[2] = {row_of(m, w), row_of(m, partner_of(w, last))};
  const uint8_t *tile = row[0].row + TILE_ROWS * m->row_bytes, *next = stop < m->supers ? row[0].row + stop * span : tile;
  __m512 own[TOGETHER];
  for (int r = 0; r < rows; r++) own[r] = sums[r];
  for (int64_t s = first; s < stop; s++) {
    if (rows < STAYING) fetch(row[0].row + m->row_bytes + 2 * s * span + AHEAD, 2 * span); /* in the order of memory */
    for (int i = 0; i < 2 && rows >= STAYING; i++) fetch(next + i * m->row_bytes + (s - first) * span, span);
    Pair pair;
    pair_of(format, row, s, &pair);
    if (rows <= 6) {
#pragma GCC unroll 6 /* else sums may lie in memory (four rows of int4 took a third longer), as of seven and eight they had better */
      for (int r = 0; r < rows; r++) own[r] = one_more(m, format, &pair, r * m->supers + s, own[r]);
    } else {
      for (int r = 0; r < rows; r++) own[r] = one_more(m, format, &pair, r * m->supers + s, own[r]);
    }
  }
  for (int r = 0; r < rows; r++) sums[r] = own[r];
}

INLINE void few(const Matmul *m, int format, int rows, int64_t first, int64_t last) {
  const int64_t turns = rows < STAYING ? 2 : TILE_ROWS, chunk = rows < STAYING ? m->supers : CHUNK;
  for (int64_t tile = first; tile < last; tile += turns) {
    const int64_t end = last - tile < turns ? last : tile + turns;
    __m512 sums[TILE_ROWS / 2][TOGETHER];
    for (int64_t w = tile; w < end; w += 2)
      for (int r = 0; r < rows; r++) sums[(w - tile) / 2][r] = _mm512_setzero_ps();
    for (int64_t s = 0; s < m->supers; s += chunk)
      for (int64_t w = tile; w < end; w += 2)
        few_supers(m, format, rows, w, last, s, m->supers - s < chunk ? m->supers : s + chunk, sums[(w - tile) / 2]);
    for (int64_t w = tile; w < end; w += 2)
      for (int r = 0; r < rows; r++) {
        const __m512 both = sums[(w - tile) / 2][r];
        float *out = (float *)m->out + r * m->out_stride;
        out[w] = total_of(format, _mm512_castps512_ps256(both));
        if (partner_of(w, last) > w) out[w + 1] = total_of(format, _mm512_extractf32x8_ps(both, 1));
      }
  }
}

#define CASE(format, n) \
  case 16 * format + n: few(m, format, n, first, last); return;
#define CASES(format) \
  CASE(format, 1) CASE(format, 2) CASE(format, 3) CASE(format, 4) CASE(format, 5) CASE(format, 6) CASE(format, 7) CASE(format, 8)

/* More rows than go together: half of them, and then the others, while the same rows of weights are in a cache. */
static void in_halves(const Matmul *m, int64_t first, int64_t last, void *room) {
  const int64_t n = m->n / 2, supers = n * m->supers;
  Matmul half[2] = {*m, *m};
  half[0].n = n, half[1].n = m->n - n;
  half[1].x += supers * SUPER, half[1].offset += supers * OFFSETS;
  half[1].step += supers * GROUPS, half[1].sum += supers * GROUPS;
  half[1].out = (float *)m->out + n * m->out_stride;
  for (int64_t tile = first; tile < last; tile += TILE_ROWS)
    for (int i = 0; i < 2; i++) avx512_few(&half[i], tile, last - tile < TILE_ROWS ? last : tile + TILE_ROWS, room);
}

void avx512_few(const Matmul *m, int64_t first, int64_t last, void *room) {
  if (m->n > TOGETHER) {
    in_halves(m, first, last, room);
    return;
  }
  switch (16 * m->format + m->n) {
    CASES(INT8)
    CASES(INT4)
    CASES(Q8_0)
    CASES(Q4_0)
    CASES(Q4_K)
    CASES(Q5_K)
    CASES(Q6_K)
  }
}

/* A row of x, in place: its numbers eight bytes at a time, all high digits first; what offsets subtract of each group, of Q6_K
   of its first and second 16 columns; steps and sums in the order of `group_at`. */
void avx512_arrange(int format, int64_t supers, int16_t *x, int32_t *offset, float *step, float *sum) {
  for (int64_t s = 0; s < supers; s++, x += SUPER, offset += OFFSETS, step += GROUPS, sum += GROUPS) {
    uint64_t digits[2][GROUPS][4];
    float steps[GROUPS], total[GROUPS];
    int32_t less[GROUPS][2];
    for (int g = 0; g < GROUPS; g++) {
      const __m512i v = load512(x + GROUP * g);
      const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(v, _mm512_set1_epi16(128)), 8);
      _mm256_storeu_si256((__m256i *)digits[0][g], _mm512_cvtepi16_epi8(high));
      _mm256_storeu_si256((__m256i *)digits[1][g], _mm512_cvtepi16_epi8(v));
      const __m512i two = _mm512_madd_epi16(v, _mm512_set1_epi16((short)-offset_of(format)));
      less[g][0] = _mm512_mask_reduce_add_epi32(0x00FF, two), less[g][1] = _mm512_mask_reduce_add_epi32(0xFF00, two);
    }
    memcpy(steps, step, sizeof steps);
    memcpy(total, sum, sizeof total);
    for (int i = 0; i < GROUPS; i++) {
      const int g = group_at(format, i);
      step[i] = steps[g], sum[i] = total[g];
      offset[i] = less[g][0] + (format == Q6_K ? 0 : less[g][1]);
      offset[GROUPS + i] = less[g][1];
    }
    for (int i = 0; i < 64; i++) {
      int column, g = place(format, i / 8 % 4, i % 8, &column);
      memcpy(x + 4 * i, &digits[i / 32][g][column / 8], 8);
    }
  }
}
END_TARGET
#endif
