#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#include "formats_x86.h"
#include "native.h"

#define DECODE(x) x86_##x
#define NAME(x) avx2_##x
#define LANES 8
typedef __m256i Ints;
typedef __m256 Floats;
#define ints_zero _mm256_setzero_si256
#define ints_load(p) _mm256_load_si256((const __m256i *)(p))
#define floats_mul _mm256_mul_ps
#define floats_load _mm256_load_ps
#define floats_store _mm256_store_ps
#define floats_set _mm256_set1_ps
#define floats_fma _mm256_fmadd_ps
#define floats_fnma _mm256_fnmadd_ps
#define floats_of _mm256_cvtepi32_ps

/* The two columns of x are the same for all lanes. */
static inline Ints ints_dot(Ints sum, Ints pair, const int16_t *x) {
  int32_t two;
  memcpy(&two, x, 4);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pair, _mm256_set1_epi32(two)));
}

/* [8 rows][128 pairs] -> [128 pairs][8 rows] */
static inline void interleave(const Decoded *d, int32_t (*pairs)[8]) {
  for (int k = 0; k < 128; k += 8) {
    __m256i r[8], t[8];
    for (int l = 0; l < 8; l++) r[l] = _mm256_load_si256((const __m256i *)((const int32_t *)d[l].number + k));
    for (int l = 0; l < 8; l += 2) {
      t[l] = _mm256_unpacklo_epi32(r[l], r[l + 1]);
      t[l + 1] = _mm256_unpackhi_epi32(r[l], r[l + 1]);
    }
    for (int l = 0; l < 8; l += 4) {
      r[l] = _mm256_unpacklo_epi64(t[l], t[l + 2]);
      r[l + 1] = _mm256_unpackhi_epi64(t[l], t[l + 2]);
      r[l + 2] = _mm256_unpacklo_epi64(t[l + 1], t[l + 3]);
      r[l + 3] = _mm256_unpackhi_epi64(t[l + 1], t[l + 3]);
    }
    for (int c = 0; c < 4; c++) {
      _mm256_store_si256((__m256i *)pairs[k + c], _mm256_permute2x128_si256(r[c], r[4 + c], 0x20));
      _mm256_store_si256((__m256i *)pairs[k + 4 + c], _mm256_permute2x128_si256(r[c], r[4 + c], 0x31));
    }
  }
}

#define SET 1 /* as es_level counts */
#include "rows.inc"
#include "attention.inc"
#include "half.inc"
#endif
