#include "choice.h"

#if defined(HAS_NEON) && defined(__linux__)
#include <sys/auxv.h>
static int has_dot_products(void) { return getauxval(AT_HWCAP) >> 20 & 1; } /* HWCAP_ASIMDDP */
#elif defined(__APPLE__) && defined(__ARM_FEATURE_DOTPROD)
static int has_dot_products(void) { return 1; } /* all Macs of this architecture have them */
#elif defined(HAS_NEON)
static int has_dot_products(void) { return 0; }
#endif

#if defined(HAS_I8MM) && defined(__linux__)
static int has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; } /* HWCAP2_I8MM */
#elif defined(HAS_I8MM) && defined(__APPLE__)
#include <sys/sysctl.h>
static int has_i8mm(void) { /* Macs have it from the M2 on */
  int has = 0;
  size_t bytes = sizeof has;
  return !sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &bytes, NULL, 0) && has;
}
#elif defined(HAS_I8MM)
static int has_i8mm(void) { return 0; }
#endif

/* Whether the second set is here: AVX_VNNI, which not every CPU has that has more, or NEON_I8MM. */
static int has_second;
static int level = -1;

/* The best that there is here. */
static int best_here(void) {
  int best = PORTABLE;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has(1, 0, ECX, 29 /* F16C */)) best = AVX2;
#ifdef HAS_AVX_VNNI
  has_second = best == AVX2 && cpu_has(7, 1, EAX, 4 /* AVX-VNNI */);
  if (has_second) best = AVX_VNNI;
#endif
  if (best >= AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    best = AVX512;
#endif
#ifdef HAS_NEON
  if (has_dot_products()) best = NEON;
#endif
#ifdef HAS_I8MM
  has_second = best == NEON && has_i8mm();
  if (has_second) best = NEON_I8MM;
#endif
#ifdef HAS_BF16
  if (best == AVX512 && __builtin_cpu_supports("avx512bf16")) best = AVX512_BF16;
#endif
#ifdef HAS_AMX
  if (best == AVX512_BF16 && amx_allowed()) best = AMX;
#endif
  return best;
}

/* The best of these that there is here. */
static int usable(int set) { return set == AVX_VNNI && !has_second ? AVX2 : set; }

/* The instructions in use; lowered to `most`, if that is not negative. */
int es_level(int most) {
  if (level < 0 || most >= 0) {
    level = best_here();
    if (most >= 0 && level > most) level = usable(most);
  }
  return level;
}

/* Whether these are among the instructions in use. */
int es_has(int set) { return set <= es_level(-1) && usable(set) == set; }

/* What was chosen by format, 0 = nothing: 1 + 2 * instruction set, and 1 more where each row of weights is used as it is decoded.
   For up to 1, 2, 3, 4, 6, 8, 12 and 16 rows of x and for more: their bits are the same. At ORDER: for what has orders of sums of
   its own, rows of bf16 by bf16, and prompts. */
#define CLASSES 9
#define ORDER CLASSES
static uint8_t chosen[FORMATS + 2][CLASSES + 1];

/* For rows of the class `of`, or at ORDER; 0: by features alone. */
void es_choose(int format, int of, int what) { chosen[format][of] = (uint8_t)what; }

static int class_of(int64_t n) {
  return n <= 1 ? 0 : n <= 4 ? (int)n - 1 : n <= 8 ? (int)(n + 1) / 2 + 1 : n <= 12 ? 6 : n <= 16 ? 7 : 8;
}

INLINE int least(int a, int b) { return a < b ? a : b; }

/* Of low-bit weights: where weights are used as they are decoded, for so few rows, else side by side. */
static Kernels of_low_bit(int format, int set, int few, int64_t n) {
  if (is_rare(format)) set = usable(least(set, AVX_VNNI));
  (void)set, (void)few, (void)n;
#if defined(__x86_64__)
#ifdef HAS_AMX
  if (set == AMX) return (Kernels){{amx_rows, amx_packed, amx_pack}, 0, avx512_quantise, NULL};
#endif
  if (set >= AVX512 && few && n <= AVX512_FEW) return (Kernels){{avx512_few}, 0, avx512_quantise, avx512_arrange};
  if (set >= AVX512) return (Kernels){{avx512_rows}, 0, avx512_quantise, avx512_order};
#ifdef HAS_AVX_VNNI
  if (set == AVX_VNNI && few && n <= AVX2_FEW) return (Kernels){{avx_vnni_few}, 0, avx2_quantise, avx2_arrange};
  if (set == AVX_VNNI) return (Kernels){{avx_vnni_rows, avx2_packed, avx2_pack}, 0, avx2_quantise, NULL};
#endif
  if (set == AVX2 && few && n <= AVX2_FEW) return (Kernels){{avx2_few}, 0, avx2_quantise, avx2_arrange};
  if (set == AVX2) return (Kernels){{avx2_rows, avx2_packed, avx2_pack}, 0, avx2_quantise, NULL};
#endif
#ifdef HAS_I8MM
  if (set == NEON_I8MM)
    return (Kernels){{few && n <= NEON_FEW ? neon_i8mm_few : neon_i8mm_rows}, 0, neon_quantise, neon_i8mm_arrange};
#endif
#ifdef HAS_NEON
  if (set == NEON) return (Kernels){{few && n <= NEON_FEW ? neon_few : neon_rows}, 0, neon_quantise, neon_arrange};
#endif
  return (Kernels){{portable_rows}, 0, portable_quantise, NULL};
}

/* Of fp16, and bf16 in fp16's order. */
static Kernels of_plain(int set) {
  (void)set;
#if defined(__x86_64__)
  if (set >= AVX512) return (Kernels){{avx512_half}, 0, NULL, NULL};
  if (set >= AVX2) return (Kernels){{avx2_half}, 0, NULL, NULL};
#endif
#ifdef HAS_NEON
  if (set >= NEON) return (Kernels){{neon_half}, 0, NULL, NULL};
#endif
  return (Kernels){{portable_half}, 0, NULL, NULL};
}

INLINE int set_of(int what) { return (what - 1) / 2; }

Kernels kernels_for(int format, int64_t n, int any_order, int x_type, int tried) {
  const int best = es_level(-1), in_order = tried ? tried : chosen[format][ORDER];
  const int order = is_rare(format) ? AVX2 : in_order ? least(set_of(in_order), best) : best; /* the rare ones have no prompt's */
  (void)any_order, (void)x_type, (void)order;
#ifdef HAS_AMX
  if (order == AMX && format == HALF && x_type == F16 && any_order)
    return (Kernels){{amx_half, amx_half_packed, amx_half_pack}, 0, NULL, NULL};
  if (order == AMX && format != HALF && x_type == BF16 && any_order)
    return (Kernels){{amx_prompt, prompt_packed, prompt_pack}, 1, NULL, NULL};
  if (order == AMX && format == BFLOAT && x_type == BF16) return (Kernels){{amx_bf16, amx_bf16_packed, amx_bf16_pack}, 0, NULL, NULL};
#endif
#ifdef HAS_BF16
  if (order >= AVX512_BF16 && format != HALF && x_type == BF16 && any_order)
    return (Kernels){{avx512_prompt, prompt_packed, prompt_pack}, 1, NULL, NULL};
  if (order >= AVX512_BF16 && format == BFLOAT && x_type == BF16)
    return (Kernels){{avx512_bf16, avx512_bf16_packed, avx512_bf16_pack}, 0, NULL, NULL};
#endif
  /* By features: AMX from FEW + 1 rows on. */
  const int what = tried ? tried : chosen[format][class_of(n)];
  const int set = what ? usable(least(set_of(what), best)) : best == AMX && n <= FEW ? AVX512 : best;
  return is_plain(format) ? of_plain(set) : of_low_bit(format, set, what ? (what - 1) % 2 : 1, n);
}

Dense *best_dense(void) {
#if defined(__x86_64__)
  if (es_level(-1) >= AVX512) return avx512_dense;
  if (level >= AVX2) return avx2_dense;
#endif
#ifdef HAS_NEON
  if (es_level(-1) >= NEON) return neon_dense;
#endif
  return portable_dense;
}

Finish *best_finish(void) {
#if defined(__x86_64__)
  if (es_level(-1) >= AVX512) return avx512_finish;
  if (level >= AVX2) return avx2_finish;
#endif
#ifdef HAS_NEON
  if (es_level(-1) >= NEON) return neon_finish;
#endif
  return portable_finish;
}
