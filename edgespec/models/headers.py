"""A model on the hub by its headers alone: kilobytes by range requests, where the weights are gigabytes.

What is fetched lies in files as long as the real ones, with holes where the weights would be, so the same
code reads and judges them. Needs no torch.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from edgespec.errors import CorruptFileError, ModelError
from edgespec.models.hub import INDEX, HubModel, explained, wanted_files
from edgespec.offload.safetensors_header import HEADER_LIMIT
from edgespec.runtimes.formats.gguf_file import HEADER_LIMIT as GGUF_LIMIT
from edgespec.runtimes.formats.gguf_file import read_gguf_file
from edgespec.values import format_bytes

SMALL = {"config.json", "generation_config.json", INDEX}  # fetched whole
SMALL_LIMIT = 64 * 2**20  # bytes
BLOCK = 2**20  # bytes that a header is fetched in
PARTIAL = 206  # HTTP's status of a range
LONGEST = 2**46  # bytes; no file of weights is longer
FREQUENCIES = "rope_freqs.weight"  # small, and part of a GGUF's configuration


def fetch_headers(model: HubModel, folder: Path, offline: bool = False) -> Path:
    """Headers and configuration of a model on the hub, in `folder`; the path to describe.

    Raises ModelError when there is no such model, it cannot be reached (or may not: `offline`) or only whole
    files can be had, and CorruptFileError for headers that are longer than they may be.
    """
    from huggingface_hub import HfApi, HfFileSystem, constants

    if offline or constants.HF_HUB_OFFLINE:
        raise ModelError(f"{model} is not in the cache, and its headers cannot be fetched offline")
    with explained(model):
        info = HfApi().model_info(model.repo, revision=model.revision, files_metadata=True, timeout=10)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
        files, wanted = HfFileSystem(), wanted_files(model, sizes, info.sha)
        _check_ranges(model, info.sha, max(wanted, key=lambda name: sizes[name]))
        for name in wanted:
            if name.endswith((".safetensors", ".gguf")) or name in SMALL:
                with files.open(f"{model.repo}@{info.sha}/{name}", "rb", block_size=BLOCK) as remote:
                    _fetch(remote, sizes[name], folder / name)
        return folder / model.file if model.file else folder


def _check_ranges(model: HubModel, commit: str | None, name: str) -> None:
    """Mirrors that know no ranges answer with gigabytes, all of which the library would hold. Raises
    ModelError."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub import utils as of_this_version

    utils: Any = of_this_version
    url = hf_hub_url(model.repo, name, revision=commit)
    what: dict[str, Any] = {"headers": utils.build_hf_headers() | {"Range": "bytes=0-0"}}
    with ExitStack() as stack:
        if hasattr(utils, "http_stream_backoff"):  # huggingface_hub 1.0
            answer = stack.enter_context(utils.http_stream_backoff("GET", url, follow_redirects=True, **what))
        else:
            answer = stack.enter_context(utils.http_backoff("GET", url, stream=True, **what))
        utils.hf_raise_for_status(answer)
        if answer.status_code != PARTIAL:
            raise ModelError(
                f"{constants.ENDPOINT} gives whole files only, so headers alone cannot be had of it; "
                f"download {model.repo}, and name its folder"
            )


def _fetch(remote: Any, size: int, path: Path) -> None:
    """The beginning of one file that matters, then a hole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if size > LONGEST:
        raise CorruptFileError(f"{path} is said to have {format_bytes(size)}; no model has")
    with path.open("wb") as local:
        if path.suffix == ".safetensors":
            start = remote.read(8)
            length = int.from_bytes(start, "little")
            if length <= min(HEADER_LIMIT, size):  # else it is refused by whoever reads it
                start += remote.read(length)
            local.write(start)
        elif path.suffix != ".gguf":
            if size > SMALL_LIMIT:
                raise CorruptFileError(f"{path} has {format_bytes(size)}, more than such a file can need")
            local.write(remote.read(size))
        local.truncate(size)
    if path.suffix == ".gguf":
        _fetch_gguf(remote, size, path)


def _fetch_gguf(remote: Any, size: int, path: Path) -> None:
    """A GGUF says nowhere how long its header is: as much as it takes to be read."""
    known = 0
    while True:
        block = remote.read(min(max(BLOCK, known), GGUF_LIMIT - known))
        with path.open("r+b") as local:
            local.seek(known)
            local.write(block)
        known += len(block)
        try:
            parsed = read_gguf_file(path)
        except CorruptFileError:  # zeros are no tensors: what is cut off cannot be taken for whole
            if not block or known >= min(size, GGUF_LIMIT):
                raise
            continue
        break
    tensor = parsed.tensors.get(FREQUENCIES)
    if tensor is not None and tensor.nbytes <= BLOCK:
        remote.seek(tensor.offset)
        with path.open("r+b") as local:
            local.seek(tensor.offset)
            local.write(remote.read(tensor.nbytes))
