"""Acceptance: whatever is drafted, the text is the target's (or, for `typical`, says that it is not)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from edgespec.config import GenerationOptions
from edgespec.core.acceptance import ACCEPTANCES, Ratio, Sampling, Typical, make_acceptance
from edgespec.core.sampling import DRAFT_DRAW, Distribution, Noise, Sampler
from edgespec.core.tree import TokenTree
from edgespec.errors import OptionError
from tests.covering import covering

VOCABULARY = 7


class Toy:
    """A target whose logits depend on the last two tokens, so that a wrong path or position shows."""

    def __init__(self, seed: int, vocabulary: int = VOCABULARY) -> None:
        rng = np.random.default_rng(seed)
        self.table = (rng.standard_normal((vocabulary,) * 3) * 2).astype(np.float32)

    def rows(self, before: int, tree: TokenTree) -> np.ndarray:
        """[n, V]; `before` is the token ahead of the root."""
        previous = np.where(tree.parents < 0, before, tree.tokens[np.maximum(tree.parents, 0)])
        return self.table[previous, tree.tokens]


def plain(toy: Toy, sampler: Sampler, noise: Noise, start: tuple[int, int], count: int) -> list[int]:
    text = list(start)
    while len(text) < count + 2:
        text.append(sampler.pick(toy.table[text[-2], text[-1]], noise, len(text)))
    return text[2:]


def speculative(toy, acceptance, noise, start, count, draft) -> tuple[list[int], int]:
    """Tokens, and how many of them were drafted."""
    text, kept = list(start), 0
    while len(text) < count + 2:
        tree = draft(text)
        tree.validate()
        outcome = acceptance.walk(tree, toy.rows(text[-2], tree), noise, len(text))
        assert outcome.path[0] == 0
        assert tree.tokens[outcome.path[1:]].tolist() == list(outcome.tokens[:-1])
        assert (tree.parents[outcome.path[1:]] == outcome.path[:-1]).all()
        assert outcome.accepted == len(outcome.tokens) - 1
        assert outcome.bonus == outcome.tokens[-1]
        kept += outcome.accepted
        text += outcome.tokens
    return text[2 : count + 2], kept


def drafters(toy: Toy, sampler: Sampler, noise: Noise, rng: np.random.Generator):
    """Adversaries: token trees that are right, wrong, random, or full of duplicates."""

    def truth(text, length=5):
        return plain(toy, sampler, _Shifted(noise, len(text) - 2), (text[-2], text[-1]), length)

    def right(text):
        return TokenTree.chain([text[-1], *truth(text)])

    def wrong(text):
        return TokenTree.chain([text[-1], *((t + 1) % VOCABULARY for t in truth(text))])

    def none(text):
        return TokenTree.root(text[-1])

    def random(text):
        n = int(rng.integers(1, 40))
        parents = [-1] + [int(rng.integers(0, i)) for i in range(1, n)]
        tokens = rng.integers(0, VOCABULARY, n)
        tokens[0] = text[-1]
        return TokenTree(tokens, np.array(parents), np.zeros(n))

    def duplicates(text):
        # The true continuation twice, as equal siblings; each copy goes on differently.
        a, b, c = truth(text, 3)
        tokens = [text[-1], a, a, b, b, (b + 1) % VOCABULARY, c]
        return TokenTree(np.array(tokens), np.array([-1, 0, 0, 1, 1, 2, 4]), np.zeros(7))

    return {"right": right, "wrong": wrong, "none": none, "random": random, "duplicates": duplicates}


class _Shifted(Noise):
    """The same noise, seen from a text that begins `offset` later."""

    def __init__(self, noise: Noise, offset: int) -> None:
        super().__init__(noise.seed)
        self.offset = offset

    def uniform(self, position: int, draw: int = 0) -> float:
        return super().uniform(position + self.offset, draw)


SAMPLED = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 3},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 4, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("name", ["right", "wrong", "none", "random", "duplicates"])
@pytest.mark.parametrize(
    ("acceptance", "options"), [("greedy", {}), ("sample", {}), *(("sample", o) for o in SAMPLED)], ids=str
)
def test_any_tree_gives_plain_text(acceptance, options, name):
    options = GenerationOptions(seed=11, **options)
    toy, sampler, noise = Toy(1), Sampler(options), Noise(options.seed)
    draft = drafters(toy, sampler, noise, np.random.default_rng(5))[name]
    expected = plain(toy, sampler, noise, (1, 2), 300)
    text, kept = speculative(toy, make_acceptance(acceptance, options), noise, (1, 2), 300, draft)
    assert text == expected
    assert len(set(expected)) > 2  # a constant text would prove nothing
    if name == "right":
        assert kept >= 245  # five of six
    if name in ("wrong", "none"):
        assert kept == 0


def sampled_drafter(q: Toy, sampler: Sampler, noise: Noise, branches: tuple[int, ...], mutate=None):
    """Draws `branches[d]` children of every node at depth d from q's distribution, with repetition."""

    def draft(text):
        tokens, parents, drafts, depths = [text[-1]], [-1], [], [0]
        node = 0
        while node < len(tokens):
            before = tokens[parents[node]] if node else text[-2]
            depth = depths[node]
            width = branches[depth] if depth < len(branches) else 0
            found = sampler.distribution(q.table[before, tokens[node]]) if width else None
            drafts.append(found)
            for rank in range(width):
                # Ranks count over the whole level: cousins draw independently too.
                draw = DRAFT_DRAW + node * 100 + rank
                tokens.append(found.pick(noise.uniform(len(text) + depth, draw)))
                parents.append(node)
                depths.append(depth + 1)
            node += 1
        tree = TokenTree(np.array(tokens), np.array(parents), np.zeros(len(tokens)), tuple(drafts))
        return mutate(tree) if mutate else tree

    return draft


def exact_pairs(toy: Toy, sampler: Sampler, start: tuple[int, int]) -> np.ndarray:
    """[V, V] probability of the first two tokens."""
    vocabulary = len(toy.table)
    joint = np.zeros((vocabulary, vocabulary))
    first = sampler.distribution(toy.table[start])
    for a, pa in zip(first.ids, first.probs, strict=True):
        second = sampler.distribution(toy.table[start[1], a])
        joint[a, second.ids] = pa * second.probs
    return joint


@pytest.mark.parametrize(("kind", "options"), covering(("ratio chain", "ratio tree", "sample"), SAMPLED))
def test_text_has_the_target_distribution(kind, options):
    options = GenerationOptions(**options)
    target, drafter, sampler = Toy(2, 5), Toy(3, 5), Sampler(options)
    acceptance = make_acceptance(kind.split()[0], options)
    branches = {"ratio chain": (1, 1), "ratio tree": (3, 2), "sample": (2, 1)}[kind]
    joint, counts, kept = exact_pairs(target, sampler, (0, 1)), np.zeros((5, 5)), 0
    for seed in range(2500):
        noise = Noise(seed)
        draft = sampled_drafter(drafter, Sampler(GenerationOptions(temperature=1)), noise, branches)
        (a, b), accepted = speculative(target, acceptance, noise, (0, 1), 2, draft)
        counts[a, b] += 1
        kept += accepted
    assert kept > 0
    assert chi_square(counts, joint) > 1e-3


def chi_square(counts: np.ndarray, joint: np.ndarray) -> float:
    """The p-value of counts against probabilities; cells that should hardly occur are taken together."""
    stats = pytest.importorskip("scipy.stats")
    assert (counts[joint == 0] == 0).all()  # top-k and the like forbid these
    observed, expected = counts[joint > 0], joint[joint > 0] * counts.sum()
    rare = expected < 5  # chi-square wants at least 5 a cell
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue)


@pytest.mark.parametrize("options", [SAMPLED[4]], ids=str)
@pytest.mark.parametrize("name", ["right", "random", "duplicates"])
def test_sample_keeps_the_distribution_whatever_an_adversary_drafts(name, options):
    """Even one that knows the noise: the token at a position is drawn before the tree is looked at."""
    target, counts = Toy(2, 5), np.zeros((5, 5))
    sampler = Sampler(GenerationOptions(**options))
    for seed in range(1500):
        noise = Noise(seed)
        draft = drafters(target, sampler, noise, np.random.default_rng(seed))[name]
        acceptance = make_acceptance("sample", GenerationOptions(**options))
        (a, b), _ = speculative(target, acceptance, noise, (0, 1), 2, lambda t, d=draft: _modulo(d(t), 5))
        counts[a, b] += 1
    assert chi_square(counts, exact_pairs(target, sampler, (0, 1))) > 1e-3


def _modulo(tree: TokenTree, vocabulary: int) -> TokenTree:
    return TokenTree(tree.tokens % vocabulary, tree.parents, tree.logprobs)


@pytest.mark.parametrize("options", [SAMPLED[4]], ids=str)
def test_ratio_over_a_draft_models_chains_has_the_target_distribution(tmp_path, options):
    """The real drafter with the real acceptance: draws that are shared or filtered otherwise would show."""
    from edgespec.core.schedule import Context, TreeBudget
    from edgespec.drafters.base import Root
    from edgespec.drafters.model import ModelDrafter
    from edgespec.runtimes.torch.draft import TorchDraft
    from tests.tiny import fill, open_tiny, run_tree, write_checkpoint

    shape = {"vocab_size": 5, "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    models = [open_tiny(write_checkpoint(tmp_path / str(s), seed=s, **shape)) for s in (1, 2)]
    target, drafter = models[0], ModelDrafter(TorchDraft.alone(models[1], 40), 5)
    prompt, root = [0, 3, 1], 2
    cache = target.new_cache(40)
    fill(target, cache, prompt)
    # What the models say depends on the tokens alone, so every chain needs to be computed once.
    known = {}

    def rows(tree):
        key = tuple(tree.tokens.tolist())
        if key not in known:
            known[key] = run_tree(target, cache, tree.tokens, tree.parents).numpy()
            cache.truncate(len(prompt))
        return known[key]

    options = GenerationOptions(**options)
    sampler, acceptance = Sampler(options), make_acceptance("ratio", options)
    first = sampler.distribution(rows(TokenTree.root(root))[0])
    joint = np.zeros((5, 5))
    for a, chance in zip(first.ids.tolist(), first.probs, strict=True):
        second = sampler.distribution(rows(TokenTree.chain([root, a]))[1])
        joint[a, second.ids] = chance * second.probs
    counts, kept, seeds = np.zeros((5, 5)), np.zeros(3), 700
    for seed in range(seeds):
        noise, said = Noise(seed), []
        drafter.prefill(Context(prompt, sampler, noise, drawn=True))
        while len(said) < 2:
            path = (root, *said)
            drafting = drafter.start([Root(path)], TreeBudget(8, 2 - len(said), 2))
            while drafting.step():
                pass
            tree = drafting.tree()
            whole = TokenTree.chain([*path[:-1], *tree.tokens])
            logits = rows(whole)[len(path) - 1 :]
            outcome = acceptance.walk(tree, logits, noise, len(prompt) + len(path))
            kept[outcome.accepted] += 1
            said += outcome.tokens
        counts[said[0], said[1]] += 1
    assert (kept > seeds / 20).all()  # all ways through the acceptance were gone
    assert chi_square(counts, joint) > 1e-3


def test_siblings_are_judged_by_draws_of_their_own():
    """A child that is refused says that its u was large: the same u would refuse its siblings too often. With
    these p and q that would move a twentieth of the text."""
    p, q = np.array([0.14, 0.05, 0.09, 0.72]), Distribution(np.arange(4), np.array([0.22, 0.11, 0.01, 0.66]))
    ratio, rows = Ratio(GenerationOptions(temperature=1)), np.tile(np.log(p), (4, 1)).astype(np.float32)
    counts = np.zeros((1, 4))
    for seed in range(4000):
        noise = Noise(seed)
        drawn = [q.pick(noise.uniform(1, DRAFT_DRAW + rank)) for rank in range(3)]
        tree = TokenTree(np.array([0, *drawn]), np.array([-1, 0, 0, 0]), np.zeros(4), (q, None, None, None))
        counts[0, ratio.walk(tree, rows, noise, 1).tokens[0]] += 1
    assert chi_square(counts, p[None]) > 1e-3


def test_ratio_accepts_as_often_as_theory_says():
    options = GenerationOptions(temperature=1)
    target, drafter, sampler = Toy(2, 5), Toy(3, 5), Sampler(options)
    kept, cycles = 0, 3000
    for seed in range(cycles):
        draft = sampled_drafter(drafter, sampler, Noise(seed), (1,))
        tree = draft([0, 1])
        kept += Ratio(options).walk(tree, target.rows(0, tree), Noise(seed), 2).accepted
    p, q = sampler.distribution(target.table[0, 1]), sampler.distribution(drafter.table[0, 1])
    rate = np.minimum(p.probs, q.probs).sum()
    assert abs(kept / cycles - rate) < 4 * np.sqrt(rate * (1 - rate) / cycles)


def test_ratio_with_the_target_as_its_own_drafter_keeps_everything():
    options = GenerationOptions(temperature=1, top_k=4)
    toy, sampler = Toy(4), Sampler(options)
    for seed in range(50):
        draft = sampled_drafter(toy, sampler, Noise(seed), (1, 1, 1, 1))
        tree = draft([0, 1])
        assert Ratio(options).walk(tree, toy.rows(0, tree), Noise(seed), 2).accepted == 4


def test_ratio_refuses_trees_without_their_distributions():
    options = GenerationOptions(temperature=1)
    toy = Toy(0)
    tree = TokenTree.chain([1, 2])
    with pytest.raises(ValueError, match="drawn from"):
        Ratio(options).walk(tree, toy.rows(0, tree), Noise(0), 2)
    plain_tree = TokenTree.root(1)
    assert Ratio(options).walk(plain_tree, toy.rows(0, plain_tree), Noise(0), 2).accepted == 0
    narrow = Sampler(GenerationOptions(temperature=1, top_k=1)).distribution(toy.table[0, 1])
    impossible = TokenTree.chain([1, (int(narrow.ids[0]) + 1) % VOCABULARY], drafts=[narrow])
    with pytest.raises(ValueError, match="cannot come from"):
        Ratio(options).walk(impossible, toy.rows(0, impossible), Noise(0), 2)


def peaked(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, dtype=np.float32))


def test_typical_follows_medusas_rule():
    options = GenerationOptions(temperature=1)
    uniform = peaked(*[0.1] * 10)  # entropy ln 10, so delta e^-H = 0.03: everything passes
    sharp = peaked(0.9, 0.06, 0.02, 0.02, *[1e-9] * 6)  # delta e^-H = 0.19, so epsilon = 0.09 decides
    for token in range(10):
        tree = TokenTree.chain([0, token])
        assert Typical(options).walk(tree, np.stack([uniform, uniform]), Noise(0), 5).accepted == 1
        assert Typical(options).walk(tree, np.stack([sharp, sharp]), Noise(0), 5).accepted == (token == 0)
    # With epsilon and delta exchanged (0.3, 0.09) a flat row's bar would be 0.009, and this token would pass.
    flat = peaked(*[0.0494] * 20, 0.012)
    tree = TokenTree.chain([0, 20])
    assert Typical(options).walk(tree, np.stack([flat, flat]), Noise(0), 5).accepted == 0
    assert Typical(options, 0.3, 0.09).walk(tree, np.stack([flat, flat]), Noise(0), 5).accepted == 1


def test_typical_takes_the_longest_then_likeliest_path_and_honours_top_k():
    row = peaked(0.3, 0.3, 0.25, 0.15)
    tree = TokenTree(np.array([0, 2, 0, 1, 3, 0]), np.array([-1, 0, 0, 1, 2, 2]), np.zeros(6))
    rows = np.tile(row, (6, 1))
    assert Typical(GenerationOptions(temperature=1)).walk(tree, rows, Noise(0), 5).path.tolist() == [0, 2, 5]
    without = GenerationOptions(temperature=1, top_k=2)  # forbids tokens 2 and 3
    assert Typical(without).walk(tree, rows, Noise(0), 5).path.tolist() == [0, 2, 5]
    tree = TokenTree.chain([0, 2])
    assert Typical(without).walk(tree, rows[:2], Noise(0), 5).accepted == 0


def test_typical_without_drafts_is_plain_sampling():
    options = GenerationOptions(temperature=1, seed=3)
    toy, sampler = Toy(6), Sampler(options)
    expected = plain(toy, sampler, Noise(3), (0, 1), 50)
    draft = drafters(toy, sampler, Noise(3), np.random.default_rng(0))["none"]
    assert speculative(toy, Typical(options), Noise(3), (0, 1), 50, draft) == (expected, 0)


def test_names_and_options_that_do_not_fit():
    greedy, warm = GenerationOptions(), GenerationOptions(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01)
    assert make_acceptance(None, greedy).name == "greedy"
    assert make_acceptance(None, warm).name == "sample"
    assert make_acceptance("sample", greedy).name == "sample"
    assert {name: make_acceptance(name, warm).lossless for name in ACCEPTANCES[1:]} == {
        "sample": True,
        "ratio": True,
        "typical": False,
    }
    with pytest.raises(OptionError, match="greedy, sample, ratio, typical"):
        make_acceptance("magic", greedy)
    with pytest.raises(OptionError, match=r"temperature 0\.7 cannot be honoured"):
        make_acceptance("greedy", warm)
    for name in ("ratio", "typical"):
        with pytest.raises(OptionError, match="temperature 0"):
            make_acceptance(name, greedy)


def test_sample_reads_only_the_rows_on_its_way():
    toy, options = Toy(8), GenerationOptions(temperature=1)

    class Rows:
        asked: ClassVar[list[int]] = []

        def __getitem__(self, node):
            self.asked.append(node)
            return toy.table[0, node]

    tree = TokenTree(np.arange(7), np.array([-1, 0, 0, 0, 0, 0, 0]), np.zeros(7))
    outcome = Sampling(options).walk(tree, Rows(), Noise(0), 1)
    assert Rows.asked == outcome.path.tolist()
