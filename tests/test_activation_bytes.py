"""What passes hold beside weights and the cache, as the plan counts it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edgespec.core.acceptance import Greedy
from edgespec.core.batch import PrefillBlock, Verification, blocks, run_pass
from edgespec.core.sampling import Noise
from edgespec.core.tree import TokenTree
from edgespec.devices.arithmetic import Arithmetic
from edgespec.kernels import compiled, matmul, scratch
from edgespec.kernels.choice import AMX, ARM, AVX2, AVX512, AVX512_BF16, AVX_VNNI, CHOSEN, FEWS, LEVELS
from edgespec.kernels.gguf_blocks import row_bytes
from edgespec.kernels.layer import LayerPass, WholeLayer, run_layers
from edgespec.kernels.low_bit import stored_row_bytes
from edgespec.kernels.matmul import Block, linear
from edgespec.kernels.trials import by_features
from edgespec.models.packing import pack_model
from edgespec.offload.chunks import Cut
from edgespec.runtimes.base import PREFILL_ROWS, TREE_ROWS
from edgespec.runtimes.formats import passes
from edgespec.runtimes.formats.describe import ModelFiles, describe_model
from edgespec.runtimes.formats.needs import context_bytes, pool_positions
from edgespec.runtimes.formats.passes import UNPACKED_TILE, packed_bytes, pass_bytes, room_bytes
from edgespec.runtimes.rows import Rows
from edgespec.runtimes.torch import rope
from edgespec.runtimes.torch import target as target_module
from edgespec.runtimes.torch.choices import settle
from edgespec.runtimes.torch.draft import open_draft
from edgespec.runtimes.torch.machine import arithmetic
from edgespec.runtimes.torch.target import TorchTarget
from tests.allocated import Allocated
from tests.models import make_checkpoint, write_gguf

SHAPE = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 2}
BF16 = Arithmetic()  # a CPU that has it
built = pytest.mark.skipif(bool(compiled.unavailable()), reason="the kernels were not built")


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16", "int4", "Q8_0"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder, kind = tmp_path_factory.mktemp("model"), request.param
    plain = make_checkpoint(
        folder / "m", dtype=kind if "float" in kind else "bfloat16", max_position_embeddings=1024, **SHAPE
    )
    if kind == "int4":
        pack_model(str(plain), folder / "low", precision=kind)
        return describe_model(folder / "low")
    return describe_model(write_gguf(plain, folder / "m.gguf", kind) if kind == "Q8_0" else plain)


def test_the_plan_counts_what_passes_hold(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU that runs this: a prompt whose rows are a tree's, the largest tree, a whole block."""
    monkeypatch.setattr(scratch, "_BUFFERS", scratch._Buffers())
    settle(files.table)
    target, context = open_draft(files, TREE_ROWS), 2 * PREFILL_ROWS - TREE_ROWS
    cache = target.new_cache(context, TREE_ROWS)
    weights = [block.data for block in target.weights.resident.values()]
    weights += [block.scale for block in target.weights.resident.values() if block.scale is not None]
    known = {tensor.untyped_storage().data_ptr() for tensor in (*weights, cache.k, cache.v)}

    def counts(tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() not in known

    prompt = np.random.default_rng(0).integers(0, 200, context).tolist()
    with Allocated(counts) as taken:
        for length in (passes.FEW, context):
            cache.truncate(0)
            for block in blocks(cache, prompt[:length]):
                run_pass(target, [block])
                block.raise_error()
            rows = Rows.append(cache, np.arange(TREE_ROWS) - 1)
            target.logits(target.run(target.embed(prompt[:TREE_ROWS]), rows, range(files.config.layers)))
            cache.truncate(cache.length)
    planned = pass_bytes(files, arithmetic(), context)
    assert 0.9 * planned < taken.peak <= planned


def test_short_prompts_that_share_a_pass_take_no_more_than_is_planned(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many conversations as a pass is planned for, with their trees and without."""
    monkeypatch.setattr(scratch, "_BUFFERS", scratch._Buffers())
    settle(files.table)
    sequences, weights = 16, open_draft(files, TREE_ROWS).weights
    rows, judged = passes.pass_rows(sequences, True), passes.judged_rows(sequences, True)
    target, rng = TorchTarget(files.config, weights, TREE_ROWS, rows, judged), np.random.default_rng(0)
    known = {block.data.untyped_storage().data_ptr() for block in target.weights.resident.values()}
    caches = [target.new_cache(1024, TREE_ROWS) for _ in range(5)]
    known |= {kv.untyped_storage().data_ptr() for cache in caches for kv in (cache.k, cache.v)}

    def counts(tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() not in known

    def prompts(*lengths: int) -> list[PrefillBlock]:
        return [
            PrefillBlock(cache, rng.integers(0, 200, n).tolist())
            for cache, n in zip(caches, lengths, strict=False)
        ]

    def tree(place: int) -> Verification:
        nodes = TokenTree.chain(rng.integers(0, 200, 40))
        return Verification(caches[place], nodes, Greedy(), Noise(0))

    with Allocated(counts) as taken:
        for parts in (
            prompts(256, 256), prompts(32, 32, 32, 32), [*prompts(256, 250), tree(3), tree(4)], prompts(512)
        ):  # fmt: skip
            run_pass(target, parts)
            for part in parts:
                part.raise_error()
                part.cache.truncate(0)
    assert taken.peak <= pass_bytes(files, arithmetic(), 1024, sequences, trees=True)
    assert len(scratch._BUFFERS.by_use.get("matmul", ())) <= passes._room(files, arithmetic(), judged)


@built
def test_layers_in_one_call_have_room_for_the_trees_of_many(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not all(cut.encoding in passes.NATIVE for cut in files.table.cuts):
        pytest.skip("torch multiplies fp32")
    monkeypatch.setattr(scratch, "_BUFFERS", scratch._Buffers())
    settle(files.table)
    judged, called = 5 * TREE_ROWS, list[int]()

    def counted(layers: list[WholeLayer], first: int, hidden: Tensor, shared: LayerPass) -> Tensor:
        called.append(len(hidden))
        return run_layers(layers, first, hidden, shared)

    monkeypatch.setattr(target_module, "run_layers", counted)
    draft = open_draft(files, TREE_ROWS)
    target = TorchTarget(files.config, draft.weights, judged, PREFILL_ROWS + judged, judged)
    for many in (target, draft):
        cache = target.new_cache(200, judged)
        tokens = np.arange(judged) % 200
        rows = Rows.append(cache, np.full(judged, -1))
        if many is draft:  # has more slots than memory is planned for
            many.judged_rows = many.pass_rows = judged
        many.logits(many.run(many.embed(tokens), rows, range(files.config.layers)))
        assert set(called) == ({judged} if many is target else set())
        called.clear()
        taken, how = len(scratch._BUFFERS.by_use["matmul"]), arithmetic()
        few = passes._room(files, how, TREE_ROWS)  # those of a prompt that are multiplied as a tree's
        assert taken <= passes._room(files, how, judged) <= max(1.05 * taken, few)


def test_what_is_known_of_kernels_is_theirs() -> None:
    assert compiled.FORMATS.keys() == passes.NATIVE
    assert passes.UNPACKED_TILE == matmul.PROMPT_TILE_BYTES
    assert max(FEWS) == passes.FEW
    assert passes.ANGLES == rope.TABLE


def asked_by(cut: Cut, n: int, dtype: torch.dtype, prompt: bool, way: int) -> int:
    """Bytes of room that the kernels want for n rows of such x."""
    library, (rows,) = compiled.library(), cut.rows
    assert library is not None
    data = torch.zeros(rows, cut.row_bytes, dtype=torch.uint8)
    block = Block.of_bytes(cut.encoding, data, rows, cut.inner, torch.ones(rows))
    matrices = compiled.Matrices([[(cut.encoding, block.data, block.scale)]], cut.inner)
    x, out = torch.zeros(n, cut.inner, dtype=dtype), (compiled._P * 1)(0)
    asked: int = library.es_linear(
        matrices.described, 1, cut.inner, x.data_ptr(), compiled.SOURCES[dtype], n, prompt, 1 + 2 * way, 1,
        out, compiled.SOURCES[dtype], torch.get_num_threads(), None, 0,
    )  # fmt: skip
    return asked


def cut_of(encoding: str, rows: int, inner: int) -> Cut:
    nbytes = stored_row_bytes(encoding, inner)
    return Cut("down_proj", encoding, inner, nbytes, (rows,), rows)


@built
@pytest.mark.parametrize("encoding", ["I8", "U8", "Q8_0", "Q4_K", "F16", "BF16"])
@pytest.mark.parametrize(("rows", "inner"), [(320, 512), (1408, 2048), (96, 5632)])
def test_the_room_of_the_kernels_is_what_they_ask_for(encoding: str, rows: int, inner: int) -> None:
    if compiled.level() < AVX2:
        pytest.skip("no AVX2 or NEON here")
    cut, threads = cut_of(encoding, rows, inner), torch.get_num_threads()
    seconds = [level for level in compiled.levels() if level in (AVX2, AVX_VNNI)]
    ways = dict.fromkeys(seconds, Arithmetic(frozenset(("bfloat16",)), threads=threads, arranged=not ARM))
    if encoding == "BF16" and compiled.level() >= AVX512_BF16:
        ways[compiled.level()] = Arithmetic(threads=threads)
    if encoding == "F16" and compiled.level() == AMX:
        ways[AMX] = Arithmetic(prompts=frozenset({"F16"}), threads=threads)
    for n, (way, how) in product((TREE_ROWS, passes.FEW, 576), ways.items()):
        half = encoding == "F16" and way == AMX and n == passes.FEW  # a prompt's rows
        asked = asked_by(cut, n, torch.float16 if half else torch.bfloat16, half, way)
        assert asked <= room_bytes(cut, how, n, 2, half) <= 1.02 * asked + 4096


@built
@pytest.mark.skipif(ARM, reason="NEON packs nothing")
@pytest.mark.usefixtures("best_level")
def test_a_plan_knows_of_the_instructions_that_x_is_packed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in list(CHOSEN):
        monkeypatch.delitem(CHOSEN, encoding)
    for level in compiled.levels():
        compiled.level(level)
        assert arithmetic().arranged == (level in {AVX2, AVX_VNNI, AMX}), LEVELS[level]


@built
@pytest.mark.skipif(ARM, reason="NEON packs nothing")
@pytest.mark.parametrize(("encoding", "chosen"), [("U8", AVX2), ("U8", AVX_VNNI), ("BF16", AVX512)])
def test_a_plan_has_room_for_what_was_chosen_against_features(
    monkeypatch: pytest.MonkeyPatch, encoding: str, chosen: int
) -> None:
    """x is packed once more for weights side by side by AVX2, and widened for bf16 in fp16's order."""
    usual = by_features(encoding)
    made = replace(usual, ways=(2 * chosen,) * len(usual.ways), order=chosen)
    monkeypatch.setitem(CHOSEN, encoding, made)
    monkeypatch.setattr(compiled, "level", lambda *lowered: AVX512_BF16)
    how, cut = replace(arithmetic(), converts=frozenset()), cut_of(encoding, 320, 512)
    assert room_bytes(cut, how, 256, 2) > room_bytes(cut, replace(how, arranged=False, widened=False), 256, 2)


@built
@pytest.mark.parametrize("encoding", ["I8", "Q4_K", "BF16"])
@pytest.mark.parametrize(("rows", "inner"), [(320, 512), (1408, 2048), (96, 5632)])
def test_the_room_of_a_prompts_block_is_what_they_ask_for(encoding: str, rows: int, inner: int) -> None:
    """In an order of its own, by AMX or AVX-512 BF16."""
    if (way := compiled.level()) < AVX512_BF16:
        pytest.skip("no AVX-512 BF16 here")
    cut, how = cut_of(encoding, rows, inner), Arithmetic(threads=torch.get_num_threads())
    asked = asked_by(cut, PREFILL_ROWS, torch.bfloat16, True, way)
    assert asked <= packed_bytes(cut, how, 2) <= 1.02 * asked + 4096


def test_weights_of_another_type_take_a_tile_more(tmp_path: Path) -> None:
    """Where torch multiplies a prompt's rows by them; the compiled kernels arrange these rows."""
    plain = make_checkpoint(tmp_path / "m", dtype="bfloat16", **SHAPE)
    pack_model(str(plain), tmp_path / "low", precision="int4")
    own, low = describe_model(plain), describe_model(tmp_path / "low")
    torch_s = replace(BF16, compiled=False)
    tile = passes.scratch_bytes(low, torch_s)
    assert tile == max(cut.inner * sum(cut.rows) * 2 for cut in low.table.cuts) <= UNPACKED_TILE
    assert passes.scratch_bytes(own, torch_s) == 0
    packed = passes.scratch_bytes(low, replace(BF16, prompts=frozenset({"U8"})))
    assert PREFILL_ROWS * 2048 * 2 < packed < PREFILL_ROWS * 2048 * 2 * 2


def test_a_prompt_unpacks_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_BUFFERS", scratch._Buffers())
    monkeypatch.setattr(compiled, "own_prompt", lambda *arguments: False)
    inner, rows = 4096, 4096
    data = torch.zeros(rows, row_bytes("Q8_0", inner), dtype=torch.uint8)
    block, x = Block("Q8_0", data, None, rows, inner), torch.zeros(PREFILL_ROWS, inner, dtype=torch.bfloat16)
    linear(x, block, exact=False)
    taken = sum(len(buffer) for buffer in scratch._BUFFERS.by_use.values())
    assert UNPACKED_TILE / 2 < taken <= UNPACKED_TILE


def test_without_kernels_a_tree_s_outputs_lie_where_a_prompt_s_numbers_do(tmp_path: Path) -> None:
    """One is never there with the other, so that the larger of both is planned; of many sequences both."""
    wide = describe_model(make_checkpoint(tmp_path / "m", dtype="bfloat16", intermediate_size=2048))
    config, element, how = wide.config, wide.element, replace(BF16, compiled=False)

    def held(positions: int, sequences: int = 1) -> int:
        """Beside keys and values."""
        pool = config.kv_bytes(pool_positions(positions, sequences), element)
        return context_bytes(wide, how, positions, sequences) - pool

    for positions in (512, 2**14, 2**18):
        outputs = TREE_ROWS * positions // 64 * (config.q_size * element + config.heads * 8)
        assert held(positions) >= PREFILL_ROWS * positions
        assert pass_bytes(wide, how, positions) >= outputs
        assert held(positions, 2) >= held(positions) + min(outputs, held(positions)) // 2
    assert held(2**18) - held(2**17) > TREE_ROWS * 2**17 // 64 * config.q_size * element  # no room is left
