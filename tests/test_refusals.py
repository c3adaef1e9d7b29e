"""What needs no torch is refused before torch is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.test_session import write_model

ROOT = Path(__file__).resolve().parent.parent

CODE = """
import json, sys
import edgespec
found = {}
for name, (model, options) in json.loads(sys.argv[1]).items():
    try:
        edgespec.load(model, **options)
    except edgespec.EdgeSpecError as error:
        found[name] = [type(error).__name__, str(error), "torch" in sys.modules]
print(json.dumps(found))
"""


def test_refusals_do_not_wait_for_torch(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    other = write_model(tmp_path / "other")
    config = json.loads((other / "config.json").read_text()) | {"architectures": ["MambaForCausalLM"]}
    (other / "config.json").write_text(json.dumps(config))
    (tmp_path / "empty").mkdir()
    cut = write_model(tmp_path / "cut")
    weights = next(cut.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    cases: dict[str, tuple[Path, dict[str, object]]] = {
        "missing": (tmp_path / "no" / "such" / "model", {}),
        "empty": (tmp_path / "empty", {}),
        "unsupported": (other, {}),
        "truncated": (cut, {}),
        "drafter": (model, {"drafter": "medusa"}),
        "pair": (model, {"drafter": "cascade+model", "adapters": "a", "draft_model": "b"}),
        "schedule": (model, {"schedule": "soon"}),
        "device": (model, {"device": "warp"}),
        "memory": (model, {"memory": "much"}),
        "precision": (model, {"precision": "int8"}),
        "nodes": (model, {"tree_nodes": 65}),
        "draft model": (model, {"draft_model": tmp_path / "nothing"}),
    }
    told = json.dumps(cases, default=str)
    run = subprocess.run(
        [sys.executable, "-c", CODE, told], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found.keys() == cases.keys()
    assert not [name for name, (_, _, torch) in found.items() if torch]
    assert {name: kind for name, (kind, _, _) in found.items()} == {
        "missing": "ModelError",
        "empty": "ModelError",
        "unsupported": "UnsupportedModelError",
        "truncated": "CorruptFileError",
        "drafter": "OptionError",
        "pair": "OptionError",
        "schedule": "OptionError",
        "device": "DeviceError",
        "memory": "OptionError",
        "precision": "OptionError",
        "nodes": "OptionError",
        "draft model": "ModelError",
    }
