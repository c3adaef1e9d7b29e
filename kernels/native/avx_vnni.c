/* Low-bit weights on AVX2 with VNNI, without AVX-512 (Alder Lake and what came after it): what multiplies also adds up. */
#include "target.h"
#ifdef HAS_AVX_VNNI
TARGET("avx2,fma,f16c,avxvnni")
#define NAME(x) avx_vnni_##x
#define VNNI
#include "avx2_few.inc"
#include "avx2_many.inc"
END_TARGET
#endif
