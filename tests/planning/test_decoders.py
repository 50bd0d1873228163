"""Decoders as they come: an If over the cache, two files with one file of weights, a cache in one buffer with its past."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtile
from tests.contributed_models import WIDTH, Weights, contributed, info, model

SIZES = {"s": 1, "past": 7}


def merged() -> onnx.ModelProto:
    """A decoder of which a branch makes the cache, and the other extends it; both read the weights around them."""

    def branch(name: str, is_step: bool) -> onnx.GraphProto:
        def node(op: str, inputs: list[str], result: str, **attributes: Any) -> onnx.NodeProto:
            return helper.make_node(op, inputs, [f"{name}_{result}"], name=f"{name}_{result}_node", **attributes)

        q, k, kt = f"{name}_q", f"{name}_k", f"{name}_kt"
        keys = (
            node("Concat", ["past", f"{name}_new"], "k", axis=1) if is_step else node("Identity", [f"{name}_new"], "k")
        )
        nodes = [
            node("MatMul", ["x", "wk"], "new"), node("MatMul", ["x", "wq"], "q"), keys,
            node("Transpose", [k], "kt", perm=[0, 2, 1]), node("MatMul", [q, kt], "scores"),
            node("Softmax", [f"{name}_scores"], "p", axis=-1), node("MatMul", [f"{name}_p", k], "o"),
        ]  # fmt: skip
        return helper.make_graph(nodes, name, [], [info(f"{name}_o", 1, "s", WIDTH), info(k, 1, f"t_{name}", WIDTH)])

    w = Weights()
    w.floats("wq", WIDTH, WIDTH)
    w.floats("wk", WIDTH, WIDTH)
    both: dict[str, Any] = {"then_branch": branch("step", is_step=True), "else_branch": branch("prompt", is_step=False)}
    nodes = [helper.make_node("If", ["use_cache"], ["y", "present"], name="merged", **both)]
    inputs = [info("x", 1, "s", WIDTH), info("past", 1, "past", WIDTH), info("use_cache", 1, kind=TensorProto.BOOL)]
    return model(nodes, inputs, [info("y", 1, "s", WIDTH), info("present", 1, "t", WIDTH)], w)


def attends(tokens: int, past: int) -> onnx.ModelProto:
    """A layer over `tokens` new tokens and `past` cached ones; all have the same weights."""
    w = Weights()
    projections = [
        helper.make_node("MatMul", ["x", w.floats(f"w{one}", WIDTH, WIDTH)], [f"{one}0"], name=one) for one in "qkv"
    ]
    joins = [helper.make_node("Concat", [f"p{one}", f"{one}0"], [one], axis=1, name=f"join_{one}") for one in "kv"]
    if not past:
        joins = [helper.make_node("Identity", [f"{one}0"], [one], name=f"join_{one}") for one in "kv"]
    nodes = [
        *projections,
        *joins,
        contributed("MultiHeadAttention", ["q0", "k", "v"], ["a"], num_heads=4, name="attend"),
        helper.make_node("MatMul", ["a", w.floats("wo", WIDTH, WIDTH)], ["o"], name="out"),
        helper.make_node("Add", ["o", "x"], ["y"], name="residual"),
    ]
    inputs = [info("x", 1, tokens, WIDTH), *([info(f"p{one}", 1, past, WIDTH) for one in "kv"] if past else [])]
    outputs = [info("y", 1, tokens, WIDTH), *(info(one, 1, tokens + past, WIDTH) for one in "kv")]
    return model(nodes, inputs, outputs, w)


def in_one_buffer() -> onnx.ModelProto:
    """A step with packed projections, whose present keys and values are as long as the past ones; no shape between is declared."""
    w = Weights()
    nodes = [
        helper.make_node("MatMul", ["x", w.floats("wqkv", WIDTH, 8 * 16)], ["qkv"], name="project"),
        contributed(
            "GroupQueryAttention", ["qkv", "", "", "pk", "pv", "lengths", "total", w.floats("cos", 64, 8), w.floats("sin", 64, 8)],
            ["a", "k", "v"], num_heads=4, kv_num_heads=2, do_rotary=1, name="attend",
        ),
        contributed("SkipSimplifiedLayerNormalization", ["a", "x2", w.floats("g", 64)], ["y"], epsilon=1e-5, name="norm"),
    ]  # fmt: skip
    whole = TensorProto.INT32
    inputs = [info("x", 1, 1, WIDTH), info("x2", 1, 1, 64), *(info(f"p{one}", 1, 2, 16, 16) for one in "kv")]
    inputs += [info("lengths", 1, kind=whole), info("total", kind=whole)]
    return model(nodes, inputs, [info("y", 1, 1, 64), *(info(one, 1, 2, 16, 16) for one in "kv")], w)


def test_both_branches_of_a_merged_decoder_are_fused_and_tiled() -> None:
    fused = onnxtile.fuse(merged())
    attention = next(p for p in fused.to_dict()["patterns"] if p["name"] == "ScaledDotProductAttention")
    assert (attention["fused"], fused.verdict is not None) == (2, True)
    tiled = onnxtile.tile(merged(), max=16, dims=SIZES)
    assert {site.node.partition("_")[0] for site in tiled.result.tiled} == {"step", "prompt"}


def test_the_branches_of_a_merged_decoder_share_a_workspace() -> None:
    found = onnxtile.plan(merged(), dims={**SIZES, "present": ":8"})
    assert found.verdict is not None and found.verdict.equal
    assert found.plan.unplanned == ()
    bodies = {body.attribute: body.size for body in found.plan.bodies}
    (workspace,) = (row for row in found.plan.buffers if row.kind == "workspace")
    assert workspace.size == max(bodies.values()) == bodies["then_branch"]


def test_a_merged_decoder_over_a_range_of_lengths() -> None:
    found = onnxtile.plan(merged(), dims={"s": (1, 4), "past": (1, 7), "present": ":11"})
    assert found.verdict is not None and found.verdict.equal
    assert len(found.verdict.to_dict()["sizes"]) == 9


def test_two_files_keep_their_one_file_of_weights(tmp_path: Path) -> None:
    for name, made in {"prompt": attends(8, 0), "step": attends(1, 16)}.items():
        onnx.save(made, tmp_path / f"{name}.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
        weights = (tmp_path / "weights.bin").read_bytes()
        (tmp_path / "weights.bin").unlink()
    (tmp_path / "weights.bin").write_bytes(weights)
    for name in ("prompt", "step"):
        fused = onnxtile.fuse(tmp_path / f"{name}.onnx")
        fused.save(tmp_path / f"{name}.fused.onnx")
        found = onnxtile.plan(tmp_path / f"{name}.fused.onnx")
        assert found.verdict is not None and found.verdict.equal
        found.save(tmp_path / f"{name}.planned.onnx")
        tiled = onnxtile.tile(tmp_path / f"{name}.onnx", max=16)
        assert tiled.verdict is not None
        for kind in ("fused", "planned"):
            made = onnx.load(tmp_path / f"{name}.{kind}.onnx", load_external_data=False)
            places = {
                entry.value for t in made.graph.initializer for entry in t.external_data if entry.key == "location"
            }
            assert places == {"weights.bin"}
    assert (tmp_path / "weights.bin").read_bytes() == weights
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".onnx"] == ["weights.bin"]


@pytest.mark.parametrize("verb", ["fuse", "tile", "plan"])
def test_a_cache_in_one_buffer_with_its_past_is_run(verb: str) -> None:
    """Random lengths of a cache are refused by onnxruntime, or make another shape than the file declares."""
    found = getattr(onnxtile, verb)(in_one_buffer(), **({"max": 16} if verb == "tile" else {}))
    assert found.verdict is not None and found.verdict.equal
    assert onnxtile.inspect(in_one_buffer()).to_dict()["macs"]["unknown"] == []


def test_the_two_files_have_the_same_weights() -> None:
    one, other = (m.graph.initializer for m in (attends(8, 0), attends(1, 16)))
    assert all(
        np.array_equal(onnx.numpy_helper.to_array(a), onnx.numpy_helper.to_array(b))
        for a, b in zip(one, other, strict=True)
    )
