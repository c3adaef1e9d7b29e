"""A drafter in one file, as anybody might add it: it says what stands in a file of token ids. And one without
any file, which always says the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.core.acceptance import Outcome
from edgespec.core.schedule import Context, TreeBudget
from edgespec.core.tree import TokenTree
from edgespec.drafters.base import Root, committed
from edgespec.drafters.kind import Kind
from edgespec.drafters.resident import Found, Search
from edgespec.errors import OptionError
from edgespec.offload.plan.needs import Extras
from edgespec.offload.plan.plan import Plan
from edgespec.runtimes.base import KVCache

ROW = Kind(
    "script",
    "the script",
    roots=True,
    draws=False,
    option="script",
    needs="a file of token ids; name it with script=",
    find=f"{__name__}:find",
)

FREE = Kind(
    "always", "the same again", roots=True, draws=False, make=lambda: Prompter([ALWAYS] * 1000, False)
)
ALWAYS = 7  # the token


def find(search: Search, found: dict[str, Found]) -> Script:
    """Raises OptionError when there is no such file."""
    path = search.given["script"]
    if not path.is_file():
        raise OptionError(f"script is {path}; there is no such file")
    return Script(path)


@dataclass
class Script:
    """The file, known and then read: see `drafters.resident.Found` and `Resident`."""

    path: Path
    name = "script"
    nbytes = 0
    rows = 0
    closed = False

    @property
    def extras(self) -> Extras:
        return Extras({"script": lambda context: self.path.stat().st_size})

    def unused(self, plan: Plan) -> str | None:
        return None

    def reads(self, plan: Plan) -> int:
        return self.path.stat().st_size

    def resident(self, target: object, plan: Plan, progress: Callable[[int], None]) -> Script:
        self.tokens = json.loads(self.path.read_text())
        progress(self.reads(plan))
        return self

    def drafter(self, cache: KVCache, vocabulary: int) -> Prompter:
        return Prompter(self.tokens)

    def close(self) -> None:
        self.closed = True


class Prompter:
    """See `drafters.base.Drafter`: behind n tokens stands the script's n-th."""

    passes = range(1)

    def __init__(self, script: Sequence[int], resident: bool = True) -> None:
        self.script, self.resident, self.length = script, resident, 0

    def prefill(self, context: Context) -> None:
        self.length = len(context.tokens)

    def start(self, roots: Sequence[Root], budget: TreeBudget) -> Prompting:
        return Prompting(self, roots, budget)

    def commit(self, root: int, outcome: Outcome) -> None:
        self.length += len(committed(root, outcome))


@dataclass
class Prompting:
    """See `drafters.base.Drafting`: everything is there at once."""

    prompter: Prompter
    roots: Sequence[Root]
    budget: TreeBudget

    def step(self) -> bool:
        return False

    def tree(self, root: int = 0) -> TokenTree:
        path = self.roots[root].path
        first = self.prompter.length + len(path)
        more = min(self.budget.depth, self.budget.nodes - 1)
        return TokenTree.chain([path[-1], *self.prompter.script[first : first + more]])

    def stop(self) -> None:
        pass

    def cancel(self) -> None:
        pass
