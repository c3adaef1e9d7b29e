#include "target.h"
#ifdef HAS_NEON
NEON_TARGET
#include "native.h"

#define DECODE(x) decode_##x
#define NAME(x) neon_##x
#define SET NEON
#include "rows.inc"
#include "attention.inc"
#include "half.inc"
END_NEON
#endif
