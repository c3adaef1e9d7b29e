"""Settings for all tests."""

from __future__ import annotations

import torch

# Tiny matrices gain nothing from threads, and on a busy machine every parallel region waits for the slowest.
# Tests that are about threads set their own number.
torch.set_num_threads(1)
