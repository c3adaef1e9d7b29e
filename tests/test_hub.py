"""Finding models: local paths, and a hub on 127.0.0.1 that can misbehave.

huggingface_hub reads its environment when it is imported, so each case runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgespec.errors import ModelError, StorageError
from edgespec.models import hub
from edgespec.models.hub import HubModel, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BIG = os.urandom(2**20) * 12  # the library writes, and resumes from, steps of 10 MB
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
REPOS = {
    "org/small": {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "README.md": b"unwanted",
        "pytorch_model.bin": b"unwanted" * 1000,
        "model.safetensors.index.json": json.dumps(INDEX).encode(),
        "model-00001-of-00002.safetensors": BIG,
        "model-00002-of-00002.safetensors": b"second",
        "consolidated.safetensors": b"unwanted" * 1000,
        "onnx/model.safetensors": b"unwanted",
        "additional_chat_templates/tool_use.jinja": b"x",
    },
    "org/gguf": {"config.json": b"{}", "tiny-q8_0.gguf": b"GGUF....", "tiny-f16.gguf": b"GGUF...."},
    "org/split": {f"big-{i:05d}-of-00003.gguf": b"GGUF...." for i in (1, 2, 3)},
    "org/half": {f"big-{i:05d}-of-00003.gguf": b"GGUF...." for i in (1, 3)},
    "org/bin": {"config.json": b"{}", "pytorch_model.bin": b"x"},
    "org/torn": {"config.json": b"{}", "model.safetensors.index.json": json.dumps(INDEX).encode()},
    "org/bad": {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": [1]}'},
}
WANTED = [
    "additional_chat_templates/tool_use.jinja",
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


class FakeHub(ThreadingHTTPServer):
    """The hub's API and files. Behaviours are switched by its attributes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fetched: list[str] = []  # file names asked for with GET
        self.ranges: list[str] = []  # Range headers of those
        self.tokens: set[str | None] = set()
        self.cut = 0  # so many downloads of the big file break off before the end
        self.broken: set[str] = set()  # files that answer 500
        self.down = False
        self.whole = False  # ranges are not known

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        parts = path.strip("/").split("/")
        if "org" in parts:
            hub.tokens.add(self.headers.get("Authorization"))
        if hub.down:
            return self.send(503, b"{}", body=body)
        if parts[:2] == ["api", "models"]:
            return self.api("/".join(parts[2:4]), parts[4:])
        repo, name = "/".join(parts[:2]), "/".join(parts[4:])
        if name not in REPOS.get(repo, ()):
            return self.send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)
        return self.file(REPOS[repo][name], name, body)

    def api(self, repo: str, rest: list[str]) -> None:
        if repo == "org/gated":
            return self.send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if repo not in REPOS:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if rest[:1] == ["revision"] and rest[1] not in ("main", "v1", COMMIT):
            return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        sizes = {name: len(data) for name, data in REPOS[repo].items()}
        if rest[:1] == ["tree"]:
            entries = [
                {"type": "file", "path": n, "size": s, "oid": _etag(REPOS[repo][n])} for n, s in sizes.items()
            ]
            return self.send(200, json.dumps(entries).encode())
        siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
        info = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
        return self.send(200, json.dumps(info).encode())

    def file(self, data: bytes, name: str, body: bool) -> None:
        hub, status = self.server, 200
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if body:
            hub.fetched.append(name)
            if name in hub.broken:
                return self.send(500, b"{}")
            if wanted and not hub.whole:
                hub.ranges.append(wanted)
                start, _, last = wanted.removeprefix("bytes=").partition("-")
                end = min(int(last or len(data)), len(data) - 1) + 1
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
                data, status = data[int(start) : end], 206
        if body and hub.cut and len(data) > 1_000_000:
            hub.cut -= 1
            self.send(status, data, headers, sent=11 * 2**20)
            self.close_connection = True
            return None
        return self.send(status, data, headers, body=body)

    def send(
        self,
        status: int,
        data: bytes,
        headers: dict | None = None,
        body: bool = True,
        sent: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data[:sent])


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def server():
    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()


SCRIPT = """
import json, sys
from edgespec.errors import EdgeSpecError
from edgespec.models import hub
if sys.argv[1]:
    hub.shutil.disk_usage = lambda place: type("Usage", (), {"free": int(sys.argv[1])})
reports, results = [], []
for name in sys.argv[2:]:
    try:
        results.append({"path": str(hub.resolve_model(name, reports.append))})
    except EdgeSpecError as error:
        results.append({"error": type(error).__name__, "message": str(error)})
print(json.dumps([results, [[r.stage, r.done, r.total, r.unit] for r in reports]]))
"""


class Client:
    """resolve_model in a fresh process with its own cache."""

    def __init__(self, home: Path, server: FakeHub) -> None:
        self.home, self.server = home, server
        self.reports: list[list] = []

    def resolve(self, name: str, free: str = "", **environment: str) -> dict:
        return self.resolve_all([name], free, **environment)[0]

    def resolve_all(self, names: list[str], free: str = "", **environment: str) -> list[dict]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        settings = {"HF_HOME": str(self.home), "HF_ENDPOINT": self.server.url, "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, free, *names],
            env={**kept, **settings, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results, self.reports = json.loads(done.stdout)
        return results


@pytest.fixture
def client(tmp_path, server):
    return Client(tmp_path / "home", server)


def files_of(folder: str) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def test_downloads_what_is_read_and_nothing_else(client, server):
    found = client.resolve("org/small", HF_TOKEN="hf_secret")
    assert files_of(found["path"]) == WANTED
    assert (Path(found["path"]) / "model-00001-of-00002.safetensors").read_bytes() == BIG
    assert server.tokens == {"Bearer hf_secret"}
    total = sum(len(REPOS["org/small"][name]) for name in WANTED)
    assert client.reports[0] == ["download", len(json.dumps(INDEX)), total, "bytes"]  # the index came first
    assert client.reports[-1] == ["download", total, total, "bytes"]
    done = [report[1] for report in client.reports]
    assert done == sorted(done)

    server.fetched.clear()
    assert client.resolve("org/small") == found  # from the cache
    assert server.fetched == []
    assert client.reports == []
    assert client.resolve("org/small", HF_HUB_OFFLINE="1") == found
    server.down = True
    assert client.resolve("org/small") == found


def test_a_broken_connection_is_resumed(client, server):
    server.cut = 1
    found = client.resolve("org/small")
    assert (Path(found["path"]) / "model-00001-of-00002.safetensors").read_bytes() == BIG
    assert len(server.ranges) == 1
    assert int(server.ranges[0].removeprefix("bytes=").rstrip("-")) > 0


def test_the_next_run_fetches_only_what_is_missing(client, server):
    server.broken = {"model-00002-of-00002.safetensors"}
    failed = client.resolve("org/small")
    assert failed["error"] == "ModelError"
    assert "try again, it goes on with what" in failed["message"]
    offline = client.resolve("org/small", HF_HUB_OFFLINE="1")
    assert "only partly in the cache (no model-00002-of-00002.safetensors)" in offline["message"]
    server.broken, server.fetched[:] = set(), []
    found = client.resolve("org/small")
    assert files_of(found["path"]) == WANTED
    assert "model-00001-of-00002.safetensors" not in server.fetched


def test_revisions_and_single_files(client):
    names = ["org/small@v1", "org/gguf/tiny-q8_0.gguf"]
    found = client.resolve_all(names)
    folder, file = (Path(result["path"]) for result in found)
    assert files_of(str(folder)) == WANTED
    assert file.read_bytes() == b"GGUF...."
    assert files_of(str(file.parent)) == ["tiny-q8_0.gguf"]
    assert client.resolve_all(names, HF_HUB_OFFLINE="1") == found
    assert "no revision 'v9'" in client.resolve("org/small@v9")["message"]


def test_the_disk_is_checked_first(client, server):
    full = client.resolve("org/small", free="1000000")
    assert full["error"] == "StorageError"
    assert "needs 12.6 MB more" in full["message"]
    assert "1 MB free" in full["message"]
    assert server.fetched == ["model.safetensors.index.json"]


def test_a_split_gguf_comes_with_all_its_parts(client):
    found = client.resolve("org/split/big-00001-of-00003.gguf")
    assert Path(found["path"]).name == "big-00001-of-00003.gguf"
    assert files_of(str(Path(found["path"]).parent)) == [f"big-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]


REFUSED = {
    "org/half/big-00001-of-00003.gguf": "lacks big-00002-of-00003.gguf, a part of",
    "org/gguf": "choose one, for example org/gguf/tiny-f16.gguf",
    "org/gguf/other.gguf": "tiny-f16.gguf, tiny-q8_0.gguf",
    "org/bin": "no config.json with model.safetensors",
    "org/torn": "lacks model-00001-of-00002.safetensors",
    "org/bad": "not an index of shards",
    "org/gated": "accept its terms",
    "org/missing": "does not exist or is private",
}


def test_models_that_cannot_be_used(client):
    found = dict(zip(REFUSED, client.resolve_all(list(REFUSED)), strict=True))
    assert {name: result["error"] for name, result in found.items()} == dict.fromkeys(REFUSED, "ModelError")
    for name, message in REFUSED.items():
        assert message in found[name]["message"]
        assert "\n" not in found[name]["message"]


def test_without_a_network_and_without_a_cache(client, server):
    offline = client.resolve("org/small", HF_HUB_OFFLINE="1")
    assert offline["error"] == "ModelError"
    assert str(client.home) in offline["message"]
    assert "unset it once" in offline["message"]
    server.down = True
    assert "cannot be reached" in client.resolve("org/small")["message"]
    gone = client.resolve("org/small", HF_ENDPOINT="http://127.0.0.1:9")
    assert "check the connection" in gone["message"]
    assert "\n" not in gone["message"]


def test_an_offline_cache_made_by_hand(tmp_path, client):
    """The cache's layout as huggingface_hub documents it, whoever filled it."""
    folder = client.home / "hub" / "models--org--plain"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    partly = client.resolve("org/plain", HF_HUB_OFFLINE="1")
    assert "only partly in the cache (no model.safetensors)" in partly["message"]
    (snapshot / "model.safetensors").write_bytes(b"x")
    names = ["org/plain", f"org/plain@{COMMIT}", "org/plain@v2"]
    *found, other = client.resolve_all(names, HF_HUB_OFFLINE="1")
    assert found == [{"path": str(snapshot)}] * 2
    assert "not in the cache" in other["message"]


# --- local, in this process --------------------------------------------------------------------------------


def test_local_models(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert resolve_model(str(model)) == model
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF\x03\0\0\0")
    assert resolve_model(str(gguf)) == gguf


def test_local_paths_that_are_no_models(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"no config\.json and is not packed$"):
        resolve_model(str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGML")
    with pytest.raises(ModelError, match=r"it holds m\.gguf: name the file"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelError, match="not a GGUF file"):
        resolve_model(str(tmp_path / "m.gguf"))
    monkeypatch.setattr(hub, "open", _denied, raising=False)
    with pytest.raises(StorageError, match="Permission denied"):
        resolve_model(str(tmp_path / "m.gguf"))


def _denied(path, mode):
    raise PermissionError(13, "Permission denied")


NO_NAMES = [
    "",
    " ",
    "nothing",
    "/no/such/dir",
    "./a/b",
    "../a/b",
    "~/a/b",
    "a/b/c",
    "models/x.gguf",
    "a b/c",
    "é/c",
]
NO_NAMES += [
    "a/b@",
    "a/b@c d",
    "a--b/c",
    "a/b..c",
    "-a/b",
    "a/b.git",
    "a/-b",
    "a/b/../x.gguf@v",
    "x" * 97 + "/y",
    "https://a/b",
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_cannot_be_models(name):
    with pytest.raises(ModelError, match="neither a directory or GGUF file here nor a model on the hub"):
        resolve_model(name)


def test_names_of_models_on_the_hub():
    assert HubModel.parse("org/name") == HubModel("org/name", None, None)
    assert HubModel.parse("o-r.g_1/Na-me.2@refs/pr/1") == HubModel("o-r.g_1/Na-me.2", None, "refs/pr/1")
    model = HubModel.parse("org/name/Q4/m.gguf@v1")
    assert model == HubModel("org/name", "Q4/m.gguf", "v1")
    assert str(model) == "org/name/Q4/m.gguf@v1"
