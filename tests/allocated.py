"""What torch holds in memory, counted at each operation, those of the gradient among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocated(TorchDispatchMode):
    """Within it, `peak` is the most bytes that tensors which `counts` held at once, of those made within."""

    def __init__(self, counts: Callable[[Tensor], bool] = lambda tensor: True) -> None:
        super().__init__()
        self.counts, self.peak = counts, 0
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}  # by storage

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.alive = {key: (ref, size) for key, (ref, size) in self.alive.items() if not ref.expired()}
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and self.counts(tensor):
                storage = tensor.untyped_storage()
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return found
