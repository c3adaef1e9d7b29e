"""Which cases of a matrix run by default; the rest do with `pytest -m slow`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest


def covering(*dimensions: Mapping[str, Any] | Iterable[Any]) -> list[Any]:
    """All combinations of these values, as cases; by default as many run as the longest dimension has values,
    and each value of each is in one of them.

    A shorter dimension begins again, each time shifted against those before it."""
    named = [[*(d if isinstance(d, Mapping) else {str(v): v for v in d}).items()] for d in dimensions]
    sizes = [len(values) for values in named]
    default = {
        tuple((number + which * (number // size)) % size for which, size in enumerate(sizes))
        for number in range(max(sizes))
    }
    cases = []
    for places in product(*map(range, sizes)):
        names, values = zip(*(named[which][place] for which, place in enumerate(places)), strict=True)
        marks = () if places in default else pytest.mark.slow
        cases.append(pytest.param(*values, id="-".join(names), marks=marks))
    return cases
