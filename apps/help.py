"""How --help looks: typer's, without what it says of Python's types, and with examples as they are typed."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Plain:
    """A command, in words: MODEL and not {MODEL} <str>, --help and not --help <bool>."""

    epilog: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.param_type_name == "argument":
                param.display_type_rich = lambda ctx: None
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.strip("{}") for piece in pieces]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        examples, self.epilog = self.epilog, None  # typer would wrap them, or space them out
        try:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        finally:
            self.epilog = examples
        print(examples)


class Command(_Plain, TyperCommand):
    pass


class Group(_Plain, TyperGroup):
    pass
