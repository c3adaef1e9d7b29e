"""Are a draft model's tokens the target's? Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from edgespec.errors import TokenizerError

SHOWN = 3  # differing tokens named in a refusal


def vocabulary_digest(ids: Mapping[str, int]) -> str:
    """XXH3-128 (hex) of the tokens and their ids."""
    digest = xxhash.xxh3_128()
    for token, number in sorted(ids.items(), key=lambda item: item[1]):
        digest.update(f"{number} {len(token)} {token}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_vocabulary(target: Mapping[str, int], draft: Mapping[str, int], name: str) -> None:
    """Raises TokenizerError, naming some of the tokens, when the draft model's have not the same ids."""
    if target == draft:
        return
    wrong = sorted((t for t in target if draft.get(t) != target[t]), key=target.__getitem__)
    extra = sorted(draft.keys() - target.keys(), key=draft.__getitem__)
    examples = [
        f"{t!r} is {target[t]}, there {draft[t]}" if t in draft else f"{t!r} ({target[t]}) is missing there"
        for t in wrong[:SHOWN]
    ]
    examples += [f"{t!r} ({draft[t]}) is only there" for t in extra[: SHOWN - len(examples)]]
    raise TokenizerError(
        f"the draft model {name} has another tokenizer: {len(wrong)} of the target's {len(target)} tokens "
        f"have another id or none in its {len(draft)} ({'; '.join(examples)}); use a smaller model of the "
        "target's own family, or drafter=ngram"
    )
