"""Settings for all tests."""

from __future__ import annotations

import os
import signal

import torch

# A shell's background job ignores Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tiny matrices gain nothing from threads, and on a busy machine every parallel region waits for the slowest.
# Tests that are about threads set their own number.
torch.set_num_threads(1)

# Without a GPU the Triton kernels run in its interpreter. Whoever imports triton first decides it for all.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
