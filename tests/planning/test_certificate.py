"""Certificates: a checker without onnxtile accepts those of `plan`, and refuses forged ones."""

from __future__ import annotations

import ast
import itertools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

import onnxtile
from models.make_transformer import make_transformer
from onnxtile.check import check_account, check_bound, graph, operators, sharing
from onnxtile.check.certificate import FixedRow, certificate, offset_tree, problem_certificate
from onnxtile.check.check_account import graph_of
from onnxtile.check.check_bound import Account, is_proved
from tests import build
from tests.planning.test_movement_plan import SKIP, moved

NOT_PROVED = "the proof does not hold"
SCRIPTS = [Path(str(one.__file__)) for one in (check_account, graph, sharing, operators, check_bound)]

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
    found = onnxtile.plan(_model(text), verify=False, **build.with_layout(options)).certificate()
    read: dict[str, Any] = json.loads(json.dumps(found))
    return read


def _refusal(text: str, said: dict[str, Any]) -> str:
    """Return the reason of a refusal; "" where the certificate is accepted."""
    return _refusal_for(_model(text), said)


def _refusal_for(model: onnx.ModelProto, said: dict[str, Any]) -> str:
    try:
        return check_account.refusal(graph_of(model, said), said) or ("" if is_proved(said) else NOT_PROVED)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "options", "proof"),
    [
        (CHAIN, {}, {"node": 3}),
        (CHAIN, {"io": "inside"}, {"node": 3}),
        (CHAIN, {"io": "outside"}, {"node": 3}),
        (BRANCHES, {}, {"backward": False}),
        (PARTS, {}, {"backward": False}),
        (PARTS, {"alignment": 16}, {"backward": False}),
    ],
)
def test_the_checker_accepts_what_plan_claims(text: str, options: Any, proof: dict[str, Any]) -> None:
    said = _certificate(text, **options)
    assert (said["claim"], said["scope"], said["proof"], said["reason"]) == ("any order", "any order", proof, None)
    assert _refusal(text, said) == ""


def test_the_order_of_the_file_has_a_certificate_of_its_own() -> None:
    text = BRANCHES.replace("    e = MatMul(d, d)\n", "").replace("    c = Red", "    e = MatMul(d, d)\n    c = Red")
    text = text.replace("    d = MatMul(x, x)\n", "").replace("    b = Mat", "    d = MatMul(x, x)\n    b = Mat")
    said = _certificate(text, order="model")
    assert (said["claim"], said["scope"], [*said["proof"]]) == ("order", "this order", ["node"])
    assert _refusal(text, said) == ""
    shuffled = said | {"order": [*said["order"][:-2], *said["order"][:-3:-1]]}
    assert "a node of the order runs before one that it reads" in _refusal(text, shuffled)
    assert "does not have each node" in _refusal(text, said | {"order": said["order"][:-1]})
    assert _refusal(text, said | {"claim": "any order"}) == "a proof for this order is none for any order"
    assert "are not those of the model" in _refusal(text, said | {"scope": "any order"})


FORGED: dict[str, Callable[[Any], Any]] = {
    "a larger arena": lambda said: said.update(arena=said["arena"] + said["alignment"]),
    "a finer alignment of the claim": lambda said: said.update(alignment=1, arena=said["arena"] + 1),
    "a tensor is larger": lambda said: said["account"]["bytes"].update(b=8192),
    "a tensor is used by another node": lambda said: said["account"]["nodes"][0]["uses"].append("d"),
    "a node waits for none": lambda said: said["account"]["nodes"][-1].update(waits=[]),
    "nothing is written over an operand": lambda said: [node.update(over=[]) for node in said["account"]["nodes"]],
    "a node has a workspace": lambda said: said["account"]["nodes"][2].update(workspace=64),
    "another node": lambda said: said["proof"].update(node=1),
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
    assert _refusal(CHAIN, said) == ""
    doubled = {name: 2 * size for name, size in said["account"]["bytes"].items()}
    twice = said | {"arena": 2 * said["arena"], "account": said["account"] | {"bytes": doubled}}
    assert is_proved(twice)
    assert "the bytes in the certificate are not those of the model" in _refusal(CHAIN, twice)
    assert graph_of(_model(CHAIN), said).unsure == 0


def test_a_forged_search_is_refused() -> None:
    said = _certificate(BRANCHES)
    assert _refusal(BRANCHES, said | {"arena": said["arena"] + said["alignment"]}) == NOT_PROVED
    assert _refusal(BRANCHES, said | {"proof": said["proof"] | {"most": 1}}) == NOT_PROVED


def test_the_certificate_of_another_graph_is_refused() -> None:
    said = _certificate(CHAIN)
    assert _refusal(CHAIN.replace("c = Conv(b, w)", "c = Conv(a, w)"), said) != ""
    assert _refusal(CHAIN.replace("c = Conv(b, w)", "c = Sigmoid(b)").replace("Add(b, c)", "Relu(c)"), said) != ""


@pytest.mark.parametrize("form", ["value = int64[1] {{{}}}", "value_ints = [{}]"])
def test_the_rows_of_a_slice_are_known_however_a_constant_says_them(form: str) -> None:
    start, first, last = (f"Constant <{form.format(number)}> ()" for number in (0, 8, 60))
    said = _certificate(
        text := f"""
        <ir_version: 10, opset_import: ["" : 17]>
        slices (float[64, 64] x) => (float[8, 64] y) {{
            start = {start} first = {first} last = {last}
            a = MatMul(x, x)
            b = Slice(a, start, last, start)
            c = MatMul(b, x)
            y = Slice(c, start, first, start)
        }}
    """
    )
    assert (said["arena"], said["reason"]) == (2 * 60 * 64 * 4, None)
    assert _refusal(text, said) == ""


def test_a_large_constant_node_is_no_node_that_needs_bytes() -> None:
    model = _model(CHAIN.replace("float[1, 16, 8, 8] x, float[16, 16, 1, 1] w", "float[1, 16, 8, 8] x"))
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [16, 16, 1, 1], [0.5] * 256)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    for order in ("auto", "model"):
        said = onnxtile.plan(model, verify=False, order=order).certificate()
        assert [*said["proof"]] == ["node"]
        assert _refusal_for(model, said) == ""


DEFAULT = """
<ir_version: 10, opset_import: ["" : 17]>
default (float[1, 16, 64] x, float[1, 16, 64] bias) => (float[1, 1, 16] y) {
    a = Add(x, bias)
    b = Transpose <perm = [0, 2, 1]> (a)
    y = ReduceMean <axes = [1], keepdims = 1> (b)
}
"""


@pytest.mark.parametrize("rows", [1, 16])
def test_an_input_with_a_default_is_an_input(rows: int) -> None:
    """The caller may give other elements, so that the arena has them, whether they are few or many."""
    model = parser.parse_model(DEFAULT.replace("float[1, 16, 64] bias", f"float[1, {rows}, 64] bias"))
    bias = helper.make_tensor("bias", TensorProto.FLOAT, [1, rows, 64], [0.5] * rows * 64)
    model.graph.initializer.append(bias)
    planned = onnxtile.plan(model, verify=False, io="inside")
    said = json.loads(json.dumps(planned.certificate()))
    assert "bias" in said["account"]["bytes"]
    assert said["proof"] is not None, said["reason"]
    assert _refusal_for(ir.to_proto(planned.model), said) == ""
    old = ir.to_proto(planned.model)
    old.ir_version = 3
    assert _refusal_for(old, said) != ""


STATE = """
<ir_version: 10, opset_import: ["" : 17]>
state (float[1, 16, 64] kv, float[1, 16, 64] x) => (float[1, 16, 64] next, float[1, 1, 64] y) {
    n = Relu(x)
    next = Add(kv, n)
    m = Mul(next, n)
    y = ReduceMean <axes = [1], keepdims = 1> (m)
}
"""


def test_a_plan_with_states_has_a_certificate() -> None:
    said = _certificate(STATE, state={"kv": "next"})
    assert said["states"] == [["kv", "next"]]
    assert ([*said["proof"]], _refusal(STATE, said)) == (["node"], "")
    assert said["arena"] == 2 * 4096 + 256
    assert _refusal(STATE, said | {"states": []}) != ""


def test_a_plan_over_ranges_has_the_certificate_of_its_largest_sizes() -> None:
    text = CHAIN.replace("float[1, 16, 8, 8]", "float[n, 16, 8, 8]")
    said = _certificate(text, dims={"n": (1, 4)})
    assert (said["dims"], said["arena"], _refusal(text, said)) == ({"n": 4}, 4 * 8192, "")


def test_a_plan_of_several_arenas_has_a_certificate_of_their_sum() -> None:
    said = _certificate(CHAIN, capacity={"a": 4096, "b": 8192})
    assert (said["arena"], [*said["proof"]], _refusal(CHAIN, said)) == (8192, ["node"], "")


def test_a_pinned_tensor_proves_its_end() -> None:
    said = _certificate(CHAIN, pins={"d": 64_000})
    assert (said["arena"], said["scope"], _refusal(CHAIN, said)) == (64_000 + 4096, "any order", "")
    assert said["proof"] == {"tree": {"chain": [*said["rows"]]}}
    assert "is not pinned" in _refusal(CHAIN, said | {"pins": dict.fromkeys(said["pins"], 60_032)})
    ((name, row),) = said["rows"].items()
    assert _refusal(CHAIN, said | {"rows": {name: row | {"bytes": 8192}}}) != ""
    by_step = said | {"arena": 4096, "proof": {"tree": {"step": row["first"]}}}
    assert is_proved(by_step)
    assert _refusal(CHAIN, by_step) == "only one pinned row takes its bytes in any order"


def test_aliases_of_the_plan_bound_its_order() -> None:
    fused = onnxtile.fuse(make_transformer(blocks=2), verify=False).model
    planned = onnxtile.plan(fused, verify=False)
    said = json.loads(json.dumps(planned.certificate()))
    assert (said["claim"], said["scope"]) == ("order", "this order and its aliases")
    assert [*said["proof"]["tree"]] == ["step"]
    problem = graph_of(ir.to_proto(planned.model), said)
    assert check_account.refusal(problem, said) == ""
    assert is_proved(said)
    name, row = next(iter(said["rows"].items()))
    for change in ({"first": 0}, {"size": row["size"] + 64}, {"start": 64}):
        forged = said | {"rows": said["rows"] | {name: row | change}}
        assert check_account.refusal(problem, forged) != ""
    assert "holds" in check_account.refusal(problem, said | {"rows": said["rows"] | {name: row | {"bytes": 10**6}}})
    forged = said | {"claim": "any order"}
    assert check_account.refusal(problem, forged) == "a proof for this order and its aliases is none for any order"
    assert not is_proved(said | {"rows": {name: row}})


HOLES = """
<ir_version: 10, opset_import: ["" : 17]>
holes (float[1, 2] x, float[2, 1024] w, float[1024, 1024] v, float[1024, 2] u) => (float[2, 2] y, float[2, 2] z) {
    a = Exp(x)
    d = Sin(x)
    m = MatMul(x, w)
    n = MatMul(m, v)
    b = MatMul(n, u)
    e = Sigmoid(b)
    c = Concat <axis = 0> (b, a)
    f = Concat <axis = 0> (e, d)
    y = Transpose(c)
    z = Transpose(f)
}
"""
"""While n is made, a and d live in the second parts of c and f, whose first parts nobody holds."""


def test_parts_hold_whole_units_where_the_scope_says_so() -> None:
    said = _certificate(HOLES, order="model")
    assert (said["arena"], said["claim"]) == (2 * 4096 + 2 * 64, "order")
    assert (said["scope"], said["proof"]) == ("this order, its aliases and whole units", {"tree": {"step": 3}})
    assert {name: row["bytes"] for name, row in said["rows"].items()} == {"a": 64, "d": 64, "m": 4096, "n": 4096}
    assert _refusal(HOLES, said) == ""
    assert _refusal(HOLES, said | {"scope": "this order and its aliases"}) == "the row a holds 0 bytes, not 64"
    halves = {name: said["rows"]["a"] | {"start": at, "size": 4} for name, at in (("a", 8), ("again", 12))}
    assert "hold the same bytes" in _refusal(HOLES, said | {"rows": said["rows"] | halves})


def test_an_output_that_is_a_constant_takes_no_bytes() -> None:
    """The proof asks for the live ranges of the plan, and nothing of the plan holds the constant."""
    model = _model(HOLES)
    model.graph.initializer.append(helper.make_tensor("k", TensorProto.FLOAT, [3], [1, 2, 3]))
    model.graph.output.append(helper.make_tensor_value_info("k", TensorProto.FLOAT, [3]))
    said = json.loads(json.dumps(onnxtile.plan(model, verify=False, order="model").certificate()))
    assert (said["arena"], said["proof"]) == (2 * 4096 + 2 * 64, {"tree": {"step": 3}})
    assert _refusal_for(model, said) == ""


def test_tensors_at_the_start_of_their_unit_hold_it() -> None:
    text = HOLES.replace("(b, a)", "(a, b)").replace("(e, d)", "(d, e)")
    said = _certificate(text, order="model")
    assert (said["arena"], said["scope"]) == (2 * 4096 + 2 * 64, "this order and its aliases")
    assert _refusal(text, said) == ""


def _fits(rows: Mapping[str, FixedRow], limit: int) -> bool:
    """Return whether any addresses within the limit keep rows apart that live at once."""
    names = sorted(rows)
    for offsets in itertools.product(*(range(limit - rows[name].size + 1) for name in names)):
        at = dict(zip(names, offsets, strict=True))
        meet = [
            (a, b)
            for a, b in itertools.combinations(names, 2)
            if max(rows[a].first, rows[b].first) <= min(rows[a].last, rows[b].last)
        ]
        if all(at[a] + rows[a].size <= at[b] or at[b] + rows[b].size <= at[a] for a, b in meet):
            return True
    return False


@pytest.mark.parametrize("seed", range(16))
def test_a_tree_is_found_where_nothing_fits_and_only_there(seed: int) -> None:
    chance = random.Random(seed)
    rows = {}
    for name in "abcde":
        first = chance.randint(0, 4)
        rows[name] = FixedRow(chance.randint(1, 3), first, min(4, first + chance.randint(0, 2)))
    for limit in range(max(row.size for row in rows.values()), 6):
        tree = offset_tree(rows, limit, 5_000)
        assert (tree is None) == _fits(rows, limit)
        told = {name: {"bytes": row.size, "first": row.first, "last": row.last} for name, row in rows.items()}
        if tree is not None:
            assert is_proved({"arena": limit + 1, "alignment": 1, "rows": told, "proof": {"tree": tree}})


def _problem(folder: Path) -> Path:
    """Write a problem whose rows need 4 units though at most 3 are live at once, and return the file."""
    rows = {
        "a": (0, 2, 1),
        "b": (1, 4, 1),
        "c": (0, 1, 2),
        "d": (1, 3, 1),
        "e": (3, 5, 1),
        "f": (2, 3, 1),
        "g": (4, 6, 2),
    }
    file = folder / "problem.csv"
    file.write_text("id,lower,upper,size\n" + "".join(f"{n},{lo},{up},{size}\n" for n, (lo, up, size) in rows.items()))
    return file


def test_a_bare_problem_has_a_certificate(tmp_path: Path) -> None:
    problem, file = _problem(tmp_path), tmp_path / "problem.certificate.json"
    plan = onnxtile.plan_problem(problem)
    assert plan.optimal_over == "order"
    said = problem_certificate(json.loads(json.dumps(plan.to_dict())))
    file.write_text(json.dumps(said))
    assert (
        check_account.main(str(problem), str(file))
        == "the rows are those of the problem; the certificate says: alignment 1"
    )
    assert (said["scope"], said["arena"]) == ("this order and its aliases", plan.arena_size)
    assert is_proved(said)
    name = next(iter(said["rows"]))
    for key in ("first", "last", "size"):
        file.write_text(json.dumps(said | {"rows": {name: said["rows"][name] | {key: said["rows"][name][key] + 9}}}))
        with pytest.raises(ValueError, match="is not that of the problem"):
            check_account.main(str(problem), str(file))


TREE: dict[str, Any] = {"pair": ["a", "b"], "sides": [{"chain": ["a", "b"]}, {"chain": ["b", "a"]}]}


def _is_tree(tree: Any, rows: Any, arena: int) -> bool:
    return is_proved({"arena": arena, "alignment": 1, "rows": rows, "proof": {"tree": tree}})


@pytest.mark.parametrize(
    ("tree", "is_right"),
    [
        (TREE, True),
        ({"step": 1}, True),
        ({"step": 2}, False),
        (TREE | {"sides": [TREE["sides"][0], TREE["sides"][0]]}, False),
        (TREE | {"sides": [TREE["sides"][0], {"chain": ["b"]}]}, False),
        ({"chain": ["a", "b"]}, False),
        (TREE | {"pair": ["a", "c"]}, False),
        (TREE | {"pair": ["a", "a"]}, False),
    ],
)
def test_each_branch_of_a_tree_ends_above_the_limit(tree: Any, is_right: bool) -> None:
    rows = {"a": {"bytes": 3, "first": 0, "last": 1}, "b": {"bytes": 2, "first": 1, "last": 2}}
    rows["c"] = {"bytes": 2, "first": 2, "last": 2}
    assert _is_tree(tree, rows, 5) == is_right


def test_both_sides_of_a_branch_are_followed() -> None:
    rows = {"a": {"bytes": 3, "first": 0, "last": 1}, "b": {"bytes": 2, "first": 1, "last": 2}}
    with pytest.raises(ValueError, match="longer"):
        _is_tree(TREE | {"sides": TREE["sides"][:1]}, rows, 5)


def test_a_chain_reaches_beyond_a_pinned_row() -> None:
    rows = {"a": {"bytes": 3, "first": 0, "last": 1}, "b": {"bytes": 2, "first": 1, "last": 2, "pin": 2}}
    assert not _is_tree(TREE, rows, 100)
    assert _is_tree(TREE, rows, 7)


def test_a_bound_above_the_arena_is_no_proof() -> None:
    planned = onnxtile.plan(_model(CHAIN), verify=False)
    arena = replace(planned.plan.arenas[0], size=planned.plan.arena_size - 64)
    assert certificate(planned.model, replace(planned.plan, arenas=(arena,)))["proof"] is None


def test_a_plan_with_copies_has_a_certificate_of_its_arenas() -> None:
    planned = moved(SKIP, 1024, "activations", verify=False)
    said = json.loads(json.dumps(planned.certificate()))
    assert (said["claim"], said["arena"]) == ("order", 1280)
    assert check_account.refusal(graph_of(ir.to_proto(planned.model), said), said) == ""
    assert is_proved(said) and not is_proved({**said, "arena": 1344})


def test_a_plan_that_is_not_proved_has_a_certificate_without_a_proof() -> None:
    said = _certificate(CHAIN, search="naive")
    assert (said["proof"], said["reason"]) == (None, "the plan is not proved the smallest")


def test_a_plan_with_kept_tensors_has_no_proof_and_says_why() -> None:
    said = _certificate(CHAIN, layout={"keep": ["b"]})
    assert (said["claim"], said["proof"]) == ("any order", None)
    assert said["reason"] == "the scripts do not know which tensors are kept for the whole run"


def test_copies_of_the_scripts_run_by_themselves(tmp_path: Path) -> None:
    model, planned, file = tmp_path / "m.onnx", tmp_path / "p.onnx", tmp_path / "m.certificate.json"
    onnx.save(_model(CHAIN), model)
    result = onnxtile.plan(model, verify=False)
    result.save(planned)
    result.write(file)

    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "onnxtile.py").write_text("raise SystemExit('onnxtile is imported')")

    def run(script: Path, *files: Path) -> tuple[int, str]:
        command = [sys.executable, "-Es", str(scripts / script.name), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    for script in SCRIPTS:
        shutil.copy(script, scripts)
    account, *_, bound = SCRIPTS
    assert run(account, planned, file) == (
        0,
        "the account is that of the model; the certificate says: alignment 64, io outputs, overwrite_inputs False\n",
    )
    assert run(bound, file) == (0, "accepted: no plan of any order takes fewer than 8192 bytes\n")
    said = json.loads(file.read_text())
    file.write_text(json.dumps(said | {"arena": 8256}))
    assert run(bound, file) == (1, "refused: the proof does not hold\n")
    file.write_text(json.dumps(said | {"account": said["account"] | {"nodes": said["account"]["nodes"][:-1]}}))
    assert run(account, planned, file) == (1, "refused: the nodes in the certificate are not those of the model\n")
    file.write_text(json.dumps(said | {"proof": None, "reason": "the plan is not proved the smallest"}))
    assert run(bound, file) == (1, "refused: the plan is not proved the smallest\n")
    file.write_text(json.dumps(said | {"account": {}}))
    assert run(bound, file) == (1, "refused: 'bytes'\n")


ALLOWED: tuple[set[str], ...] = (
    *({"onnx", "graph", "sharing", "operators"}, {"onnx", "operators"}, {"onnx", "graph", "operators"}),
    *(set(), set()),
)


@pytest.mark.parametrize(("checker", "allowed"), zip(SCRIPTS, ALLOWED, strict=True))
def test_the_scripts_import_nothing_of_onnxtile_but_each_other(checker: Path, allowed: set[str]) -> None:
    imports = [
        node for node in ast.walk(ast.parse(checker.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {
        name
        for one in imports
        for name in ([one.module] if isinstance(one, ast.ImportFrom) else [a.name for a in one.names])
        if name not in {"onnxtile.check.graph", "onnxtile.check.sharing", "onnxtile.check.operators"}
    }
    assert {(name or "").partition(".")[0] for name in names} <= {*sys.stdlib_module_names} | allowed


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
    return build.model(nodes, [values["x"]], outputs, constants, opset=13)


def _least(problem: Account) -> int:
    """Return the least peak of all orders of the nodes."""
    whole, least = (1 << len(problem.nodes)) - 1, 1 << 60
    first, *others, last = range(len(problem.nodes))
    for order in itertools.permutations(others):
        done, peak = 0, 0
        for node in (first, *order, last):
            if problem.before[node] & ~done:
                break
            crossing = {
                name for name, users in problem.users.items() if users & done and users & whole & ~(done | 1 << node)
            }
            live = problem.unused(crossing.union(problem.nodes[node]["uses"]))
            peak = max(peak, problem.during(node, live, whole & ~(done | 1 << node)))
            done |= 1 << node
        else:
            least = min(least, peak)
    return least


@pytest.mark.parametrize("seed", range(25))
def test_the_search_agrees_with_all_orders(seed: int) -> None:
    io, overwrite = ("outputs", "inside")[seed % 2], seed % 4 == 1
    said: dict[str, Any] = {"dims": {}, "types": {}, "io": io, "overwrite_inputs": overwrite, "alignment": 4}
    said |= {"states": [], "workspaces": {}, "bodies": [], "scope": "any order"}
    model = _random_graph(seed)
    plan = onnxtile.plan(model, verify=False, io="overwrite" if overwrite else io, alignment=4).plan
    problem = Account(
        check_account.account_of(graph_of(model, said), said | {"order": [node.output[0] for node in model.graph.node]})
    )
    least = _least(problem)
    assert plan.arena_size >= least
    for backward in (False, True):
        assert not problem.is_exceeded(least, backward=backward)
        for limit in (least // 2, least - 1):
            assert problem.is_exceeded(limit, backward=backward)
