"""llama.cpp's own Q4_K_M of a GGUF file: python quantize_llama_cpp.py IN.gguf OUT.gguf"""

from __future__ import annotations

import os
import sys

import llama_cpp


def main() -> None:
    source, target = sys.argv[1:3]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    params.nthread = 2
    partial = target + ".partial"
    if llama_cpp.llama_model_quantize(source.encode(), partial.encode(), params) != 0:
        sys.exit(f"llama.cpp could not quantize {source}")
    os.replace(partial, target)


if __name__ == "__main__":
    main()
