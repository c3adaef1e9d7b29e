"""`edgespec serve` with a certificate, clients that ask for it, and `edgespec generate --server`."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec.apps import main
from edgespec.apps.server.tls import tls_context
from edgespec.config import GenerationOptions
from edgespec.errors import EdgeSpecError, LinkError, OptionError, RefusedError
from edgespec.serving.client import ServerClient
from tests.servers import ServerProcess, exchange
from tests.test_session import prompt_of, write_model

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")

REPLY = GenerationOptions(max_tokens=20, ignore_eos=True)
PROMPT = prompt_of(6) * 4


def certify(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that trusts itself, and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    subject = "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"
    made = "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certify(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tls") / "m", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def server(
    model: Path, files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    cache = tmp_path_factory.mktemp("cache")
    (cache / "keys").write_text("secret\n")
    flags = "--memory", "2GB", "--context", "400", "--api-key-file", str(cache / "keys")
    tls = "--ssl-certfile", str(files[0]), "--ssl-keyfile", str(files[1])
    server = ServerProcess(str(model), *flags, *tls, cache=cache, scheme="https")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", str(files[0]))
        server.loaded()
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    with edgespec.load(model, memory="2GB", context=400, drafter="none") as engine:
        return edgespec.generate(engine, PROMPT, REPLY).tokens


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("secret\n")

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main.run([*arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_clients_that_trust_the_certificate(
    server: ServerProcess, files: tuple[Path, Path], expected: list[int]
) -> None:
    ca = str(files[0])
    for url in (server.url, server.url.replace("https", "wss")):
        with edgespec.connect(url, key="secret", ca=ca) as engine:
            assert edgespec.generate(engine, PROMPT, REPLY).tokens == expected
    assert ServerClient(server.url, "secret", ca).ask("/v1/models")["data"][0]["context_length"] == 400


def test_clients_that_do_not(server: ServerProcess, tmp_path: Path, files: tuple[Path, Path]) -> None:
    stranger = str(certify(tmp_path, "stranger")[0])
    for ca in (None, stranger):
        with pytest.raises(RefusedError, match="not trusted"):
            edgespec.connect(server.url, key="secret", ca=ca)
        with pytest.raises(RefusedError, match="not trusted"):
            ServerClient(server.url, "secret", ca).ask("/v1/models")
    elsewhere = server.url.replace("127.0.0.1", "localhost")  # for which the certificate is not
    with pytest.raises(RefusedError, match="not trusted"):
        edgespec.connect(elsewhere, key="secret", ca=str(files[0]))


def test_clients_that_do_not_encrypt(server: ServerProcess, files: tuple[Path, Path]) -> None:
    plain = server.url.replace("https", "http")
    with pytest.raises(LinkError):
        edgespec.connect(plain, key="secret")
    with pytest.raises(LinkError):
        ServerClient(plain, "secret").ask("/v1/models")
    assert b"200" not in exchange(server.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    with pytest.raises(OptionError, match="not encrypted"):
        ServerClient(plain, "secret", str(files[0]))


def test_texts_continued_by_a_server(
    server: ServerProcess, files: tuple[Path, Path], run: Run, tmp_path: Path, model: Path
) -> None:
    reach = "--server", server.url, "--ca", str(files[0]), "--api-key-file", "keys"
    flags = *reach, "--max-tokens", "6", "--ignore-eos"
    code, out, err = run("generate", str(model), "--memory", "2GB", "--json", *flags[-3:], stdin="a b\nc d\n")
    assert code == 0, err
    local = [json.loads(line) for line in out.splitlines()]
    code, out, err = run("generate", *flags, "--json", "--memory", "1GB", stdin="a b\nc d\n")
    assert code == 0, err
    assert "--memory: the server goes by its own" in err
    replies = [json.loads(line) for line in out.splitlines()]
    assert [(r["prompt"], r["text"], r["tokens"], r["finish_reason"]) for r in replies] == [
        (r["prompt"], r["text"], r["tokens"], r["finish_reason"]) for r in local
    ]
    assert {(r["stats"]["plan"], r["stats"]["unverified_tokens"]) for r in replies} == {(None, 0)}

    prompts = "a b\n" + "long " * 300 + "\nc d\n"
    code, _, err = run("generate", *flags, "--output", "o.jsonl", stdin=prompts)
    assert code == 1, err
    written = (tmp_path / "o.jsonl").read_bytes()
    answers = [json.loads(line) for line in written.splitlines()]
    assert [a.get("tokens") for a in answers] == [local[0]["tokens"], None, local[1]["tokens"]]
    assert "context" in answers[1]["error"]
    code, _, err = run("generate", *flags, "--output", "o.jsonl", stdin=prompts)
    assert (code, (tmp_path / "o.jsonl").read_bytes()) == (0, written), err


def test_what_is_not_verified_is_no_answer(
    server: ServerProcess, files: tuple[Path, Path], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgespec.split.session import RemoteSession

    whole_reply = RemoteSession.generate

    def lost(session: RemoteSession, *asked: object) -> Iterator[object]:
        for step in whole_reply(session, *asked):  # type: ignore[arg-type]
            step.stats.unverified_tokens = 3
            yield step

    monkeypatch.setattr(RemoteSession, "generate", lost)
    reach = "--server", server.url, "--ca", str(files[0]), "--api-key-file", "keys", "--max-tokens", "4"
    code, _, err = run("generate", *reach, "--output", "o.jsonl", "-p", "a b")
    assert code == 1
    assert "3 tokens were not verified" in err
    assert not (tmp_path / "o.jsonl").read_bytes()
    code, _, err = run("generate", *reach, "--output", "o.jsonl", "-p", "a b", "--unverified", "keep")
    assert code == 0, err
    assert len(json.loads((tmp_path / "o.jsonl").read_bytes())["tokens"]) == 4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "name a MODEL"),
        (("m", "--unverified", "keep"), "--unverified: for what is drafted here"),
        (("m", "--api-key-file", "keys"), "--api-key-file is for --server"),
        (("--server", "http://h", "--trace", "t.json"), "--trace is of a model's passes"),
        (("--server", "http://h", "--drafter", "moa"), "needs what was trained"),
        (("--server", "http://h:1", "--ca", "keys"), "not encrypted"),
        (("--server", "ftp://h"), "is no URL of a server"),
    ],
)
def test_flags_that_do_not_go_together(run: Run, flags: tuple[str, ...], said: str) -> None:
    code, _, err = run("generate", *flags, "-p", "x")
    assert (code, said in err) == (2, True), err


@pytest.mark.parametrize(
    "kind", ["missing", "directory", "text", "no key", "another's key", "encrypted", "alone"]
)
def test_files_that_are_no_certificate_are_refused(
    kind: str, files: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    certificate, key = files
    given: tuple[Path | None, Path | None] = files
    if kind == "missing":
        given, said = (tmp_path / "nowhere", key), "--ssl-certfile .* cannot be read: No such file"
    elif kind == "directory":
        given, said = (certificate, tmp_path), "--ssl-keyfile .* cannot be read"
    elif kind == "text":
        (tmp_path / "text").write_text("hello")
        given, said = (tmp_path / "text", key), "no certificate and key in PEM"
    elif kind == "no key":
        given, said = (certificate, None), "name it with --ssl-keyfile"
    elif kind == "another's key":
        given, said = (certificate, certify(tmp_path, "other")[1]), "is not that of"
    elif kind == "encrypted":
        locked = tmp_path / "locked"
        command = "openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:word", "-out", locked
        subprocess.run(command, check=True, capture_output=True)
        given, said = (certificate, locked), "is encrypted"
    else:
        given, said = (None, key), "no use without --ssl-certfile"
    with pytest.raises(EdgeSpecError, match=said):
        tls_context(*given)
    flags = zip(("--ssl-certfile", "--ssl-keyfile"), given, strict=True)
    code, _, err = run(
        "serve", *(part for flag, path in flags if path is not None for part in (flag, str(path)))
    )
    assert (code, "Traceback" in err) == (2, False), err


def test_a_key_may_be_in_the_certificates_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files[0].read_bytes() + files[1].read_bytes())
    assert tls_context(both, None) is not None
    assert tls_context(None, None) is None
