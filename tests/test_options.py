"""Options are declared once: their types, bounds and names, from wherever they come."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

from edgespec.api import EngineKeywords, GenerationKeywords
from edgespec.apps import main, options
from edgespec.apps.bench import BenchFlags
from edgespec.apps.chat import ChatFlags
from edgespec.apps.generate import GenerateFlags
from edgespec.apps.server.problems import problem_of
from edgespec.apps.settings import read_settings, resolve
from edgespec.config import EngineOptions, GenerationOptions, refuse_idle
from edgespec.errors import Call, DeviceError, OptionError
from edgespec.models.exporting import export_model
from edgespec.models.options import ExportOptions, PackOptions
from edgespec.models.packing import pack_model, verify_store
from edgespec.offload.pack.layout import LOW_BIT
from edgespec.offload.pack.pack import PRECISIONS
from edgespec.training.cascade import train_cascade
from edgespec.training.eagle import train_eagle
from edgespec.training.moa import train_moa
from edgespec.training.options import CascadeOptions
from edgespec.training.spd import train_spd
from edgespec.training.specformer import train_specformer
from edgespec.training.streaming import train_streaming
from edgespec.values import Field, did_you_mean, format_bytes, options_of, parse_bytes, with_keywords

ROOT = Path(__file__).resolve().parent.parent
NO_FILE = Path("/no/such/edgespec.toml")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GB", 8 * 10**9), ("8G", 8 * 10**9), ("8 gb", 8 * 10**9), ("8GiB", 2**33), ("1.5GiB", 3 * 2**29),
        ("512MB", 512 * 10**6), ("2T", 2 * 10**12), ("8000000000", 8 * 10**9), ("900000KB", 9 * 10**8),
        (8e9, 8 * 10**9), (8 * 10**9, 8 * 10**9), (np.float32(8e9), 8 * 10**9), ("5000000B", 5 * 10**6),
    ],
)  # fmt: skip
def test_sizes(text: Any, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes
    assert EngineOptions(memory=text).memory == nbytes
    assert type(EngineOptions(memory=text).memory) is int


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("8", "'8' has no unit; write for example 8GB or 8MB"),
        ("8XB", "'8XB' is not a size"),
        ("", "is not a size"),
        ("-8GB", "is not a size"),
        ("9" * 400, "is not a size"),
        ("9" * 20 + "TB", "is not a size"),
        (math.inf, "is not a size"),
        (math.nan, "is not a size"),
        (True, "must be a number"),
        ([8], "must be a number"),
        (10**400, "must be a number"),
        (0, "must be positive"),
        (-5.0, "must be positive"),
        (8, "nothing runs in that; 8GB?"),
        ("5KB", "memory is 5KB; nothing runs in that"),
    ],
)
def test_what_is_no_size(value: Any, part: str) -> None:
    with pytest.raises(OptionError) as raised:
        EngineOptions(memory=value)
    assert part in str(raised.value)
    assert raised.value.option == "memory"
    assert str(raised.value).startswith("memory")
    assert len(str(raised.value)) < 300


def test_sizes_are_shown_as_they_are_read() -> None:
    for nbytes in (2 * 10**6, 1_500_000_000, 8 * 10**9):
        assert parse_bytes(format_bytes(nbytes)) == nbytes


WRONG = {int: ("5.5", 5.5, True, "x", [1], math.inf, None), float: ("hot", True, [1.0], "nan", None)}
WRONG |= {bool: (2, 0.0, "maybe", None)}
WRONG |= {str: (5, True, ["a"], b"a"), tuple: (5, [1], b"ab", {"a": 1}, ("a", 1))}


@pytest.mark.parametrize("field", options.ALL.values(), ids=str)
def test_every_option_refuses_other_types_by_its_name(field: Field) -> None:
    kind = EngineOptions if field.name in options_of(EngineOptions) else GenerationOptions
    for value in WRONG[field.kind]:
        if (value is None and field.optional) or (field.option.metavar == "SIZE" and value in (5.5, True)):
            continue
        if field.name == "stop" and value == {"a": 1}:
            continue
        with pytest.raises(OptionError) as raised:
            with_keywords(kind(), {field.name: value})
        assert raised.value.option == field.name
        assert str(raised.value).startswith(field.name)


def test_numbers_of_every_kind_are_taken() -> None:
    made = GenerationOptions(
        max_tokens=np.int64(5),  # type: ignore[arg-type]
        top_k=torch.tensor(3),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_p=1,
    )
    assert made == GenerationOptions(max_tokens=5, top_k=3, temperature=0.5)
    assert [type(made.max_tokens), type(made.top_k), type(made.temperature)] == [int, int, float]


def test_a_stop_is_one_text_or_several() -> None:
    assert GenerationOptions(stop="girl").stop == ("girl",)  # type: ignore[arg-type]
    assert GenerationOptions(stop=["a", "bc"]).stop == ("a", "bc")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="stop has an empty text"):
        GenerationOptions(stop="")  # type: ignore[arg-type]


def test_paths_are_texts() -> None:
    assert EngineOptions(adapters=Path("a/b")).adapters == str(Path("a/b"))  # type: ignore[arg-type]


def test_unknown_names_are_named_and_corrected() -> None:
    with pytest.raises(OptionError, match=r"^unknown generation option max_token; did you mean max_t"):
        with_keywords(GenerationOptions(), {"max_token": 3})
    with pytest.raises(
        OptionError, match="unknown engine option qqq; known are adapters, batch, client_adapters"
    ):
        with_keywords(EngineOptions(), {"qqq": 3})


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
def test_sampling_options_that_change_nothing(name: str) -> None:
    value = {"top_k": 5, "top_p": 0.5, "min_p": 0.1}[name]
    idle = with_keywords(GenerationOptions(), {name: value})
    with pytest.raises(OptionError, match=f"^{name} changes nothing at temperature 0"):
        refuse_idle(idle, {name: value})
    refuse_idle(idle, {"max_tokens": 3})  # a standing setting waits for a run that samples
    refuse_idle(with_keywords(idle, {"temperature": 1.0}), {name: value})


OF_COMMANDS = (ChatFlags, GenerateFlags, BenchFlags, PackOptions, ExportOptions, CascadeOptions)


@pytest.mark.parametrize("kind", OF_COMMANDS)
def test_options_of_a_command_are_as_strict(kind: Any) -> None:
    assert len(options_of(kind)) > 1
    for name, field in options_of(kind).items():
        wrong = WRONG[str if field.kind is Path else field.kind]
        for value in ("a,b", [1.5], {"a": 1}) if field.item is int else wrong:
            if (value is None and field.optional) or (field.item is str and value == {"a": 1}):
                continue
            with pytest.raises(OptionError) as raised:
                kind(**{name: value})
            assert raised.value.option == name
            assert str(raised.value).startswith(name)


@pytest.mark.parametrize("value", ["9,15", (9, 15), [9, np.int64(15)]])
def test_several_numbers_are_one_option(value: Any) -> None:
    assert CascadeOptions(verify_layers=value).verify_layers == (9, 15)
    assert BenchFlags(prompt_tokens=64).prompt_tokens == (64,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"new_tokens": "128,-4"}, "new_tokens has -4; it must be from 0 to 1000000"),
        ({"repetitions": 0}, "repetitions is 0; it must be from 1 to 1000"),
        (
            {"new_tokens": "1,,2"},
            "new_tokens is '1,,2'; it is not a list of numbers; write for example 9 or 9,15",
        ),
    ],
)
def test_each_of_several_numbers_is_bounded(values: Any, said: str) -> None:
    with pytest.raises(OptionError) as raised:
        BenchFlags(**values)
    assert str(raised.value) == said


# Where they come from


def test_options_of_one_task_are_told_to_it_alone(tmp_path: Path) -> None:
    """A temperature for chats must not be one for the replies that a training run learns from."""
    file = tmp_path / "edgespec.toml"
    file.write_text("seed = 7\n")
    environment = {"EDGESPEC_TEMPERATURE": "0.5"}
    assert resolve(CascadeOptions, {}, environment, file) == CascadeOptions()
    assert resolve(GenerationOptions, {}, environment, file) == GenerationOptions(temperature=0.5, seed=7)


def test_the_keywords_of_packing_are_its_options() -> None:
    keywords = inspect.signature(pack_model).parameters
    for name, field in options_of(PackOptions).items():
        assert keywords[name].default is field.default is None
    assert set(options_of(PackOptions)["substitute"].option.choices) == set(LOW_BIT)
    assert options_of(PackOptions)["precision"].option.choices == PRECISIONS


def test_the_nearest_setting_wins(tmp_path: Path) -> None:
    file = tmp_path / "edgespec.toml"
    file.write_text('memory = "1GB"\ncontext = 100\nadapters = "a"\ntemperature = 1\nstop = ["x", "y"]\n')
    environment = {"EDGESPEC_CONTEXT": "200", "EDGESPEC_ADAPTERS": "b"}
    found = resolve(EngineOptions, {"adapters": "c", "memory": None}, environment, file)
    assert found == EngineOptions(memory=10**9, context=200, adapters="c")
    assert resolve(GenerationOptions, {}, environment, file) == GenerationOptions(
        temperature=1.0, stop=("x", "y")
    )


def test_an_error_has_the_name_that_was_used(tmp_path: Path) -> None:
    file = tmp_path / "edgespec.toml"
    for source, shown in (
        ({"flags": {"max_tokens": "x"}}, "--max-tokens"),
        ({"flags": {}, "environment": {"EDGESPEC_MAX_TOKENS": "0"}}, "EDGESPEC_MAX_TOKENS"),
    ):
        with pytest.raises(OptionError) as raised:
            resolve(GenerationOptions, **{"environment": {}, "file": NO_FILE, **source})  # type: ignore[arg-type]
        assert str(raised.value).startswith(f"{shown} is ")
    for content, part in (
        ("max_tokens = 0", "max_tokens is 0"),
        ("context = inf", "context is inf; it must be a whole number"),
        ("stop = 5", "stop is 5; it must be a text or a list of texts"),
        ("resident_layers = true", "resident_layers is True; it must be a whole number"),
        ("memory = 1.5", "memory is 1.5 bytes; nothing runs in that; 1.5GB?"),
        ("memory = [1]", "memory: it must be a number"),
        ("memroy = 1", "unknown option memroy; did you mean memory?"),
        ("x = " + "[" * 5000, "is not valid TOML"),
        ("x = ", "is not valid TOML"),
        ("context = " + "9" * 5000, "is not valid TOML"),
        ("context = " + "9" * 400, "context is a number of 1329 bits; it must be a whole number"),
        ("context = 0x" + "f" * 5000, "context is a number of 20000 bits; it must be a whole number"),
        ("memory = 0x" + "f" * 5000, "memory: it must be a number"),
        ("#" * 10**6 + "#", "is longer than"),
    ):
        file.write_text(content)
        kind: Any = GenerationOptions if part.startswith(("max_tokens", "stop")) else EngineOptions
        with pytest.raises(OptionError) as raised:
            resolve(kind, {}, {}, file)
        assert str(file) in str(raised.value)
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("temp", "did you mean temperature?"),
        ("temprature", "did you mean temperature?"),
        ("to", "known are temperature, top_k, top_p"),  # two begin so
        ("", "known are temperature, top_k, top_p"),
    ],
)
def test_a_misspelt_or_shortened_name_finds_the_right_one(given: str, hint: str) -> None:
    assert did_you_mean(given, ["top_p", "top_k", "temperature"]) == hint


def test_a_folder_of_that_name_is_no_silence(tmp_path: Path) -> None:
    (tmp_path / "edgespec.toml").mkdir()
    with pytest.raises(OptionError, match="cannot be read"):
        read_settings(tmp_path / "edgespec.toml")


def test_library_messages_name_options_as_flags_on_the_command_line() -> None:
    said = "lower memory=, or set context=512 (drafter=ngram+model, tree_nodes=2); other=3 stays"
    assert options.in_flags(said) == (
        "lower --memory, or set --context 512 (--drafter ngram+model, --tree-nodes 2); other=3 stays"
    )
    error = OptionError("max_tokens is 0; it must be at least 1", "max_tokens")
    assert options.message_of(error) == "--max-tokens is 0; it must be at least 1"
    assert options.message_of(error, in_chat=True) == "max-tokens is 0; it must be at least 1"
    assert options.in_flags("try temperature=0.7, memory=8GB or context=512", in_chat=True) == (
        "try /set temperature 0.7, /set memory 8GB or --context 512"
    )


def test_a_client_of_the_server_hears_of_its_own_fields() -> None:
    said = "lower memory=, try temperature=0.7 and max_tokens=, or set context=512"
    told = problem_of(DeviceError(said)).message
    assert told == "lower memory, try temperature 0.7 and max_tokens, or set --context 512"


def test_what_only_a_command_has_is_named_as_its_flag_too() -> None:
    said = "a lower rate= (it was 0.1), other verify_layers=, or choose another out=; see from_=DIR"
    assert options.in_flags(said) == (
        "a lower --rate (it was 0.1), other --verify-layers, or choose another --out; see --from DIR"
    )
    for wrong, shown in (
        ({"rate": 2.0}, "--rate is 2.0; it must be above 0 and at most 1"),
        ({"batch_tokens": 0}, "--batch-tokens is 0; it must be at least 1, and below 2^63"),
        (
            {"temperature": 0.5},
            "--temperature is of the model's own replies; give --generate, their number, too",
        ),
    ):
        with pytest.raises(OptionError) as raised:
            CascadeOptions(**wrong)  # type: ignore[arg-type]
        assert options.message_of(raised.value) == shown


@pytest.mark.parametrize(
    "path", ["runs/seed=3/model", "/runs/out=a/b", "out=a/model", "x.seed=3", "C:\\seed=3\\m"]
)
def test_folders_named_like_options_stay(path: str) -> None:
    assert options.in_flags(f"{path} has no config.json") == f"{path} has no config.json"


LIBRARY = [  # the demo model's recipe: scripts, and what the model is taught about commands
    (path, ast.parse(path.read_text(encoding="utf-8")))
    for room in ("edgespec", "runtimes", "offload", "devices", "kernels")
    for path in (ROOT / room).rglob("*.py")
    if "recipe" not in path.parts
]


def test_the_library_does_not_know_flags_and_commands() -> None:
    """It names options and functions as Python does; the command line puts its own words in their place."""
    assert len(LIBRARY) > 80
    found = []
    for path, tree in LIBRARY:
        known = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, known)}
        for line, text in texts(tree):
            if re.search(r"(?<![\w-])--[a-z]", text) or ("`edgespec " in text and text not in docs):
                found.append(f"{path.relative_to(ROOT)}:{line}: {text[:80]}")
    assert not found, "\n".join(found)


def test_every_hint_is_a_call_and_a_command() -> None:
    functions = {
        "pack_model": pack_model,
        "export_model": export_model,
        "verify_store": verify_store,
        "train_cascade": train_cascade,
        "train_moa": train_moa,
        "train_eagle": train_eagle,
        "train_specformer": train_specformer,
        "train_streaming": train_streaming,
        "train_spd": train_spd,
    }
    assert functions.keys() == options.TASKS.keys()
    hints = [
        node
        for _, tree in LIBRARY
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Call"
    ]
    assert len(hints) > 6
    for hint in hints:
        function, arguments = hint.args
        assert isinstance(arguments, ast.Dict)
        names = [ast.literal_eval(key) for key in arguments.keys if key is not None]
        if isinstance(function, ast.Constant):
            called = [function.value]
        else:  # of whatever kind of drafter
            assert ast.unparse(function) == "f'train_{kind}'"
            called = [name for name in options.TASKS if name.startswith("train_")]
        for name in called:
            inspect.signature(functions[name]).bind(**dict.fromkeys(names))
            shown = options.command_of(Call(name, dict.fromkeys(names, "x y")))
            flags = [word for word in shown.split() if word.startswith("--")]
            command = importlib.import_module(f"edgespec.apps.{options.TASKS[name].split()[0]}")
            source = inspect.getsource(command)
            known = options_of(PackOptions) | options_of(ExportOptions)
            assert all(f'"{flag}"' in source or flag[2:] in known for flag in flags), shown


def test_a_hint_is_said_in_the_words_of_who_hears_it(capsys: pytest.CaptureFixture[str]) -> None:
    hint = Call("pack_model", {"model": "my m", "out": "DIR", "precision": "int8"})
    error = OptionError("precision is wrong; make it and use DIR", "precision", hint=hint)
    assert str(error) == (
        "precision is wrong; make it and use DIR: pack_model(model='my m', out='DIR', precision='int8')"
    )
    assert options.message_of(error) == (
        "--precision is wrong; make it and use DIR: `edgespec pack 'my m' --out DIR --precision int8`"
    )
    assert options.command_of(Call("verify_store", {"directory": "d"})) == "edgespec pack --verify d"
    assert options.command_of(Call("train_cascade", {"model": "m", "data": "TEXT", "out": "DIR"})) == (
        "edgespec train cascade m --data TEXT --out DIR"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text in a module, with its line; an f-string as one, with {} for what it is filled with."""
    parts = {id(p) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for p in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            held = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(map(str, held))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


# Nothing else declares them


@pytest.mark.parametrize(
    ("keywords", "kind"), [(EngineKeywords, EngineOptions), (GenerationKeywords, GenerationOptions)]
)
def test_the_keywords_for_type_checkers_are_the_fields(keywords: Any, kind: Any) -> None:
    hints = get_type_hints(keywords)
    assert list(hints) == list(options_of(kind))
    names = {int: "int", float: "float", bool: "bool", str: "str", tuple: "tuple"}
    for name, field in options_of(kind).items():
        shown = str(hints[name])
        wanted = "float" if field.option.metavar == "SIZE" else names[field.kind]
        assert wanted in shown, name
        assert ("None" in shown) == field.optional, name


@pytest.mark.parametrize("command", ["chat", "generate", "bench"])
def test_every_command_has_the_flags(command: str) -> None:
    module = importlib.import_module(f"edgespec.apps.{command}")
    parameters = list(inspect.signature(getattr(module, command)).parameters)
    known = options_of(EngineOptions) | ({} if command == "bench" else options_of(GenerationOptions))
    wanted = {name for name, field in known.items() if command in (field.option.only or [command])}
    assert set(parameters) & set(known) == wanted
    assert not {"engine", "generation"} & set(parameters)


@pytest.mark.parametrize(
    "command", ["", "chat", "generate", "pack", "bench", "train", "train cascade", "train moa"]
)
def test_help_is_in_words_and_has_examples(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert main.run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert ("--offline" in shown) == (command not in ("", "pack", "train"))
    assert re.findall(r"<\w+>|{MODEL}|None", shown) == []
    words = " ".join(shown.replace("│", " ").split())
    assert ("Same seed, same reply. Default: 0." in words) == (command in ("chat", "generate"))
    assert shown.count(" Examples:\n   edgespec") == 1
    assert max(map(len, shown.splitlines())) <= 70


@pytest.mark.parametrize(
    "kind",
    [EngineOptions, GenerationOptions, PackOptions, CascadeOptions, ChatFlags, GenerateFlags, BenchFlags],
)
def test_help_says_what_it_speaks_of(kind: Any) -> None:
    for field in options_of(kind).values():
        assert re.match(r"(?!Of )[A-Z][A-Za-z]* .*\.$", field.option.help), field


def test_the_tables_of_the_docs_are_current() -> None:
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "docs" / "write_options.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert module.updated(page) == page, "run `python docs/write_options.py`"
    assert "`--memory SIZE`" in module.common_table()
    assert "--fallback" not in module.common_table()
