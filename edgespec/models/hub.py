"""From what a user calls a model to files on this machine. Needs no torch.

Models on the Hugging Face hub go through huggingface_hub and its cache, so HF_HOME, HF_HUB_CACHE, HF_TOKEN,
HF_ENDPOINT and HF_HUB_OFFLINE mean what they always mean. Only what is read is downloaded: safetensors,
configs, the tokenizer. Files that have arrived are kept when a download breaks off.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import EdgeSpecError, ModelError, StorageError
from edgespec.offload.chunk_store import is_store
from edgespec.progress import Progress, ProgressCallback
from edgespec.runtimes.formats.exported import is_exported
from edgespec.values import format_bytes

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
BESIDE = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",  # not read, but tokenizer.json can be made from it
    "chat_template.jinja",
}
MAX_INDEX_BYTES = 64 * 2**20
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class HubModel:
    """A model on the hub: "org/name", "org/name@revision", or one GGUF file, "org/name/file.gguf"."""

    repo: str
    file: str | None  # a GGUF file in it
    revision: str | None

    @staticmethod
    def parse(name: str) -> HubModel | None:
        """None when `name` cannot be one."""
        pattern = r"([\w.-]{1,96}/[\w.-]{1,96})(?:/([\w./-]+\.gguf))?(?:@([\w./-]{1,200}))?"
        match = re.fullmatch(pattern, name, re.ASCII)
        if not match or ".." in name or re.search(r"--|/[-.]|[-.]/|^[-.]|[-.]$|\.git$", match[1]):
            return None
        return HubModel(match[1], match[2], match[3])

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"{self.repo}{file}@{self.revision}" if self.revision else self.repo + file


def resolve_model(name: str, progress: ProgressCallback | None = None, offline: bool = False) -> Path:
    """The path of a model directory (Hugging Face or packed) or a GGUF file.

    name: such a path, or a model on the hub, which is downloaded into the Hugging Face cache if it is not
    there; or, `offline`, refused. `progress` hears of the download in bytes.

    Raises ModelError when there is no such model, or none that can be used, StorageError when it does not fit
    on the disk.
    """
    found = find_here(name)
    if isinstance(found, Path):
        return found
    with explained(found):
        return _resolve_hub(found, progress, offline)


def find_here(name: str) -> Path | HubModel:
    """A model's path if it is here, or what to ask the hub for; reads almost nothing. Raises ModelError."""
    try:
        path = Path(name).expanduser()
        if name and path.exists():
            return _local(path)
    except (OSError, RuntimeError) as error:  # too long a name, a folder that is closed to us, nobody's home
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{name[:80]!r} cannot be looked up ({why}); check the spelling") from None
    model = HubModel.parse(name)
    if model is None or (name.endswith(".gguf") and model.file is None):
        raise ModelError(
            f"{name[:300]!r} is neither a directory or GGUF file here nor a model on the hub (which is "
            "org/name, for example Qwen/Qwen2.5-0.5B-Instruct); check the spelling"
        )
    return model


def _local(path: Path) -> Path:
    if path.is_file():
        try:
            with open(path, "rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from None
        if magic != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file; give the model's directory, or a GGUF file")
        return path
    if not (path / "config.json").is_file() and not is_store(path) and not is_exported(path):
        found = sorted(p.name for p in path.glob("*.gguf"))
        hint = f"; it holds {', '.join(found[:4])}: name the file itself" if found else ""
        raise ModelError(f"{path} is not a model directory: it has no config.json and is not packed{hint}")
    return path


def _resolve_hub(model: HubModel, progress: ProgressCallback | None, offline: bool) -> Path:
    import huggingface_hub as hub
    from huggingface_hub import constants

    if offline:
        return _cached(model, "offline= is set: leave it out once to download the model")
    if constants.HF_HUB_OFFLINE:
        return _cached(model, "HF_HUB_OFFLINE is set: unset it once to download the model")
    try:
        info = hub.HfApi().model_info(model.repo, revision=model.revision, files_metadata=True, timeout=10)
    except Exception as error:  # the transport's own kinds, another library's in every version
        status = getattr(getattr(error, "response", None), "status_code", 503)
        if isinstance(error, ValueError) or status < 500:
            raise
        return _cached(
            model, f"{constants.ENDPOINT} cannot be reached ({_line(error)}): check the connection"
        )
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    wanted = wanted_files(model, sizes, info.sha)
    found = {name: hub.try_to_load_from_cache(model.repo, name, revision=info.sha) for name in wanted}
    total = sum(sizes[name] for name in wanted)
    missing = sum(sizes[name] for name in wanted if not isinstance(found[name], str))
    _check_room(model, Path(constants.HF_HUB_CACHE), missing)
    with _watched(model, total, missing, progress):
        folder = Path(hub.snapshot_download(model.repo, revision=model.revision, allow_patterns=wanted))
    return folder / model.file if model.file else folder


def _parts(model: HubModel, files: dict[str, int]) -> list[str]:
    """The named GGUF file, with the other parts when it is split (name-00001-of-00003.gguf)."""
    assert model.file is not None
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", model.file)
    if split is None:
        return [model.file]
    parts = [f"{split[1]}-{i:05d}-of-{split[2]}.gguf" for i in range(1, int(split[2]) + 1)]
    if absent := [part for part in parts if part not in files]:
        raise ModelError(f"{model.repo} lacks {', '.join(absent[:3])}, a part of {model.file}")
    return parts


def wanted_files(model: HubModel, files: dict[str, int], commit: str | None) -> list[str]:
    """The files of the repository to download."""
    import huggingface_hub as hub

    ggufs = sorted(name for name in files if name.endswith(".gguf"))
    if model.file is not None:
        if model.file not in files:
            listed = ", ".join(ggufs[:20]) or "none"
            raise ModelError(f"{model.repo} has no file {model.file}; its GGUF files: {listed}")
        return _parts(model, files)
    extra = re.compile(r"additional_chat_templates/[^/]+\.jinja")
    beside = [name for name in files if name in BESIDE or extra.fullmatch(name)]
    if "config.json" in files and INDEX in files:
        index = Path(hub.hf_hub_download(model.repo, INDEX, revision=commit))
        shards = _shards(index)
        if absent := sorted(shards - set(files)):
            raise ModelError(f"{model.repo} lacks {', '.join(absent[:3])}, which its {INDEX} names")
        return [*beside, INDEX, *sorted(shards)]
    if "config.json" in files and WEIGHTS in files:
        return [*beside, WEIGHTS]
    if ggufs:
        raise ModelError(f"{model.repo} holds GGUF files: choose one, for example {model.repo}/{ggufs[0]}")
    raise ModelError(
        f"{model.repo} has no config.json with {WEIGHTS} (or {INDEX}), so it cannot be read; choose a "
        "repository with safetensors weights, or a GGUF file"
    )


def _shards(index: Path) -> set[str]:
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise ModelError(f"{index} has {index.stat().st_size} bytes; at most {MAX_INDEX_BYTES} are read")
    try:
        return {str(shard) for shard in json.loads(index.read_bytes())["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError(f"{index} is not an index of shards (no weight_map)") from None


def find_in_cache(model: HubModel) -> Path | None:
    """Where the cache has the model, complete; None = nowhere. Asks nobody."""
    try:
        return _cached(model, "")
    except ModelError:
        return None


def _cached(model: HubModel, otherwise: str) -> Path:
    """The model's folder in the cache, complete; `otherwise` says what to do when it is not there."""
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            hub.snapshot_download(
                model.repo,
                revision=model.revision,
                allow_patterns=[model.file or "config.json"],
                local_files_only=True,
            )
        )
    except LocalEntryNotFoundError:
        cache = hub.constants.HF_HUB_CACHE
        raise ModelError(f"{model} is not in the cache ({cache}), and {otherwise}") from None
    if model.file is not None:
        wanted = {model.file}
    else:
        index = folder / INDEX
        wanted = {"config.json", *(_shards(index) if index.is_file() else {WEIGHTS})}
    if absent := sorted(name for name in wanted if not (folder / name).is_file()):
        raise ModelError(f"{model} is only partly in the cache (no {', '.join(absent[:3])}), and {otherwise}")
    return folder / model.file if model.file else folder


def _check_room(model: HubModel, cache: Path, missing: int) -> None:
    place = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if missing > free:
        raise StorageError(
            f"{model} needs {format_bytes(missing)} more on disk but {place} has {format_bytes(free)} free; "
            "make room, or set HF_HOME to a folder on a larger disk"
        )


@contextmanager
def _watched(model: HubModel, total: int, missing: int, progress: ProgressCallback | None) -> Iterator[None]:
    """Report what arrives in the cache: the library's own reports differ from version to version."""
    if progress is None or not missing:
        yield
        return
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model.repo, repo_type="model") / "blobs"
    before, arrived, finished = _bytes_in(folder), 0, threading.Event()

    def report() -> None:
        nonlocal arrived
        arrived = max(arrived, min(_bytes_in(folder) - before, missing))
        progress(Progress("download", total - missing + arrived, total, "bytes"))

    def watch() -> None:
        while not finished.wait(_POLL_SECONDS):
            report()

    report()
    thread = threading.Thread(target=watch, name="download progress", daemon=True)
    thread.start()
    try:
        with _quiet():
            yield
    finally:
        finished.set()
        thread.join()
    progress(Progress("download", total, total, "bytes"))


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        with suppress(OSError):  # renamed meanwhile
            found = path.stat()
            # A file may be given its full length before it is written.
            total += min(found.st_size, getattr(found, "st_blocks", found.st_size) * 512)
    return total


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of the library's own beside ours."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if "HF_HUB_DISABLE_PROGRESS_BARS" in os.environ or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def explained(model: HubModel) -> Iterator[None]:
    """One clear message for whatever the hub, the network or the disk does."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{model.repo}"
    try:
        yield
    except errors.GatedRepoError:
        raise ModelError(
            f"{model.repo} is gated: accept its terms at {page}, then log in with `hf auth login` or set "
            "HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{model.repo} has no revision {model.revision!r}; see {page}/commits") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"{model.repo} is not a directory here, and on the hub ({constants.ENDPOINT}) it does not exist "
            "or is private; check the spelling, or log in with `hf auth login` (or HF_TOKEN) if it is private"
        ) from None
    except errors.HFValidationError as error:
        raise ModelError(f"{model} is not a model name that the hub accepts: {error}") from None
    except EdgeSpecError:
        raise
    except Exception as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
            raise StorageError(f"the disk is full; what has arrived of {model} is kept: make room") from None
        raise ModelError(
            f"downloading {model} failed ({_line(error)}); try again, it goes on with what is missing"
        ) from None


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
