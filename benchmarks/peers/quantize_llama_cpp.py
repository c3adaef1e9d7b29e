"""llama.cpp's own quantisation of a GGUF file: python quantize_llama_cpp.py IN.gguf OUT.gguf Q4_K_M"""

from __future__ import annotations

import os
import sys

import llama_cpp


def main() -> None:
    source, target, kind = sys.argv[1:4]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread = 2
    partial = target + ".partial"
    if llama_cpp.llama_model_quantize(source.encode(), partial.encode(), params) != 0:
        sys.exit(f"llama.cpp could not quantize {source}")
    os.replace(partial, target)


if __name__ == "__main__":
    main()
