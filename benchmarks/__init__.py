"""Benchmarks of EdgeSpec: one script a question, run from the checkout as `python -m benchmarks.<script>`."""
