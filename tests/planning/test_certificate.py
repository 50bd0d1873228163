"""Certificates: a checker without onnxtile accepts those of `plan`, and refuses forged ones."""

from __future__ import annotations

import ast
import itertools
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, parser

import onnxtile
from onnxtile.planning import check_certificate
from onnxtile.planning.certificate import certificate
from onnxtile.planning.check_certificate import ByteGraph, around, graph_of
from onnxtile.planning.result import PlannedState

CHECKER = Path(check_certificate.__file__)

CHAIN = """
<ir_version: 10, opset_import: ["" : 17]>
chain (float[1, 16, 8, 8] x, float[16, 16, 1, 1] w) => (float[1, 16, 8, 8] y) {
    a = Conv(x, w)
    b = Relu(a)
    c = Conv(b, w)
    d = Add(b, c)
    y = Conv(d, w)
}
"""
"""The widest node is c: it needs b and c."""

BRANCHES = """
<ir_version: 10, opset_import: ["" : 17]>
branches (float[64, 64] x) => (float[1, 64] y) {
    a = MatMul(x, x)
    b = MatMul(a, a)
    c = ReduceMean <axes = [0], keepdims = 1> (b)
    d = MatMul(x, x)
    e = MatMul(d, d)
    f = ReduceMean <axes = [0], keepdims = 1> (e)
    g = Concat <axis = 0> (c, f)
    y = ReduceMean <axes = [0], keepdims = 1> (g)
}
"""
"""Whichever branch runs first leaves one row behind: no node needs that in every order."""

PARTS = """
<ir_version: 10, opset_import: ["" : 17]>
parts (float[1, 8, 40] x, float[40, 40] w) => (float[1, 8, 40] y) {
    a = MatMul(x, w)
    b, c = Split <axis = 1> (a)
    d = MatMul(b, w)
    e = Reshape <allowzero = 0> (c, shape)
    f = MatMul(e, w)
    g = Flatten (f)
    h = Reshape (g, shape)
    y = Concat <axis = 1> (d, h)
}
"""


def _model(text: str) -> onnx.ModelProto:
    model = parser.parse_model(text)
    if "shape" in text:
        model.graph.initializer.append(helper.make_tensor("shape", TensorProto.INT64, [3], [1, 4, 40]))
    return model


def _certificate(text: str, **options: Any) -> dict[str, Any]:
    found = onnxtile.plan(_model(text), verify=False, **options).certificate()
    read: dict[str, Any] = json.loads(json.dumps(found))
    return read


def _refusal(text: str, said: dict[str, Any]) -> str:
    """Return the reason of a refusal; "" where the certificate is accepted."""
    try:
        return check_certificate.verdict(graph_of(_model(text), said), said)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "options", "claim", "kind"),
    [
        (CHAIN, {}, "any order", "node"),
        (CHAIN, {"io": "inside"}, "any order", "node"),
        (CHAIN, {"io": "outside"}, "any order", "node"),
        (BRANCHES, {}, "any order", "search"),
        (PARTS, {}, "any order", "search"),
        (PARTS, {"alignment": 16}, "any order", "search"),
    ],
)
def test_the_checker_accepts_what_plan_claims(text: str, options: Any, claim: str, kind: str) -> None:
    said = _certificate(text, **options)
    assert (said["claim"], said["proof"]["kind"], said["reason"]) == (claim, kind, None)
    assert _refusal(text, said) == ""
    if kind == "node":
        assert sum(said["proof"]["live"].values()) >= said["proof"]["bound"] > said["arena"] - said["alignment"]


def test_the_order_of_the_file_has_a_certificate_of_its_own() -> None:
    text = BRANCHES.replace("    e = MatMul(d, d)\n", "").replace("    c = Red", "    e = MatMul(d, d)\n    c = Red")
    text = text.replace("    d = MatMul(x, x)\n", "").replace("    b = Mat", "    d = MatMul(x, x)\n    b = Mat")
    said = _certificate(text, order="model")
    assert (said["claim"], said["proof"]["kind"]) == ("order", "step")
    assert _refusal(text, said) == ""
    shuffled = said | {"order": [*said["order"][:-2], *said["order"][:-3:-1]]}
    assert "runs before one that it reads" in _refusal(text, shuffled)
    assert "each node once" in _refusal(text, said | {"order": said["order"][:-1]})
    assert _refusal(text, said | {"claim": "any order"}) != ""


FORGED = {
    "a larger arena": lambda said: said.update(arena=said["arena"] + said["alignment"]),
    "a finer alignment of the claim": lambda said: said.update(alignment=1, arena=said["arena"] + 1),
    "another tensor is live": lambda said: said["proof"]["live"].update(d=4096),
    "a tensor is larger": lambda said: said["proof"]["live"].update(b=8192),
    "a larger bound": lambda said: said["proof"].update(bound=said["proof"]["bound"] + 64),
    "another node": lambda said: said["proof"].update(node="a"),
    "the inputs count": lambda said: said.update(io="inside"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_certificate_is_refused(name: str) -> None:
    said = _certificate(CHAIN)
    FORGED[name](said)
    assert _refusal(CHAIN, said) != ""


def test_sizes_that_the_model_says_are_not_those_of_the_certificate() -> None:
    said = _certificate(CHAIN)
    said["types"] |= {name: [TensorProto.DOUBLE, 1, 16, 8, 8] for name in "abcd"}
    said |= {"arena": 2 * said["arena"]}
    assert "are not more than" in _refusal(CHAIN, said)
    assert graph_of(_model(CHAIN), said).unsure == 0


def test_a_forged_search_is_refused() -> None:
    said = _certificate(BRANCHES)
    larger = said["arena"] + said["alignment"]
    assert "the search proves 0 bytes" in _refusal(
        BRANCHES, said | {"arena": larger, "proof": said["proof"] | {"bound": larger}}
    )
    assert "the search proves" in _refusal(BRANCHES, said | {"proof": said["proof"] | {"bound": larger}})
    assert "the search proves 0 bytes" in _refusal(BRANCHES, said | {"proof": said["proof"] | {"sets": 1}})


def test_the_certificate_of_another_graph_is_refused() -> None:
    said = _certificate(CHAIN)
    assert _refusal(CHAIN.replace("c = Conv(b, w)", "c = Conv(a, w)"), said) != ""
    assert _refusal(CHAIN.replace("c = Conv(b, w)", "c = Sigmoid(b)").replace("Add(b, c)", "Relu(c)"), said) != ""


def test_a_large_constant_node_is_no_node_that_needs_bytes() -> None:
    model = _model(CHAIN.replace("float[1, 16, 8, 8] x, float[16, 16, 1, 1] w", "float[1, 16, 8, 8] x"))
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [16, 16, 1, 1], [0.5] * 256)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    for order in ("auto", "model"):
        said = onnxtile.plan(model, verify=False, order=order).certificate()
        assert said["proof"]["kind"] == "node"
        assert check_certificate.verdict(graph_of(model, said), said) == ""


def test_a_plan_with_states_has_no_proof() -> None:
    planned = onnxtile.plan(_model(CHAIN), verify=False)
    state = PlannedState("x", "y", "given", None, "arena", 0, 4096, 0)
    said = certificate(planned.model, replace(planned.plan, states=(state,)))
    assert (said["proof"], said["reason"]) == (None, "the plan keeps states, whose inputs and outputs share bytes")


def test_a_bound_above_the_arena_is_no_proof() -> None:
    planned = onnxtile.plan(_model(CHAIN), verify=False)
    arena = replace(planned.plan.arenas[0], size=planned.plan.arena_size - 64)
    assert certificate(planned.model, replace(planned.plan, arenas=(arena,)))["proof"] is None


def test_a_plan_that_is_not_proved_has_a_certificate_without_a_proof() -> None:
    said = _certificate(CHAIN, planner="naive")
    assert (said["proof"], said["reason"]) == (None, "the plan is not proved the smallest")


def test_the_checker_runs_by_itself(tmp_path: Path) -> None:
    model, planned, file = tmp_path / "m.onnx", tmp_path / "p.onnx", tmp_path / "m.certificate.json"
    onnx.save(_model(CHAIN), model)
    result = onnxtile.plan(model, verify=False)
    result.save(planned)
    result.write(file)
    run = [sys.executable, "-I", str(CHECKER), str(planned), str(file)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        "accepted: no plan of any order takes fewer than 8192 bytes, by node\n",
    )
    said = json.loads(file.read_text())
    file.write_text(json.dumps(said | {"arena": 8256}))
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "refused: 8192 bytes are not more than 8192\n")


def test_the_checker_imports_nothing_of_onnxtile() -> None:
    imports = [
        node for node in ast.walk(ast.parse(CHECKER.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {
        name
        for one in imports
        for name in ([one.module] if isinstance(one, ast.ImportFrom) else [a.name for a in one.names])
    }
    assert {(name or "").partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "onnx"}


def _random_graph(seed: int) -> onnx.ModelProto:
    """Return a graph of 7 nodes with sizes of its own, in which several orders are possible."""
    chance = random.Random(seed)
    shapes = {"x": [1, 2, 4]}
    nodes = []
    for number in range(7):
        names = chance.sample(sorted(shapes), min(len(shapes), chance.randint(1, 2)))
        kind = chance.choice(["Relu", "Concat", "ReduceMean", "Reshape", "Tile"])
        made, first = f"v{number}", shapes[names[0]]
        given: dict[str, Any] = {"axis": 1} if kind == "Concat" else {}
        if kind == "Concat":
            shapes[made] = [1, sum(shapes[name][1] for name in names), 4]
        elif kind == "ReduceMean":
            shapes[made], names, given = [1, 1, 4], names[:1], {"axes": [1]}
        elif kind == "Tile":
            shapes[made], names = [1, first[1] * 2, 4], [names[0], "repeats"]
        else:
            shapes[made], names = first, [names[0], *(["same"] if kind == "Reshape" else [])]
        nodes.append(helper.make_node(kind, names, [made], **given))
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    read = {name for node in nodes for name in node.input}
    outputs = [values[name] for name in shapes if name not in read]
    numbers = {"repeats": [1, 2, 1], "same": [1, -1, 4]}
    constants = [helper.make_tensor(name, TensorProto.INT64, [3], data) for name, data in numbers.items()]
    graph = helper.make_graph(nodes, "random", [values["x"]], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10)


def _least(problem: ByteGraph) -> int:
    """Return the least peak of all orders of the nodes."""
    count, least = len(problem.nodes), 1 << 60
    for order in itertools.permutations(range(count)):
        place = {node: step for step, node in enumerate(order)}
        if any(place[other] > place[node] for node in order for other in problem.waits[0][node]):
            continue
        before, peak = 0, 0
        for node in order:
            peak = max(peak, problem.live(node, *around(node, before, count))[1])
            before |= 1 << node
        least = min(least, peak)
    return least


@pytest.mark.parametrize("seed", range(25))
def test_the_search_agrees_with_all_orders(seed: int) -> None:
    io, overwrite = ("outputs", "inside")[seed % 2], seed % 4 == 1
    said = {"dims": {}, "types": {}, "io": io, "overwrite_inputs": overwrite, "alignment": 4}
    model = _random_graph(seed)
    plan = onnxtile.plan(model, verify=False, io=io, overwrite_inputs=overwrite, alignment=4).plan
    problem = graph_of(model, said)
    least = _least(problem)
    assert plan.arena_size >= least
    for backward in (False, True):
        assert problem.blocked(least, 10_000, backward=backward) is None
        for limit in (least // 2, least - 1):
            bound = problem.blocked(limit, 10_000, backward=backward)
            assert bound is not None
            assert limit < bound <= least
