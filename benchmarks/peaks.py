"""How many products and sums does a CPU make at best? Each instruction of the kernels, out of registers.

Nothing is measured without a C compiler, on AMX and on ARM.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch

from edgespec.kernels import compiled
from edgespec.kernels.choice import AMX, ARM, AVX2, AVX512, AVX512_BF16, AVX_VNNI, PLAIN

TIMES, TRIES = 5_000_000, 3  # of 12 instructions each, some 20 ms; the best counts
SOURCE = r"""
#include <immintrin.h>
#include <stdint.h>
#define PEAK(name, cpu, Vector, step) \
  __attribute__((target(cpu))) void name(int64_t times) { \
    Vector sums[12] = {0}, a = {0}, b = {0}; /* as many sums as hide what one instruction takes */ \
    for (int i = 0; i < 12; i++) __asm__ volatile("" : "+x"(sums[i])); /* else all are one */ \
    for (; times; times--) { \
      __asm__ volatile("" : "+x"(a), "+x"(b)); \
      _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) step; \
    } \
    for (int i = 0; i < 12; i++) __asm__ volatile("" : : "x"(sums[i])); \
  }
#if defined(__x86_64__)
PEAK(pairs_512, "avx512f,avx512vnni", __m512i, sums[i] = _mm512_dpwssd_epi32(sums[i], a, b))
PEAK(bf16_512, "avx512f,avx512bf16", __m512, sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)a, (__m512bh)b))
PEAK(fp32_512, "avx512f", __m512, sums[i] = _mm512_fmadd_ps(a, b, sums[i]))
PEAK(pairs_256, "avx2", __m256i, sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(a, b)))
#if __GNUC__ >= 11 || __clang_major__ >= 12
PEAK(vnni_256, "avxvnni", __m256i, sums[i] = _mm256_dpwssd_avx_epi32(sums[i], a, b))
#endif
PEAK(fp32_256, "avx2,fma", __m256, sums[i] = _mm256_fmadd_ps(a, b, sums[i]))
#endif
"""
# Of an instruction.
PRODUCTS = {
    "pairs_512": 32,
    "bf16_512": 32,
    "fp32_512": 16,
    "pairs_256": 16,
    "vnni_256": 16,
    "fp32_256": 8,
}


def instruction(encoding: str) -> str | None:
    """What a tree's rows of these weights are multiplied with here."""
    if compiled.unavailable() or not shutil.which("cc"):
        return None
    level = compiled.level() if encoding != "BF16" else compiled.order(encoding)
    if ARM or level < AVX2 or level == AMX:  # torch is below all of them
        return None
    if encoding == "BF16" and level == AVX512_BF16:
        return "bf16_512"
    if level == AVX_VNNI and encoding not in PLAIN:
        return "vnni_256"
    return f"{'fp32' if encoding in PLAIN else 'pairs'}_{512 if level >= AVX512 else 256}"


@lru_cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "peaks.c", Path(folder) / "peaks.so"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", out], check=True)
        return ctypes.CDLL(str(out))


def peak(name: str) -> float:
    """Products (each added to a sum) a second, by as many threads as multiply."""
    function, threads = getattr(_library(), name), torch.get_num_threads()
    times = [ctypes.c_int64(TIMES)] * threads
    with ThreadPoolExecutor(threads) as pool:  # ctypes lets go of the interpreter meanwhile
        best = float("inf")
        for _ in range(TRIES):
            began = time.perf_counter()
            list(pool.map(function, times))
            best = min(best, time.perf_counter() - began)
    return threads * TIMES * 12 * PRODUCTS[name] / best
