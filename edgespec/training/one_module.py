"""What runs of drafters that are one module have in common: `trained_files` has how such a one is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import nn

from edgespec.errors import OptionError
from edgespec.runtimes.formats.describe import ModelFiles
from edgespec.runtimes.torch.trained_files import Shapes, describe_module, parameter_bytes, save_module
from edgespec.training.corpus import corpus_digest
from edgespec.training.target import FrozenTarget

S = TypeVar("S", bound=msgspec.Struct)
M = TypeVar("M", bound=nn.Module)


class ModuleRecipe(Generic[S]):
    """What such a `training.run.Recipe` has; of its own are `nbytes` and `begin`."""

    def __init__(
        self,
        files: ModelFiles,
        kind: str,
        shape: S,
        shapes: Shapes[S],
        depths: Sequence[int],
        earlier: Path | None,
    ) -> None:
        """`depths`: see `training.run.Recipe`. `earlier`: a directory with a drafter to begin with. Raises
        OptionError for one of another shape, and as `describe_module`."""
        self.files, self.kind, self.shape, self.depths = files, kind, shape, depths
        self.shapes = shapes(files.config, shape)
        self.first = None
        if earlier is not None:
            self.first = describe_module(earlier, kind, type(shape), shapes, files, fitting=False)
            if self.first.shape != shape:
                raise OptionError(f"{earlier} has {self.unlike(self.first.shape)}")

    def unlike(self, other: S) -> str:
        """What a drafter of another shape has, and what to do."""
        return f"{other}, not {self.shape}; train anew"

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `training.run.Recipe`."""
        first = None if self.first is None else corpus_digest([self.first.path])
        return {"drafter": self.kind, **msgspec.structs.asdict(self.shape), "first": first}

    @property
    def state_bytes(self) -> int:
        """Masters, gradients and two moments, all fp32; the cast copies."""
        return 4 * parameter_bytes(self.shapes, 4) + parameter_bytes(self.shapes, 2)

    def fill(self, module: nn.Module, initialise: Callable[[], None]) -> None:
        """Give the module the parameters that it begins with: those of an earlier one, or new ones."""
        if self.first is None:
            initialise()
        else:
            self.first.read(module)
            module.requires_grad_(True)


class ModulePupil(Generic[M, S]):
    """What such a `training.run.Pupil` has; of its own are `loss` and `evaluate`."""

    def __init__(self, target: FrozenTarget, drafter: M, recipe: ModuleRecipe[S]) -> None:
        self.target, self.drafter, self.recipe = target, drafter, recipe

    @property
    def module(self) -> nn.Module:
        """What is trained: the drafter, or what has it in itself and calls it."""
        return self.drafter

    @property
    def groups(self) -> Sequence[Sequence[nn.Parameter]]:
        return [list(self.drafter.parameters())]

    def save(self, out: Path, facts: Mapping[str, Mapping[str, Any]], dtype: torch.dtype) -> None:
        recipe = self.recipe
        save_module(out, recipe.kind, recipe.shape, self.drafter, recipe.files, facts[recipe.kind], dtype)
