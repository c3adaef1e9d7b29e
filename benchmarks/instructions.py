"""Instructions that an ARM CPU takes for a row of weights and 256 columns, counted by an emulator.

    python -m benchmarks.instructions [--encodings Q4_K,Q8_0] [--rows 1,4,16]

Where no ARM machine is: needs Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user. A count is
not a time: some instructions take longer, and memory is not in it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from edgespec.kernels import compiled
from edgespec.kernels.low_bit import stored_row_bytes

NATIVE = Path(compiled.__file__).resolve().parent / "native"
INNER = 1024
LEVELS = (2, 1, 0)  # i8mm, NEON without it, plain C
SOURCE = r"""
#include <stdlib.h>
#include "native.h"
int main(int count, char **words) { /* level, format, bytes of a row, type of x, rows of weights, rows of x */
  if (count != 7 || es_level(atoi(words[1])) != atoi(words[1])) return 1;
  const int64_t format = atoi(words[2]), bytes = atoi(words[3]), rows = atoi(words[5]), n = atoi(words[6]);
  uint8_t *w = aligned_alloc(64, (size_t)(rows * bytes + 65536));
  uint8_t *x = aligned_alloc(64, (size_t)(n * INNER * 4));
  float *out = aligned_alloc(64, (size_t)(n * rows * 4 + 64)), scale[64];
  memset(w, 0x11, (size_t)(rows * bytes + 65536));
  memset(x, 0x3C, (size_t)(n * INNER * 4)); /* some number in each type */
  for (int i = 0; i < 64; i++) scale[i] = 0.01f;
  const Matrix m = {format, w, bytes, rows, scale, INNER / SUPER, rows};
  void *outs[1] = {out};
  const int64_t needed = es_linear(&m, 1, INNER, x, atoi(words[4]), n, 0, 0, 1, outs, 0, 1, NULL, 0);
  char *room = aligned_alloc(64, (size_t)needed + 64);
  es_linear(&m, 1, INNER, x, atoi(words[4]), n, 0, 0, 1, outs, 0, 1, room, needed);
  return 0;
}
"""


def build(folder: Path) -> Path:
    """A program that multiplies once."""
    (folder / "once.c").write_text(SOURCE)
    flags = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-static", f"-DINNER={INNER}", "-I", NATIVE]
    sources = [folder / "once.c", *sorted(NATIVE.glob("*.c"))]
    command = ["aarch64-linux-gnu-gcc", *flags, "-o", folder / "once", *sources, "-lm", "-lpthread"]
    subprocess.run(command, check=True)
    return folder / "once"


def executed(program: Path, *numbers: int) -> int:
    """Instructions of one run."""
    trace = ["qemu-aarch64", "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-D", "/dev/stdout"]
    with subprocess.Popen([*trace, program, *map(str, numbers)], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        found = sum(line.startswith(b"Trace") for line in run.stdout)
    if run.returncode:
        sys.exit(f"the program, or {trace[0]}, ended with {run.returncode}")
    return found


def instructions(program: Path, level: int, encoding: str, n: int) -> float:
    """Of what 32 more rows of weights take, for each of them and 256 columns."""
    x_type = compiled.SOURCES[torch.float16 if encoding == "F16" else torch.bfloat16]
    what = (level, compiled.FORMATS[encoding], stored_row_bytes(encoding, INNER), x_type)
    few, many = (executed(program, *what, rows, n) for rows in (32, 64))
    return (many - few) / (32 * INNER / 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--encodings", default="Q4_K,Q5_K,Q6_K,Q8_0,Q4_0,U8,I8,F16,BF16")
    parser.add_argument("--rows", default="1,4,16")
    options = parser.parse_args()
    rows = [int(n) for n in options.rows.split(",")]
    print(f"| encoding | {' | '.join(f'{n} rows: i8mm, NEON, plain C' for n in rows)} |")
    print("|---" * (1 + len(rows)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for encoding in options.encodings.split(","):
            found = [
                ", ".join(f"{instructions(program, level, encoding, n):.0f}" for level in LEVELS)
                for n in rows
            ]
            print(f"| {encoding} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
