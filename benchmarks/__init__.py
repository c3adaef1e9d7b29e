"""Benchmarks of EdgeSpec: one script a question, run from the checkout as `python -m benchmarks.<script>`."""

import edgespec  # noqa: F401  before torch, whose threads then wait as they do for users
