"""Serving many sessions, and split verification."""
