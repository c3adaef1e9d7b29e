"""What tuning has found, as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgespec.apps import options
from edgespec.apps.tune_words import command, notes_of
from edgespec.config import EngineOptions

if TYPE_CHECKING:
    from edgespec.tuning.fit import Fit
    from edgespec.tuning.predict import Setting
    from edgespec.tuning.result import Tuning


def object_of(found: Tuning, engine: EngineOptions) -> dict[str, Any]:
    return {
        "model": found.model,
        "digest": found.digest,
        "weight_bytes": found.nbytes,
        "precision": found.precision,
        "preset": found.preset.name if found.preset else None,
        "machine": {
            "memory": found.machine.total,
            "available": found.machine.available,
            "read_gbps": found.machine.read_gbps,
            "memory_gbps": found.machine.memory_gbps,
        },
        "rows": [
            {
                "memory": row.dial,
                "refusal": row.refusal,
                "one_gb_more": row.more,
                "settings": [_setting(found, setting, engine) for setting in row.settings],
            }
            for row in found.rows
        ],
        "recommended": _setting(found, found.recommended, engine)
        | {"plan": found.recommended.plan.to_dict()},
        "front": [_setting(found, setting, engine) for setting in found.front],
        "after_packing": _setting(found, found.later, engine) if found.later else None,
        "measured": [
            asdict(one) | {"tokens_per_cycle": one.tokens_per_cycle, "error": one.error}
            for one in found.compared
        ],
        "fit": _fit(found.fit),
        "reasons": found.reasons,
        "notes": notes_of(found),
    }


def _setting(found: Tuning, setting: Setting, engine: EngineOptions) -> dict[str, Any]:
    return {
        "memory": setting.dial,
        "context": setting.plan.context,
        "precision": setting.precision,
        "drafter": setting.drafter,
        "schedule": setting.schedule,
        "tree_nodes": setting.tree_nodes,
        "steps": setting.steps,
        "verifier_layers": setting.depth,
        "tokens_per_second": asdict(setting.speed),
        "first_token_seconds": asdict(setting.first_token),
        "tokens_per_cycle": setting.tokens_per_cycle,
        "cycle_seconds": setting.cycle_seconds,
        "bytes_per_token": setting.bytes_per_token,
        "bound": setting.bound,
        "exact": setting.exact,
        "owners": setting.plan.owners,
        "first": [options.command_of(call) for call in setting.before],
        "command": command(found, setting, engine),
    }


def _fit(fit: Fit) -> dict[str, Any]:
    """The `fit` of --json: factors on what was expected, and what drafts were worth."""
    return {
        **{name: asdict(getattr(fit, name)) for name in ("flash", "compute", "prompt")},
        "drafters": [
            {"drafter": drafter, "files": files, **asdict(seen)}
            for (drafter, files), seen in sorted(fit.drafters.items())
        ],
    }
