"""Where a model executes."""
