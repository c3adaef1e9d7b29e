"""Weights larger than memory: chunk store, direct reads, ring, streamer, ledger and plan."""
