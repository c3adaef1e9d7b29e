"""Who multiplies here, as far as memory depends on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """converts: types of weights ("bfloat16") whose matmuls torch does in fp32. compiled: our kernels are
    there. prompts: encodings of weights that they multiply a whole block of a prompt with; other blocks
    are torch's, and all on a device is. threads: that compute. arranged: numbers of x that low-bit weights
    are multiplied with are packed once more (AVX2, AMX). widened: bf16 is multiplied in fp16's order, by fp32
    numbers of x, whatever arithmetic the CPU has."""

    converts: frozenset[str] = frozenset()
    compiled: bool = True
    prompts: frozenset[str] = frozenset()
    threads: int = 2
    arranged: bool = False
    widened: bool = False


USUAL = Arithmetic()
