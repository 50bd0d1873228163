"""A decoder of two layers with its cache of keys and values runs token by token in C, each cache at one address."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtile
from onnxtile.system.errors import UsageError

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from onnxtile.firmware.build import ProgramTarget, build
from tests.firmware.test_program import needs_cc, opened_of

HEADS, DEPTH, WORDS, ROWS = 4, 8, 20, 16
WIDTH = HEADS * DEPTH


class Graph:
    """A graph that grows node by node; each call returns the name of the result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        return self.constant((self.random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def constant(self, value: object) -> str:
        self.held.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.held)}"))
        return self.held[-1].name

    def add(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name


def decoder(*, grows: bool = False) -> onnx.ModelProto:
    """Two layers that attend to all tokens so far. The rows of a cache are written at `position`, or appended."""
    graph, past, present = Graph(), "past" if grows else ROWS, "total" if grows else ROWS
    inputs = [helper.make_tensor_value_info("token", TensorProto.INT64, [1, 1])]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, WORDS])]
    if not grows:
        inputs.append(helper.make_tensor_value_info("position", TensorProto.INT64, [1]))
        index = graph.add("Expand", "position", graph.constant([1, HEADS, 1, DEPTH]))
        later = graph.add("Greater", graph.constant(np.arange(ROWS).reshape(1, 1, 1, ROWS)), "position")
    heads, flat = graph.constant([1, 1, HEADS, DEPTH]), graph.constant([1, 1, WIDTH])
    scale, low = graph.constant(np.float32(DEPTH**-0.5)), graph.constant(np.float32(-1e9))
    x = graph.add("Gather", graph.weight(WORDS, WIDTH), "token")
    for layer in range(2):
        normed = graph.add("LayerNormalization", x, graph.constant(np.ones(WIDTH, np.float32)))
        query, *made = (
            graph.add("Transpose", graph.add("Reshape", product, heads), perm=[0, 2, 1, 3])
            for product in [graph.add("MatMul", normed, graph.weight(WIDTH, WIDTH)) for _ in range(3)]
        )
        caches = []
        for kind, new in zip(("key", "value"), made, strict=True):
            before, after = f"past_{kind}.{layer}", f"present_{kind}.{layer}"
            inputs.append(helper.make_tensor_value_info(before, TensorProto.FLOAT, [1, HEADS, past, DEPTH]))
            outputs.append(helper.make_tensor_value_info(after, TensorProto.FLOAT, [1, HEADS, present, DEPTH]))
            caches.append(
                graph.add("Concat", before, new, to=after, axis=2)
                if grows
                else graph.add("ScatterElements", before, index, new, to=after, axis=2)
            )
        scores = graph.add(
            "Mul", graph.add("MatMul", query, graph.add("Transpose", caches[0], perm=[0, 1, 3, 2])), scale
        )
        shares = graph.add("Softmax", scores if grows else graph.add("Where", later, low, scores))
        attended = graph.add("Transpose", graph.add("MatMul", shares, caches[1]), perm=[0, 2, 1, 3])
        x = graph.add("Add", x, graph.add("MatMul", graph.add("Reshape", attended, flat), graph.weight(WIDTH, WIDTH)))
        x = graph.add(
            "Add",
            x,
            graph.add(
                "MatMul", graph.add("Relu", graph.add("MatMul", x, graph.weight(WIDTH, 48))), graph.weight(48, WIDTH)
            ),
        )
    graph.add("MatMul", x, graph.weight(WIDTH, WORDS), to="scores")
    whole = helper.make_graph(graph.nodes, "decoder", inputs, outputs, graph.held)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@needs_cc
def test_a_cache_of_a_fixed_size_keeps_its_address_over_all_tokens(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, WORDS, ROWS)
    planned = onnxtile.plan(decoder(), verify=False, state="found")
    assert {state.copied for state in planned.plan.states} == {0} and len(planned.plan.states) == 4
    made = build(opened_of(planned), planned.plan)
    assert made.proof.equal and made.proof.runs == 64
    header = made.source.named("net").header
    assert (
        "void net_reset(void);" in header and "void net_run(const int64_t *token, const int64_t *position);" in header
    )
    caches = 4 * HEADS * ROWS * DEPTH * 4
    assert caches <= made.source.interface.arenas[0][2] < 1.5 * caches
    # Token after token by a program of one's own.
    for name, data in made.files("net").items():
        (tmp_path / f"net{name}").write_bytes(data)
    got = printed(tmp_path, tokens)
    assert np.allclose(got, expected(tokens), rtol=1e-4, atol=1e-5)


def printed(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Return the scores after each of `tokens` that the program in `folder` prints."""
    listed = ", ".join(map(str, tokens))
    (folder / "main.c").write_text(
        f"""#include "net.h"
        #include <stdio.h>
        int main(void) {{
            static const int64_t tokens[] = {{{listed}}};
            net_reset();
            for (int64_t at = 0; at < {len(tokens)}; ++at) {{
                net_run(&tokens[at], &at);
                for (int i = 0; i < {WORDS}; ++i) printf("%.9g\\n", (double)net_output_scores()[i]);
            }}
            return 0;
        }}"""
    )
    compiler = ProgramTarget().tools()
    assert compiler is not None
    subprocess.run([*compiler.compiler, "main.c", "net.c", "-lm", "-o", "net"], cwd=folder, check=True)
    text = subprocess.run([str(folder / "net")], capture_output=True, text=True, check=True).stdout
    return np.array(list(map(float, text.split()))).reshape(len(tokens), WORDS)


def expected(tokens: np.ndarray) -> np.ndarray:
    """Return the scores after each of `tokens` in onnxruntime, from the decoder whose caches grow."""
    session = onnxruntime.InferenceSession(decoder(grows=True).SerializeToString())
    caches = {
        name.name: np.zeros((1, HEADS, 0, DEPTH), np.float32) for name in session.get_inputs() if name.name != "token"
    }
    found = []
    for token in tokens:
        names = [value.name for value in session.get_outputs()]
        results = dict(zip(names, session.run(names, {"token": np.asarray([[token]]), **caches}), strict=True))
        caches = {name: results[name.replace("past", "present")] for name in caches}
        found.append(results["scores"].ravel())
    return np.array(found)


def test_a_cache_that_grows_at_one_size_is_refused_with_what_to_do() -> None:
    planned = onnxtile.plan(decoder(grows=True), dims={"past": 15}, verify=False, state="found")
    with pytest.raises(UsageError, match=r"a state that grows has no one size: 'past_key\.0'") as refused:
        build(opened_of(planned), planned.plan)
    assert "past=0:63" in str(refused.value.hint)
