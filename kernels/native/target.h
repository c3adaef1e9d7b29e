/* The instructions of a file, between TARGET(their names) and END_TARGET: gcc is told by a pragma, clang, which does not know it, by
   an attribute of every function. Intrinsics come first: they have theirs. */
#pragma once

#define DO_PRAGMA(what) _Pragma(#what)
#if defined(__aarch64__) && !defined(__AARCH64EB__)
#define ON_ARM 1
#include <arm_neon.h>
/* Dot products of bytes (ARMv8.2): where all functions may use them (on Apple silicon), or single ones. */
#if defined(__ARM_FEATURE_DOTPROD)
#define HAS_NEON
#define NEON_TARGET
#define END_NEON
#elif (!defined(__clang__) && __GNUC__ >= 9) || __clang_major__ >= 16
#define HAS_NEON
#define NEON_TARGET TARGET("arch=armv8.2-a+dotprod")
#define END_NEON END_TARGET
#endif
/* Products of matrices of bytes (ARMv8.6), likewise: not on all Apple silicon. */
#if defined(HAS_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
#define HAS_I8MM
#define I8MM_TARGET
#define END_I8MM
#elif (!defined(__clang__) && __GNUC__ >= 10) || __clang_major__ >= 16
#define HAS_I8MM
#define I8MM_TARGET TARGET("arch=armv8.2-a+dotprod+i8mm")
#define END_I8MM END_TARGET
#endif
#else
#define ON_ARM 0
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__clang__)
#define TARGET(names) DO_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define END_TARGET DO_PRAGMA(clang attribute pop)
#else
#define TARGET(names) DO_PRAGMA(GCC target(names))
#define END_TARGET
#endif
#endif

#if defined(__x86_64__)
#if __GNUC__ >= 11 || __clang_major__ >= 12
#define HAS_AVX_VNNI
#endif
/* A bit that not every compiler's __builtin_cpu_supports knows by name. */
enum { EAX, EBX, ECX, EDX };
static inline int cpu_has(unsigned leaf, unsigned part, int where, int bit) {
  unsigned found[4];
  return __get_cpuid_count(leaf, part, found, found + 1, found + 2, found + 3) && (found[where] >> bit & 1);
}
#endif
