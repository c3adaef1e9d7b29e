/* The instructions of a file, between TARGET(their names) and END_TARGET: gcc is told by a pragma, clang, which does not know it, by
   an attribute of every function. Intrinsics come first: they have theirs. */
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define DO_PRAGMA(what) _Pragma(#what)
#if defined(__clang__)
#define TARGET(names) DO_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define END_TARGET DO_PRAGMA(clang attribute pop)
#else
#define TARGET(names) DO_PRAGMA(GCC target(names))
#define END_TARGET
#endif

/* A bit that not every compiler's __builtin_cpu_supports knows by name: of leaf 1's ECX, or of leaf 7's EDX. */
static inline int cpu_has(unsigned leaf, int bit) {
  unsigned a, b, c, d;
  return __get_cpuid_count(leaf, 0, &a, &b, &c, &d) && ((leaf == 1 ? c : d) >> bit & 1);
}
#endif
