"""The reference runtime: torch, with resident and streamed weights."""
