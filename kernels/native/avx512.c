#if defined(__x86_64__)
#include "target.h"
TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#include "formats_x86.h"
#include "native.h"

#define DECODE(x) x86_##x
#define NAME(x) avx512_##x
#define SET AVX512
#include "rows.inc"
#include "attention.inc"
#include "half.inc"
END_TARGET
#endif
