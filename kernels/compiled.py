"""Compiled kernels for low-bit, fp16 and bf16 weights (kernels/native): bits that no row count or thread
count changes, nor, bf16 apart, does the CPU.

fp16 weights are widened where they are used; sums are fp32's, in a fixed order. bf16 has the order of AMX or
of AVX-512 BF16 where they are there. Beside low-bit weights
activations become 15-bit integers, one step for 32 columns; products with the weights' own integers are
summed exactly, and groups in a fixed order (native.h says which). A group's largest activation is right to
2^-15, where a bf16 number has 2^-9: this is the weight-only matmul, without the 8-bit activations of other
runtimes.

`install.sh` builds the library where it finds a C compiler. Without it torch's operations do the work,
tens of times slower (`unavailable()` says why).
"""

from __future__ import annotations

import ctypes
import importlib.machinery
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from edgespec.kernels.choice import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    AVX_VNNI,
    CHOSEN,
    FEWS,
    LOW_BIT,
    PLAIN,
    RARE,
    ROWS,
    TORCH,
    Choice,
)
from edgespec.kernels.cpu import matmul_dtype
from edgespec.kernels.low_bit import padded_columns, stored_row_bytes
from edgespec.kernels.scratch import at_hand, scratch

VERSION = 31  # of native.c's functions
FORMATS = {encoding: number for number, encoding in enumerate((*LOW_BIT, *PLAIN))}
SOURCES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # native/floats.h's
MOST_BLOCKS = 16  # of a call: native.c's MOST_PARTS
ALL = 2**20  # rows, and more than a prompt's block has
_SUPER = 256  # columns decoded together

_P, _N, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


def _open(folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """The library in `folder`, or None and why there is none."""
    files = [folder / f"_native{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return None, "they were not built: install.sh builds them where it finds a C compiler"
    try:
        library = ctypes.CDLL(str(file))
        version = int(library.es_version())
    except (OSError, AttributeError) as error:
        return None, f"{file} cannot be loaded ({error}); run install.sh again"
    if version != VERSION:
        return None, f"{file} is of version {version}, not {VERSION}; run install.sh again"
    library.es_linear.argtypes = [_P, _I, _N, _P, _I, _N, _I, _I, _I, _P, _I, _I, _P, _N]
    library.es_linear.restype = _N
    library.es_dense.argtypes = [_P, _N, _P, _I, _I]
    library.es_dense.restype = None
    library.es_quantise_weights.argtypes = [_I, _I, _P, _N, _N, _P, _N, _P, _I]
    library.es_norm.argtypes = [_I, _P, _P, _P, ctypes.c_float, _P, _N, _N, _I]
    library.es_swiglu.argtypes = [_I, _P, _N, _P, _N, _P, _N, _N, _I]
    library.es_rotate.argtypes = [_I, _I, _P, _N, _N, _P, _N, _N, _P, _P, _N, _N, _I]
    library.es_attend.argtypes = [_P, _N, _I, _P, _N]
    library.es_attend.restype = _N
    library.es_layers.argtypes = [_P, _N, _P, _N, _P, _P, _P, _P, _N]
    library.es_layers.restype = _N
    library.es_has.argtypes = [_I]
    library.es_choose.argtypes = [_I, _I, _I]
    for name in ("es_norm", "es_swiglu", "es_rotate", "es_choose"):
        getattr(library, name).restype = None
    return library, ""


@lru_cache
def _library() -> tuple[ctypes.CDLL | None, str]:
    return _open(Path(__file__).resolve().parent)


def library() -> ctypes.CDLL | None:
    """What `elementwise` and `tree_attention` call; None where it was not built, or does not fit."""
    return _library()[0]


def unavailable() -> str:
    """Why the kernels are not there; empty when they are."""
    return _library()[1]


def available(encoding: str) -> bool:
    """Whether weights of this encoding are multiplied here: low-bit and fp16 ones, whose bits are the same on
    every CPU, always; bf16 in the order that `order` says."""
    if _library()[0] is None or encoding not in FORMATS:
        return False
    return encoding != "BF16" or order(encoding) != TORCH


def own_prompt(encoding: str, dtype: torch.dtype) -> bool:
    """Whether a prompt's rows of `dtype` are multiplied here in an order of sums of their own: fp16 by fp16
    weights, bf16 by the others."""
    if _library()[0] is None or encoding not in FORMATS:
        return False
    if dtype != (torch.float16 if encoding == "F16" else torch.bfloat16) or order(encoding) == TORCH:
        return False
    return encoding != "BF16" or order(encoding) >= AVX512_BF16  # else as a tree's rows, and many by torch


def few(encoding: str, dtype: torch.dtype) -> int:
    """So many rows of a prompt are multiplied as a tree's are."""
    if not own_prompt(encoding, dtype):
        return FEWS[1]
    chosen = _chosen(encoding)
    return usual_few(encoding) if chosen is None else chosen.few


def chains(encodings: Iterable[str], dtype: torch.dtype) -> int:
    """So many rows of a prompt, of `dtype`, have a tree's bits where weights of these encodings multiply
    them, so that they may attend as a tree's, too. By AMX torch attends to many rows more quickly."""
    most = min((_in_tree_order(encoding, dtype) for encoding in encodings), default=0)
    return 0 if most > FEWS[0] and level() == AMX else most


def _in_tree_order(encoding: str, dtype: torch.dtype) -> int:
    if not available(encoding):
        return 0
    if own_prompt(encoding, dtype) and as_trees(order(encoding)):
        return ALL
    return few(encoding, dtype)


def order(encoding: str) -> int:
    """`Choice.order`: what was chosen, or by features. There must be a library."""
    chosen = _chosen(encoding)
    return usual_order(encoding) if chosen is None else chosen.order


def _chosen(encoding: str) -> Choice | None:
    chosen = CHOSEN.get(encoding)
    return chosen if chosen is not None and chosen.order <= level() else None  # a test may lower it


def usual_order(encoding: str) -> int:
    """By features: bf16 and low-bit prompts by AMX and AVX-512 BF16, fp16 prompts by AMX; where torch would
    compute in fp32, all of them in a tree's order."""
    best = best_level(encoding)
    if best == AMX or (best == AVX512_BF16 and encoding != "F16"):
        return best
    dtype = torch.float16 if encoding == "F16" else torch.bfloat16
    return min(best, AVX512) if matmul_dtype(dtype) != dtype and best >= AVX2 else TORCH


def best_level(encoding: str) -> int:
    """An index of LEVELS: the best instructions that there are here for weights so stored."""
    best = min(level(), AVX_VNNI) if encoding in RARE else level()
    return AVX2 if best == AVX_VNNI and (encoding in PLAIN or AVX_VNNI not in levels()) else best


def as_trees(order: int) -> bool:
    """Whether low-bit weights' order of sums is that of a tree's rows."""
    return AVX2 <= order <= AVX512


def usual_few(encoding: str) -> int:
    """By features: more rows than these are multiplied faster in a prompt's order. Of Q4_K,
    11008 x 4096, on AMX 16 rows take 4.6 ms so and 2.4 as a tree's, 32 4.1 and 4.3, 64 5.2 and 8.5; of 1024 x
    4096 on one core of an EPYC 64 rows take 2.8 and 3.6 ms. Of bf16, 11008 x 4096, on both cores 40 rows take
    6.1 and 8.7 ms, 64 8.3 and 11.3; AMX multiplies a tree's 64 rows by it as fast as a prompt's."""
    usual = usual_order(encoding)
    return FEWS[encoding == "F16" or usual < AVX512_BF16 or (encoding == "BF16" and usual == AMX)]


def choose(encoding: str, choice: Choice) -> Choice:
    """Multiply so from now on, unless another choice was made in this process; returns what counts."""
    library, why = _library()
    assert library is not None, why
    choice = CHOSEN.setdefault(encoding, choice)
    for place, way in enumerate(choice.ways):
        library.es_choose(FORMATS[encoding], place, 1 + way)
    if choice.order != TORCH:
        library.es_choose(FORMATS[encoding], len(ROWS), 1 + 2 * choice.order)
    return choice


def unpacks(encoding: str, dtype: torch.dtype) -> bool:
    """Whether `dense` makes numbers of `dtype` of weights so stored."""
    return encoding not in PLAIN and dtype != torch.float16 and available(encoding)


def level(most: int = -1) -> int:
    """An index of LEVELS: the instructions in use. `most` lowers it (for tests: the bits are the same)."""
    library, why = _library()
    assert library is not None, why
    return int(library.es_level(most))


def levels() -> list[int]:
    """Indices of LEVELS: all instructions in use, each of which `level` may be lowered to."""
    library, why = _library()
    assert library is not None, why
    return [instructions for instructions in range(level() + 1) if library.es_has(instructions)]


class _Matrix(ctypes.Structure):
    """native.c's Matrix: rows of weights, all fields of 64 bits."""

    _fields_ = (
        ("format", _N), ("weights", _P), ("row_bytes", _N), ("rows", _N), ("scale", _P), ("supers", _N),
        ("out_stride", _N),
    )  # fmt: skip


def _matrix(encoding: str, data: Tensor, scale: Tensor | None, columns: int, out_stride: int) -> _Matrix:
    assert data.stride(1) == 1
    assert scale is None or scale.is_contiguous()
    row_bytes = data.stride(0) * data.element_size()
    held = padded_columns(columns) if encoding == "U8" else columns
    supers = (held + _SUPER - 1) // _SUPER  # those of int4 hold 128 of each half, whole groups of 32
    at = None if scale is None else scale.data_ptr()
    return _Matrix(FORMATS[encoding], data.data_ptr(), row_bytes, len(data), at, supers, out_stride)


Rows = tuple[str, Tensor, Tensor | None]  # encoding, data [rows, row bytes], `matmul.Block`'s scale


class Matrices:
    """Matrices that the same activations are multiplied with, in one call; each is blocks of rows.

    x is quantised once and threads meet once, where q, k and v one by one would do so three times.
    """

    def __init__(self, matrices: Sequence[Sequence[Rows]], columns: int) -> None:
        """Raises ValueError for more blocks than one call takes."""
        count = sum(len(blocks) for blocks in matrices)
        if not 0 < count <= MOST_BLOCKS:
            raise ValueError(f"{count} blocks of rows; one call takes {MOST_BLOCKS}")
        self.columns = columns
        self.kept = matrices  # what the addresses point to
        self.rows = [sum(len(data) for _, data, _ in blocks) for blocks in matrices]
        self.places: list[tuple[int, int]] = []  # of each block's products: the matrix, the first row
        described = []
        for i, blocks in enumerate(matrices):
            first = 0
            for encoding, data, scale in blocks:
                described.append(_matrix(encoding, data, scale, columns, self.rows[i]))
                self.places.append((i, first))
                first += len(data)
        self.described = (_Matrix * count)(*described)

    def times(
        self, x: Tensor, dtype: torch.dtype, prompt: bool = False, tried: int | None = None
    ) -> list[Tensor]:
        """x [n, columns] @ each matrix^T -> [n, rows] of `dtype`; a `prompt`'s may be in an order of its own.
        tried: one of `Choice.ways`, in place of the chosen one; or 2 * one of its orders."""
        library, why = _library()
        assert library is not None, why
        n, columns = x.shape
        assert columns == self.columns
        terms = 2 if x.dtype == torch.float32 else 1  # what 15 bits miss of fp32 is multiplied, too
        x = x.contiguous()
        outs = [torch.empty((n, rows), dtype=dtype) for rows in self.rows]
        addresses = [out.data_ptr() for out in outs]
        starts = (_P * len(self.places))(*[addresses[i] + first * dtype.itemsize for i, first in self.places])
        call = (
            self.described, len(self.places), columns, x.data_ptr(), SOURCES[x.dtype], n, prompt,
            0 if tried is None else 1 + tried, terms, starts, SOURCES[dtype], torch.get_num_threads(),
        )  # fmt: skip
        room = at_hand("matmul")
        size = room.numel()  # len() of a tensor takes 9 microseconds
        if (needed := library.es_linear(*call, room.data_ptr(), size)) > size:
            library.es_linear(*call, scratch("matmul", (needed,), torch.uint8).data_ptr(), needed)
        return outs


def linear(
    x: Tensor,
    encoding: str,
    data: Tensor,
    scale: Tensor | None,
    dtype: torch.dtype = torch.float32,
    prompt: bool = False,
    tried: int | None = None,
) -> Tensor:
    """x [n, k] @ weights^T -> [n, rows] of `dtype`; `data` [rows, row bytes], `scale`: `matmul.Block`'s."""
    return Matrices([[(encoding, data, scale)]], x.shape[1]).times(x, dtype, prompt, tried)[0]


def dense(encoding: str, data: Tensor, scale: Tensor | None, columns: int, out: Tensor) -> Tensor:
    """The weights as numbers, written into `out` [rows, at least `columns`], bf16 or fp32."""
    library, why = _library()
    assert library is not None, why
    assert out.dtype in (torch.bfloat16, torch.float32)
    assert out.stride(1) == 1
    matrix = _matrix(encoding, data, scale, columns, out.stride(0))
    library.es_dense(
        ctypes.byref(matrix), columns, out.data_ptr(), out.dtype == torch.bfloat16, torch.get_num_threads()
    )
    return out[:, :columns]


def quantize(w: Tensor, encoding: str) -> tuple[Tensor, Tensor] | None:
    """`quantize.quantize_int8` ("I8") or `quantize_int4` ("U8") of a CPU's w [n, k], the same bits.

    None when a weight is not finite.
    """
    library, why = _library()
    assert library is not None, why
    n, k = w.shape
    w = w.contiguous()
    row_bytes = stored_row_bytes(encoding, k)
    data = torch.empty((n, row_bytes), dtype=torch.int8 if encoding == "I8" else torch.uint8)
    scale = torch.empty(n)
    status = library.es_quantise_weights(
        int(encoding == "U8"), SOURCES[w.dtype], w.data_ptr(), n, k, data.data_ptr(), row_bytes,
        scale.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    if status < 0:
        raise MemoryError("there is no memory for the steps of a row's groups")
    return None if status else (data, scale)
