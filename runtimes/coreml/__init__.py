"""Models that Core ML executes on a Mac: how they are written, checked and run. Needs no torch."""
