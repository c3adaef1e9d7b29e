#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#include "formats_x86.h"
#include "native.h"

#define DECODE(x) x86_##x
#define NAME(x) avx512_##x
#define LANES 16
typedef __m512i Ints;
typedef __m512 Floats;
#define ints_zero _mm512_setzero_si512
#define ints_load(p) _mm512_load_si512((const void *)(p))
#define floats_mul _mm512_mul_ps
#define floats_load _mm512_load_ps
#define floats_store _mm512_store_ps
#define floats_set _mm512_set1_ps
#define floats_fma _mm512_fmadd_ps
#define floats_fnma _mm512_fnmadd_ps
#define floats_of _mm512_cvtepi32_ps

/* The two columns of x are the same for all lanes. */
static inline Ints ints_dot(Ints sum, Ints pair, const int16_t *x) {
  int32_t two;
  memcpy(&two, x, 4);
  return _mm512_dpwssd_epi32(sum, pair, _mm512_set1_epi32(two));
}

/* [16 rows][128 pairs] -> [128 pairs][16 rows] */
static inline void interleave(const Decoded *d, int32_t (*pairs)[16]) {
  for (int k = 0; k < 128; k += 16) {
    __m512i r[16], t[16];
    for (int l = 0; l < 16; l++) r[l] = _mm512_load_si512((const int32_t *)d[l].number + k);
    for (int l = 0; l < 16; l += 2) {
      t[l] = _mm512_unpacklo_epi32(r[l], r[l + 1]);
      t[l + 1] = _mm512_unpackhi_epi32(r[l], r[l + 1]);
    }
    for (int l = 0; l < 16; l += 4) {
      r[l] = _mm512_unpacklo_epi64(t[l], t[l + 2]);
      r[l + 1] = _mm512_unpackhi_epi64(t[l], t[l + 2]);
      r[l + 2] = _mm512_unpacklo_epi64(t[l + 1], t[l + 3]);
      r[l + 3] = _mm512_unpackhi_epi64(t[l + 1], t[l + 3]);
    }
    for (int c = 0; c < 4; c++) { /* r[4 i + c]: column c of each 128 bits, rows 4 i .. 4 i + 3 */
      __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
      __m512i e = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD), f = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
      _mm512_store_si512(pairs[k + c], _mm512_shuffle_i32x4(a, b, 0x88));
      _mm512_store_si512(pairs[k + 8 + c], _mm512_shuffle_i32x4(a, b, 0xDD));
      _mm512_store_si512(pairs[k + 4 + c], _mm512_shuffle_i32x4(e, f, 0x88));
      _mm512_store_si512(pairs[k + 12 + c], _mm512_shuffle_i32x4(e, f, 0xDD));
    }
  }
}

#define FEW_APART /* avx512_few.c */
#define SET 2 /* as es_level counts */
#include "rows.inc"
#include "attention.inc"
#include "half.inc"
#endif
