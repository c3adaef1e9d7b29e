"""Packing a model: streaming, resumable, atomic."""
