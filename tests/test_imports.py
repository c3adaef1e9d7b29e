"""The rules of imports: downwards only, no torch where none is needed, and every public name is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import edgespec

ROOT = Path(__file__).resolve().parent.parent
ORDER = [
    "kernels",
    "devices",
    "offload",
    "runtimes",
    "edgespec",
    "apps",
]  # each may import what stands before it
FOR_ALL = {"edgespec.errors", "edgespec.progress"}
# Modules that choose among implementations, some of which lie in a corner of their folder. Elsewhere a corner
# uses its folder, or the folder its corner, never both.
CHOOSERS = {
    "edgespec.drafters.kinds",
    "edgespec.drafters.onnx_model",
    "edgespec.kernels.dispatch",
    "edgespec.kernels.matmul",
}
MAX_LINES = 350

TORCH_FREE = [
    "edgespec.apps.main",
    "edgespec.apps.serve",
    "edgespec.apps.served",
    "edgespec.apps.talk",
    "edgespec.chat",
    "edgespec.config",
    "edgespec.control.controller",
    "edgespec.control.early_exit",
    "edgespec.control.beliefs",
    "edgespec.control.costs",
    "edgespec.control.estimates",
    "edgespec.control.handover",
    "edgespec.control.hits",
    "edgespec.control.knowledge",
    "edgespec.control.notes",
    "edgespec.control.overlap",
    "edgespec.core.acceptance",
    "edgespec.core.batch",
    "edgespec.core.decode",
    "edgespec.core.sampling",
    "edgespec.core.schedule",
    "edgespec.core.trace",
    "edgespec.core.tree",
    "edgespec.core.verify",
    "edgespec.core.writer",
    "edgespec.apps.devices",
    "edgespec.devices.machine",
    "edgespec.drafters.ahead",
    "edgespec.drafters.base",
    "edgespec.drafters.beside",
    "edgespec.drafters.choice",
    "edgespec.drafters.combined",
    "edgespec.drafters.continuations",
    "edgespec.drafters.desk",
    "edgespec.drafters.drawn",
    "edgespec.drafters.engine_facts",
    "edgespec.drafters.engines",
    "edgespec.drafters.client_model",
    "edgespec.drafters.onnx_model",
    "edgespec.drafters.drawn_ahead",
    "edgespec.drafters.fanned",
    "edgespec.drafters.forest",
    "edgespec.drafters.growth",
    "edgespec.drafters.model",
    "edgespec.drafters.ngram",
    "edgespec.drafters.streaming.drafter",
    "edgespec.drafters.rounds",
    "edgespec.drafters.worker",
    "edgespec.engine",
    "edgespec.models.holdings",
    "edgespec.models.hub",
    "edgespec.offload.plan.fill",
    "edgespec.response",
    "edgespec.runtimes.base",
    "edgespec.runtimes.config",
    "edgespec.runtimes.formats.describe",
    "edgespec.runtimes.exported.draft",
    "edgespec.runtimes.onnx.export",
    "edgespec.schedules.fan_out",
    "edgespec.schedules.kinds",
    "edgespec.schedules.mirror",
    "edgespec.schedules.serial",
    "edgespec.schedules.ssd",
    "edgespec.serving.client",
    "edgespec.serving.many",
    "edgespec.serving.scheduler",
    "edgespec.drafters.kinds",
    "edgespec.split.alone",
    "edgespec.split.client",
    "edgespec.split.guest",
    "edgespec.split.host",
    "edgespec.split.payload",
    "edgespec.split.protocol",
    "edgespec.split.recall",
    "edgespec.split.session",
    "edgespec.split.standby",
    "edgespec.split.transcript",
    "edgespec.split.vocabulary",
    "edgespec.split.websocket",
    "edgespec.text.tokenizer",
    "edgespec.apps.tune",
    "edgespec.apps.tune_live",
    "edgespec.apps.tune_page",
    "edgespec.apps.tune_picture",
    "edgespec.models.headers",
    "edgespec.runtimes.formats.moa_client",
    "edgespec.runtimes.formats.needs",
    "edgespec.runtimes.portable.kv_cache",
    "edgespec.runtimes.portable.moa",
    "edgespec.runtimes.portable.moa_tail",
    "edgespec.tuning.live",
    "edgespec.tuning.machines",
    "edgespec.tuning.profile",
    "edgespec.tuning.tune",
]


def sources() -> list[Path]:
    return sorted(path for folder in ORDER for path in (ROOT / folder).rglob("*.py"))


def imported_modules(path: Path) -> list[str]:
    """Every edgespec module a file may import, wherever in the file; "module:name" is one in a row."""
    return _imported(path, path.read_text(encoding="utf-8"))


@cache
def _imported(path: Path, text: str) -> list[str]:
    return list(_imports(path, text))


def _imports(path: Path, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            assert node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"edgespec(\.\w+)+:\w+", str(node.value)):
            yield str(node.value).partition(":")[0]


def folder_of(module: str) -> str | None:
    """The folder a dotted name leads to; None when it is not ours."""
    parts = module.split(".")
    if parts[0] != "edgespec":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else "edgespec"


def upward_imports(path: Path, folder: str) -> list[str]:
    rank = ORDER.index(folder)
    found = []
    for module in imported_modules(path):
        target = folder_of(module)
        for_all = any(module == m or module.startswith(m + ".") for m in FOR_ALL)
        if target is not None and not for_all and ORDER.index(target) > rank:
            found.append(f"{path.relative_to(ROOT)} imports {module}")
    return found


def test_folders_import_only_from_those_below() -> None:
    found = [bad for path in sources() for bad in upward_imports(path, path.relative_to(ROOT).parts[0])]
    assert not found, "\n".join(found)


def test_the_import_check_sees_an_upward_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from edgespec.runtimes import base\n    import edgespec.errors\n")
    assert upward_imports(file, "kernels") == ["bad.py imports edgespec.runtimes.base"]
    file.write_text("find = 'edgespec.offload.ring:Ring'  # edgespec.offload.ring:Ring\n")
    assert upward_imports(file, "kernels") == ["bad.py imports edgespec.offload.ring"]


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "edgespec" else ("edgespec", *parts)).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Which of our modules each of them imports, anywhere in the file, for type checkers too."""
    modules = {module_of(path): path for path in sources()}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        found = graph.setdefault(module, set())
        for name in imported_modules(path):
            while name and name not in modules:  # a name within a module
                name = name.rpartition(".")[0]
            if name not in ("", "edgespec", module):
                found.add(name)
    return graph


def room_of(module: str, graph: Mapping[str, set[str]]) -> str:
    """The folder of a module; those that stand in edgespec/ itself are rooms of their own."""
    package = any(other.startswith(module + ".") for other in graph)
    folder = module if package else module.rpartition(".")[0]
    return module if folder == "edgespec" else folder


def room_graph(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Which rooms each of them imports; what CHOOSERS import of their folder's corners does not count."""
    rooms: dict[str, set[str]] = {}
    for module, imported in graph.items():
        room = room_of(module, graph)
        if module in FOR_ALL:
            continue
        others = {room_of(name, graph) for name in imported - FOR_ALL} - {room}
        if module in CHOOSERS:
            others = {other for other in others if not other.startswith(room + ".")}
        rooms.setdefault(room, set()).update(others)
    return rooms


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """A way around for each node that can reach itself by way of others."""
    found = []
    for start in graph:
        came_from: dict[str, str] = {}
        waiting = [start]
        while waiting and start not in came_from:
            node = waiting.pop()
            for other in sorted(graph.get(node, ())):
                if other not in came_from:
                    came_from[other] = node
                    waiting.append(other)
        if start in came_from:
            way = [start]
            while (node := came_from[way[-1]]) != start:
                way.append(node)
            found.append([start, *reversed(way)])
    return found


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert not circles(import_graph())


def test_no_folders_import_one_another_in_a_circle() -> None:
    assert not circles(room_graph(import_graph()))


@pytest.mark.parametrize("chooser", sorted(CHOOSERS))
def test_every_chooser_is_one(chooser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exception there is a circle: one that is no longer needed must go."""
    monkeypatch.setattr(sys.modules[__name__], "CHOOSERS", CHOOSERS - {chooser})
    folder = chooser.rpartition(".")[0]
    assert folder in {circle[0] for circle in circles(room_graph(import_graph()))}


def test_the_drawing_is_current() -> None:
    spec = importlib.util.spec_from_file_location("draw_imports", ROOT / "docs" / "draw_imports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawing = (ROOT / "docs" / "imports.svg").read_text(encoding="utf-8")
    assert module.current() == drawing, "run `python docs/draw_imports.py`, and look at docs/imports.svg"
    rooms = {
        "edgespec.a": {"edgespec.b", "edgespec.c"},
        "edgespec.b": {"edgespec.c"},
        "edgespec.c": set[str](),
    }
    picture = module.drawn(rooms | {"edgespec.alone": set()})
    assert picture.count("marker-end") == 2  # from a to c there is a way by b
    assert re.findall(r">(\w+)</text>", picture) == ["a", "b", "c"]
    height = {name: float(re.findall(rf'y="([\d.]+)">{name}<', picture)[0]) for name in "abc"}
    assert height["a"] < height["b"] < height["c"]  # from the top


def test_circles_are_seen() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set[str]()}
    assert sorted(circle[0] for circle in circles(graph)) == ["b", "c"]
    modules = {
        "edgespec.x.one": {"edgespec.y.two"},
        "edgespec.y.two": {"edgespec.errors"},
        "edgespec.y.three": {"edgespec.x.four"},
        "edgespec.y.in.five": {"edgespec.y.two"},
        "edgespec.x.four": set[str](),
    }
    assert not circles(modules)
    assert sorted(circle[0] for circle in circles(room_graph(modules))) == ["edgespec.x", "edgespec.y"]
    modules["edgespec.y.three"] = {"edgespec.y.in.five"}
    assert not circles(modules)
    assert sorted(circle[0] for circle in circles(room_graph(modules))) == ["edgespec.y", "edgespec.y.in"]


@pytest.mark.parametrize("folder", [folder for folder in ORDER if folder != "edgespec"])
def test_siblings_are_imported_by_their_full_name(folder: str) -> None:
    """`import offload` works from the checkout's root only; `edgespec.offload` works everywhere."""
    bare = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources()
        for module in imported_modules(path)
        if module.split(".")[0] == folder
    ]
    assert not bare, "\n".join(bare)


IMPORT_ALL = """
import importlib, json, sys
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
    if found := {"torch", "transformers"} & set(sys.modules):
        sys.exit(f"{module} imports {found}")
print(len(sys.modules))
"""


def test_modules_for_the_command_line_and_small_clients_do_not_import_torch() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(TORCH_FREE)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > len(TORCH_FREE)
    command[-1] = json.dumps([*TORCH_FREE, "edgespec.runtimes.torch.target"])  # the check sees it
    assert "target imports" in subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr


def test_the_command_line_starts_light() -> None:
    """`edgespec --help` must not wait for what only some commands need."""
    code = "import sys, edgespec.apps.main; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(run.stdout.split()) & {
        "numpy",
        "prompt_toolkit",
        "tokenizers",
        "huggingface_hub",
        "jinja2",
    }


def test_public_names_resolve() -> None:
    assert edgespec.__all__ == sorted(edgespec.__all__)
    for name in edgespec.__all__:
        assert getattr(edgespec, name) is not None
    with pytest.raises(AttributeError):
        edgespec.no_such_name  # noqa: B018


def test_the_package_shows_few_modules_first() -> None:
    shown = [p.stem for p in (ROOT / "edgespec").glob("*.py") if p.stem != "__init__"]
    assert len(shown) <= 10, f"put some of these into a folder: {sorted(shown)}"


def test_files_stay_small_enough_to_read() -> None:
    lengths = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()
    }
    too_long = {str(path): lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert not too_long, f"split these: {too_long}"


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for folder in ORDER:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(homes) > 200
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_declared_all_of_every_module_resolves() -> None:
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if "\n__all__" not in text or path.name == "__main__.py":
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts if parts[0] == "edgespec" else ("edgespec", *parts)).removesuffix(".__init__")
        if "triton" in name:
            pytest.importorskip("triton")
        module = importlib.import_module(name)
        assert all(hasattr(module, public) for public in module.__all__), name


def test_caches_come_from_their_target() -> None:
    """Whoever decodes asks for `new_cache`: another runtime has a cache of its own."""
    elsewhere = [p for folder in ("edgespec", "apps", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    assert not [path for path in elsewhere if "TorchKVCache" in path.read_text("utf-8")]


def test_targets_are_known_by_their_protocol() -> None:
    """But by who opens one, and where drafting or training works on torch's own weights."""
    own = {"cascade/exits", "cascade/files", "draft_model", "substitute"}
    own |= {
        "eagle/batch",
        "eagle/files",
        "moa",
        "specformer/batch",
        "specformer/context",
        "specformer/files",
        "streaming/files",
        "streaming/tracks",
        "trained",
    }
    named = {p for p in (ROOT / "edgespec").rglob("*.py") if "TorchTarget" in p.read_text("utf-8")}
    expected = {ROOT / "edgespec/drafters" / f"{name}.py" for name in own}
    assert named == expected | {ROOT / "edgespec/training" / f"{name}.py" for name in ("cascade", "target")}


@pytest.mark.parametrize("word", ["cascade", "draft", "substitut", "speculat"])
def test_what_places_and_streams_weights_does_not_know_for_whom(word: str) -> None:
    """Who needs memory beside the model says so in neutral terms: owners, what must be pinned, a stand-in."""
    found = [path for path in (ROOT / "offload").rglob("*.py") if word in path.read_text("utf-8").lower()]
    assert not found
