"""Checkpoints as they lie on disk: safetensors directories, GGUF, packed directories. No torch."""
