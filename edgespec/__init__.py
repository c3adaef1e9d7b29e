"""EdgeSpec runs language models larger than the memory they may use, with exactly the model's own output.

    import edgespec
    engine = edgespec.load("model-dir", memory="8GB")
    for response in edgespec.stream_generate(engine, "Once upon a time"):
        print(response.text, end="")

Names are loaded on first use, so that importing the package (or its command line) does not import torch.
Until this module is there the command does not hear signals: `typing` and `pathlib` would take 8 ms each.
"""

from __future__ import annotations

import importlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from edgespec.api import agenerate, astream_generate, generate, load, stream_generate, tune
    from edgespec.chat import Chat
    from edgespec.config import EngineOptions, GenerationOptions
    from edgespec.engine import Engine
    from edgespec.errors import (
        BudgetError,
        BusyError,
        Cancelled,
        ClosedError,
        ContextError,
        CorruptFileError,
        DeviceError,
        EdgeSpecError,
        LinkError,
        MissingExtraError,
        ModelError,
        OptionError,
        OverloadError,
        ProtocolError,
        RefusedError,
        RemoteError,
        StorageError,
        TokenizerError,
        TrainingError,
        UnsupportedModelError,
    )
    from edgespec.response import Response, Stats
    from edgespec.session import Session
    from edgespec.split.client import connect

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "BusyError",
    "Cancelled",
    "Chat",
    "ClosedError",
    "ContextError",
    "CorruptFileError",
    "DeviceError",
    "EdgeSpecError",
    "Engine",
    "EngineOptions",
    "GenerationOptions",
    "LinkError",
    "MissingExtraError",
    "ModelError",
    "OptionError",
    "OverloadError",
    "ProtocolError",
    "RefusedError",
    "RemoteError",
    "Response",
    "Session",
    "Stats",
    "StorageError",
    "TokenizerError",
    "TrainingError",
    "UnsupportedModelError",
    "__version__",
    "agenerate",
    "astream_generate",
    "connect",
    "generate",
    "generate_batch",
    "load",
    "stream_generate",
    "tune",
]

_HOME = {
    **dict.fromkeys(
        ["agenerate", "astream_generate", "generate", "generate_batch", "load", "stream_generate", "tune"],
        "edgespec.api",
    ),
    **dict.fromkeys(["EngineOptions", "GenerationOptions"], "edgespec.config"),
    **dict.fromkeys(["Response", "Stats"], "edgespec.response"),
    "Chat": "edgespec.chat",
    "connect": "edgespec.split.client",
    "Engine": "edgespec.engine",
    "Session": "edgespec.session",
}

# torch's threads wait for one another after each of hundreds of operations a token. libgomp has them look for
# work 300,000 times, for milliseconds, and keep a core from whoever has work; asleep at once they are slow to
# wake. A 1b model in bf16 on 2 cores, alone and beside one busy program, in tokens/s: 300,000 looks 9.3 and
# 1.2; 30,000 looks 9.0 and 3.1; 3,000 looks 7.8 and 4.6; none 7.4 and 5.0. libgomp hears it when torch is
# loaded, and only if nothing else was said. A reply is waited for, and looks longer; training lasts, mostly
# beside other work, and keeps 0.54 of its speed there with 3,000 looks, 0.24 with 30,000 (alone 0.88).
SPINS, TRAINING_SPINS = "30000", "3000"
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)

# In a checkout, apps/, runtimes/, offload/, devices/ and kernels/ are siblings of this folder;
# installed, they are inside it. One line makes `edgespec.offload` mean the same in both.
_root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if all(os.path.isfile(os.path.join(_root, name)) for name in ("pyproject.toml", "offload/__init__.py")):
    __path__.append(_root)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_HOME.get(name, "edgespec.errors")), name)
    raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
