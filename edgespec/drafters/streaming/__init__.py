"""Speculative streaming: a small model that names several tokens a step, and verifies them in the next."""
