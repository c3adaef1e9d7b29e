"""What the demo model says about EdgeSpec: one reply a topic, and the many ways to ask for it.

Wordings are small grammars: `[a|b|]` is one of these, and they may be nested (`product.spelled`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """One reply. `names` go into questions such as `What does {name} do?`, `goals` into `How do I {goal}?`;
    `asks` are whole questions."""

    name: str
    reply: str
    names: tuple[str, ...] = ()
    goals: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
