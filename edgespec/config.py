"""Options: what a user may set. Needs no torch.

An option is declared here and nowhere else: its field has the type, the default, and an `Option` that words
and bounds it. The command line, the EDGESPEC_* variables, edgespec.toml, the keywords of the API and the
tables of docs/cli.md follow from the fields. (For type checkers alone, `edgespec.api` names keywords again.)
Options of one task are declared in the same way beside it (`training/options.py`, `models/options.py`, and in
`apps/` what only the command line has); they are told to that task alone, by flags or keywords.

Where their values come from: `edgespec.apps.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from edgespec.errors import OptionError
from edgespec.values import MOST, Option, Options, options_of

PRECISIONS = ("source", "bf16", "int8", "int4")
FAN_OUTS = ("best-first", "geometric", "uniform", "measured")
FALLBACKS = ("jit", "ngram", "none")
OF_SCHEDULES = {"mirror": ("adapters",)}  # options that name files of the schedule, not of a drafter
MODEL, MEMORY, DRAFTING, REPLY = PANELS = ("Model", "Memory", "Drafting", "Reply")
MOST_KAPPA = 256  # what is named is drafted for: beyond, there is no room
MOST_BATCH = 1024
MOST_THREADS = 256  # that the compiled kernels' pool can hold


@dataclass(frozen=True)
class EngineOptions(Options):
    """How a model is loaded. `None` means: decide by plan."""

    memory: Annotated[
        int | None,  # bytes, of the whole process
        Option(
            "Most memory the process may use, such as 8GB or 512MB.",
            metavar="SIZE", panel=MEMORY, default="what the machine has free",
        ),
    ] = None  # fmt: skip
    context: Annotated[
        int | None,
        Option(
            "Positions that prompt and reply may take together.",
            metavar="TOKENS", panel=MEMORY, default="by the memory plan, said at the start", least=1,
        ),
    ] = None  # fmt: skip
    precision: Annotated[
        str | None,
        Option(
            f"Encoding of the weights: {', '.join(PRECISIONS)}.",
            metavar="NAME", panel=MEMORY, default="what the files hold", choices=PRECISIONS,
        ),
    ] = None  # fmt: skip
    batch: Annotated[
        int,  # 0 = auto
        Option(
            "Replies made at once: each pass of the weights serves all of them. A number, or auto, as many "
            "as have room and pay.",
            metavar="N|auto", panel=MEMORY, default="1, one after the other",
            least=0, most=MOST_BATCH, only=("generate", "bench"),
        ),
    ] = 1  # fmt: skip
    resident_layers: Annotated[
        int | None,
        Option(
            "Keep exactly the first N layers in memory.",
            metavar="N", panel=MEMORY, default="by the memory plan", least=0,
        ),
    ] = None  # fmt: skip
    device: Annotated[str, Option("Where to compute: auto, cpu or cuda.", metavar="NAME", panel=MEMORY)] = (
        "auto"
    )
    device_memory: Annotated[
        int | None,  # bytes; only with a discrete accelerator
        Option("Most memory on the accelerator.", metavar="SIZE", panel=MEMORY, default="what it has free"),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            "Processors that compute at a time.",
            metavar="N", panel=MEMORY, default="one a core that it may use", least=1, most=MOST_THREADS,
        ),
    ] = None  # fmt: skip
    drafter: Annotated[
        str,
        Option(
            "Who drafts: none, auto, ngram, model, substitute, cascade, moa, eagle, specformer, streaming, "
            "spd, remote, ngram+model, ngram+substitute, ngram+cascade, ngram+moa, ngram+eagle, "
            "ngram+specformer, ngram+streaming, ngram+spd, ngram+remote or cascade+substitute.",
            metavar="NAME", panel=DRAFTING, default="auto, what makes replies faster",
        ),
    ] = "auto"  # fmt: skip
    draft_model: Annotated[
        str | None,
        Option(
            "A small model with the same tokenizer (drafter model), or a low-bit packed copy of MODEL "
            "(drafter substitute; not needed when it was packed with MODEL).",
            metavar="MODEL", panel=DRAFTING, default="the copy that was packed with MODEL, if there is one",
        ),
    ] = None  # fmt: skip
    draft_engine: Annotated[
        str | None,
        Option(
            "Who runs the draft model: torch; or, in a process of its own, onnx, what `export` made of one "
            "(onnx:PROVIDER on an accelerator), coreml, likewise, on a Mac, or llama_cpp, a GGUF file.",
            metavar="NAME", panel=DRAFTING, default="what its files are made for",
        ),
    ] = None  # fmt: skip
    draft_worker: Annotated[
        int | None,
        Option(
            "Draft in a process of its own, with so many threads, while the target verifies (drafter model "
            "or streaming), or in so many processes that share its tracks (spd): for cores, or a device, "
            "that the target leaves free.",
            metavar="N", panel=DRAFTING, default="none, drafts are made in the target's process",
            least=1, most=MOST_THREADS,
        ),
    ] = None  # fmt: skip
    draft_server: Annotated[
        str | None,
        Option(
            "A server that drafts (drafter remote), with a small model of the same tokenizer: `serve`, as a "
            "drafter.",
            metavar="URL", panel=DRAFTING, default="none",
        ),
    ] = None  # fmt: skip
    draft_key_file: Annotated[
        str | None,
        Option("File with the key that the draft server asks for.", metavar="FILE", panel=DRAFTING),
    ] = None
    draft_ca: Annotated[
        str | None,
        Option(
            "File of certificates to trust, for a draft server at https://.",
            metavar="FILE", panel=DRAFTING, default="the system's",
        ),
    ] = None  # fmt: skip
    adapters: Annotated[
        str | None,
        Option(
            "What `train` made for MODEL: it says whose it is, and auto takes it where it fits (a cascade's "
            "are the early exit of schedule mirror, too).",
            metavar="DIR", panel=DRAFTING, default="none",
        ),
    ] = None  # fmt: skip
    client_adapters: Annotated[
        str | None,
        Option(
            "What `train moa` made for MODEL: the server says what drafters of its clients attend to.",
            metavar="DIR", panel=DRAFTING, default="none", only=("serve",),
        ),
    ] = None  # fmt: skip
    tree_nodes: Annotated[
        int, Option("Most tokens verified in a pass.", metavar="N", panel=DRAFTING, least=1)
    ] = 64  # the root included
    offline: Annotated[
        bool,
        Option("Take models from the disk and the cache only.", panel=MODEL),
    ] = False
    schedule: Annotated[
        str,
        Option(
            "When drafting happens: auto, serial (before each pass), ssd (in the waits of passes that read "
            "from flash, too) or mirror (as ssd, for what the target's early exit expects).",
            metavar="NAME", panel=DRAFTING, default="auto, ssd where there are waits",
        ),
    ] = "auto"  # fmt: skip
    fan_out: Annotated[
        str,
        Option(
            "What schedule ssd prepares for: best-first, or fan_out_budget outcomes: geometric, uniform or "
            "measured.",
            metavar="NAME", panel=DRAFTING, choices=FAN_OUTS, hidden=True),
    ] = "best-first"  # fmt: skip
    fan_out_budget: Annotated[
        int,
        Option(
            "Outcomes to prepare for, unless fan_out is best-first; at least tree_nodes.",
            metavar="N", panel=DRAFTING, least=2, most=128, hidden=True,
        ),
    ] = 64  # fmt: skip
    fallback: Annotated[
        str,
        Option(
            "What drafts when schedule ssd has prepared nothing for an outcome: jit (the drafter, then), "
            "ngram (what costs no passes) or none.",
            metavar="NAME", panel=DRAFTING, choices=FALLBACKS, hidden=True),
    ] = "jit"  # fmt: skip
    exit_layer: Annotated[
        int | None,
        Option(
            "Layers before the early exit of schedule mirror; 0 = as many as still hide the drafting.",
            metavar="N", panel=DRAFTING, default="half of the model's", least=0, hidden=True),
    ] = None  # fmt: skip
    verifier_layers: Annotated[
        int | None,
        Option("Layers before the shallow verifier of drafter cascade.", metavar="N", panel=DRAFTING,
            default="the most with an adapter, and room", least=1, hidden=True),
    ] = None  # fmt: skip
    kappa: Annotated[
        int,
        Option(
            "Tokens that the early exit of schedule mirror names behind each drafted one.",
            metavar="K", panel=DRAFTING, least=1, most=MOST_KAPPA, hidden=True),
    ] = 8  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tree_nodes == 1 and self.drafter not in ("auto", "none"):
            raise OptionError(
                f"trees of 1 node are plain decoding, with nothing to draft for {self.drafter}; use "
                "tree_nodes=2 or more, or drafter=none"
            )
        if self.batch != 1 and self.draft_worker is not None:
            raise OptionError(
                f"batch is {self.batch or 'auto'}, and a draft worker drafts for one conversation at a time; "
                "leave draft_worker= out, or use batch=1"
            )
        for name in ("draft_key_file", "draft_ca"):
            if getattr(self, name) is not None and self.draft_server is None:
                raise OptionError(f"{name} is for a draft server; name it with draft_server=", name)

    @property
    def drafts_apart(self) -> bool:
        """Something drafts that needs none of the target's waits: a process beside it, or a server."""
        return self.draft_worker is not None or self.draft_server is not None


@dataclass(frozen=True)
class GenerationOptions(Options):
    """How one reply is made. `temperature` 0 is greedy."""

    max_tokens: Annotated[
        int | None,
        Option(
            "Longest reply.",
            metavar="N", panel=REPLY, default="until the model ends, or the context is full", least=1,
        ),
    ] = None  # fmt: skip
    temperature: Annotated[
        float,
        Option(
            "Randomness of a reply; 0 takes the likeliest tokens.",
            metavar="T", panel=REPLY, least=0, most=100,
        ),
    ] = 0.0  # fmt: skip
    top_p: Annotated[
        float,
        Option(
            "Sample from the likeliest tokens that hold this much probability.",
            metavar="P", panel=REPLY, default="1, all",
        ),
    ] = 1.0  # fmt: skip
    top_k: Annotated[
        int, Option("Sample from the K likeliest.", metavar="K", panel=REPLY, default="0, all", least=0)
    ] = 0
    min_p: Annotated[
        float,
        Option(
            "Leave out tokens less likely than P times the likeliest.",
            metavar="P", panel=REPLY, default="0, none",
        ),
    ] = 0.0  # fmt: skip
    seed: Annotated[
        int,
        Option("Seed of the sampling. Same seed, same reply.", metavar="N", panel=REPLY, least=0, most=MOST),
    ] = 0
    stop: Annotated[
        tuple[str, ...],
        Option("End the reply before this text. Repeatable.", metavar="TEXT", panel=REPLY, default="none"),
    ] = ()
    ignore_eos: Annotated[
        bool, Option("Go on where the model would end the reply.", metavar="yes|no", panel=REPLY, hidden=True)
    ] = False
    acceptance: Annotated[
        str | None,
        Option(
            "What is kept of the drafts: greedy, sample, ratio, or typical (lossy).",
            metavar="NAME", panel=DRAFTING, default="greedy at temperature 0, else sample",
        ),
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off)", "top_p")
        if not 0 <= self.min_p < 1:
            raise OptionError(f"min_p is {self.min_p}; it must be at least 0 (off) and below 1", "min_p")
        if any(not s for s in self.stop):
            raise OptionError("stop has an empty text; it would end every reply at once", "stop")

    @property
    def idle(self) -> list[str]:
        """The options that are set but change nothing, because temperature 0 takes the likeliest token."""
        if self.temperature:
            return []
        known = options_of(type(self))
        return [n for n in ("top_k", "top_p", "min_p") if getattr(self, n) != known[n].default]


STANDING = (EngineOptions, GenerationOptions)  # also heard from the environment and edgespec.toml


def refuse_idle(options: GenerationOptions, given: Mapping[str, Any]) -> None:
    """Raises OptionError when one of the options that were `given` for this very run changes nothing."""
    for name in options.idle:
        if given.get(name) is not None:
            raise OptionError(
                f"{name} changes nothing at temperature 0, which takes the likeliest token; try "
                "temperature=0.7, or leave it out",
                name,
            )
