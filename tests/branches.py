"""Which branches of modules are taken, by their instructions: so `a and b` in one line is two of them.

An assertion that fails, and an exception that no handler names, are bugs, and no branches: as for `coverage`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

Place = tuple[str, str, int, int]  # an instruction: file, function and its line, offset


class Branches:
    """Of these modules' functions, in this thread, while the `with` lasts."""

    def __init__(self, *modules: ModuleType) -> None:
        self.files = {str(module.__file__) for module in modules}
        self.ways: dict[Place, set[int]] = {}  # conditional jumps, and what came next: two, if both ways did
        for module in modules:
            with open(str(module.__file__), encoding="utf-8") as source:
                whole = compile(source.read(), str(module.__file__), "exec")
            self.ways.update((_place(code, at), set()) for code in _inside(whole) for at in _jumps(code))

    @property
    def share(self) -> float:
        """Of both ways of all conditional jumps."""
        return sum(min(len(ways), 2) for ways in self.ways.values()) / (2 * len(self.ways))

    def missed(self) -> list[Place]:
        return [place for place, ways in self.ways.items() if len(ways) < 2]

    def __enter__(self) -> Branches:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        jump: set[int] | None = None  # whose way is next

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal jump
            if event == "opcode":
                if jump is not None:
                    jump.add(frame.f_lasti)
                jump = self.ways.get(_place(frame.f_code, frame.f_lasti))
            elif event == "exception":  # neither way
                jump = None
            return step

        return step


def _inside(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _inside(inner)


def _jumps(code: CodeType) -> Iterator[int]:
    """Offsets of those that are conditional."""
    steps = list(dis.get_instructions(code))
    for before, step, after in zip([steps[0], *steps], steps, [*steps[1:], steps[-1]], strict=False):
        jumps = step.opcode in (*dis.hasjrel, *dis.hasjabs)
        excepts = before.opname == "CHECK_EXC_MATCH" or step.opname == "JUMP_IF_NOT_EXC_MATCH"
        asserts = after.opname == "LOAD_ASSERTION_ERROR"
        if jumps and ("_IF_" in step.opname or step.opname == "FOR_ITER") and not (excepts or asserts):
            yield step.offset


def _place(code: CodeType, offset: int) -> Place:
    return code.co_filename, code.co_name, code.co_firstlineno, offset
