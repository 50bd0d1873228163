"""Certificates with false values: the scripts refuse each that claims more than is true, in one line, whatever the file holds."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import onnxtile
from models.make_transformer import make_transformer
from onnxtile.check import check_account, check_bound
from onnxtile.check.check_account import assumed, graph_of

_GRAPHS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "node": (
        "g (float[N, 16, 8, 8] x, float[16, 16, 1, 1] w) => (float[N, 16, 8, 8] y) "
        "{ a = Conv(x, w)  b = Relu(a)  c = Conv(b, w)  d = Add(b, c)  y = Conv(d, w) }",
        {"dims": {"N": 2}},
    ),
    "pin": (
        "g (float[1, 16] x, float[16, 16] w) => (float[1, 16] y) { a = MatMul(x, w)  b = MatMul(a, w)  y = MatMul(b, w) }",
        {"layout": {"pins": {"b": 6400}}},
    ),
    "state": (
        "g (float[1, 16, 64] kv, float[1, 16, 64] x) => (float[1, 16, 64] next, float[1, 1, 64] y) "
        "{ n = Relu(x)  next = Add(kv, n)  m = Mul(next, n)  y = ReduceMean <axes = [1], keepdims = 1> (m) }",
        {"state": {"kv": "next"}},
    ),
    "search": (
        "g (float[64, 64] x) => (float[1, 64] y) { a = MatMul(x, x)  b = MatMul(a, a) "
        " c = ReduceMean <axes = [0], keepdims = 1> (b)  d = MatMul(x, x)  e = MatMul(d, d) "
        " f = ReduceMean <axes = [0], keepdims = 1> (e)  h = Concat <axis = 0> (c, f) "
        " y = ReduceMean <axes = [0], keepdims = 1> (h) }",
        {},
    ),
}
_GRAPHS = {
    **_GRAPHS,
    "if": (
        "g (bool c, float[4, 64] x) => (float[4, 64] y) { z = Relu(x)  y = If (c) < then_branch = yes () => (float[4, 64] yy) "
        "{ a = Softmax(z)  b = Transpose(a)  d = Transpose(b)  yy = Mul(d, a) }, "
        "else_branch = no () => (float[4, 64] ny) { ny = Relu(z) }> }",
        {},
    ),
    "loop": (
        "g (float[4, 64] x) => (float[4, 64] y) { n = Constant <value = int64 {3}> ()  t = Constant <value = bool {1}> () "
        "y = Loop (n, t, x) < body = one (int64 i, bool go, float[4, 64] before) => (bool on, float[4, 64] after) "
        "{ on = Identity(go)  u = Transpose(before)  v = Transpose(u)  after = Mul(v, before) }> }",
        {},
    ),
    "function": (
        "g (float[4, 64] x) => (float[4, 64] y) { z = Relu(x)  y = own.Twice(z) } "
        '<domain: "own", opset_import: ["": 17]> Twice (x) => (y) '
        "{ a = Transpose(x)  b = Transpose(a)  c = Sigmoid(b)  d = Transpose(c)  e = Transpose(d)  y = Add(e, c) }",
        {},
    ),
    "slices": (
        "g (float[4, 64] x) => (float[1, 64] y, float[64, 4] t) { zero = Constant <value = int64[1] {0}> () "
        " one = Constant <value = int64[1] {1}> ()  last = Constant <value = int64[1] {3}> () "
        " four = Constant <value = int64[1] {4}> ()  a = Relu(x)  b = Slice (a, zero, one)  c = Slice (a, last, four) "
        " t = Transpose(a)  d = Sin(b)  y = Add(d, c) }",
        {},
    ),
}
_REFUSALS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError)
"""What the scripts turn into one line."""
_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 63, 4096, 10**6, 10**30, 0.5, float("nan"), float("inf"), -float("inf"), -64),
    *("", "a", "y", "any order", "every order", "order", "inside", [], {}, [[]], ["a"], {"a": 1}, "\x1b[31m\n"),
)


@functools.cache
def _given(name: str) -> tuple[onnx.ModelProto, Mapping[str, Any]]:
    """Return a planned model and its certificate."""
    if name == "rows":
        fused = onnxtile.fuse(make_transformer(blocks=2), verify=False).model
        planned = onnxtile.plan(fused, verify=False)
    else:
        text, options = _GRAPHS[name]
        parsed = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17, "own": 1]> {text}')
        planned = onnxtile.plan(parsed, verify=False, **options)
    return ir.to_proto(planned.model), json.loads(json.dumps(planned.certificate()))


def _accepted(name: str, said: Any) -> str | None:
    """Return what an accepted certificate assumes; None for one that is refused."""
    try:
        problem = graph_of(copy.deepcopy(_given(name)[0]), said)
        if said["proof"] is None or said["scope"] not in check_bound.SCOPES or check_account.refusal(problem, said):
            return None
        return assumed(said, problem) if check_bound.is_proved(said) else None
    except _REFUSALS:
        return None


def _require_true(name: str, said: Any, change: object) -> None:
    """Require that a certificate is refused, claims no more than the one that `plan` wrote, or says what it assumes instead."""
    true = _given(name)[1]
    assumption = _accepted(name, said)
    if assumption is None or assumption != _accepted(name, true):
        return
    assert type(said["arena"]) is int and said["arena"] <= true["arena"], change
    assert not (said["scope"] == "any order" != true["scope"]), change


def _places(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield (*above, key)
        yield from _places(content[key], (*above, key))


def _changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    found = copy.copy(content)
    found[place[0]] = _changed(content[place[0]], place[1:], value)
    return found


def _value_at(content: Any, place: tuple[Any, ...]) -> Any:
    return functools.reduce(lambda inner, key: inner[key], place, content)


def _mutant(said: Any, chance: random.Random) -> tuple[Any, list[Any]]:
    """Return a certificate with one to three other values, and what was changed. It often claims more than the true one."""
    changes: list[Any] = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        place = chance.choice([one for one in _places(said) if len(one) <= chance.choice((1, 2, 3, 9))])
        old, value = _value_at(said, place), chance.choice(_VALUES)
        if type(old) is int and chance.random() < 0.6:
            value = chance.choice((old + 1, old - 1, old * 2, old + 64, -old, old + 4096, old + 0.5))
        said = _changed(said, place, value)
        changes.append((place, value))
    if type(said.get("arena")) is int and chance.random() < 0.6:
        said = {**said, "arena": said["arena"] + (more := chance.choice((1, 63, 64, 4096)))}
        changes.append(("arena", more))
    return said, changes


@pytest.mark.parametrize("first", [0, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*_GRAPHS, "rows"])
def test_no_false_certificate_is_accepted(name: str, first: int) -> None:
    true = _given(name)[1]
    assert _accepted(name, true) is not None
    for seed in range(first, first + (2_000 if first else 60 if name != "rows" else 15)):
        said, changes = _mutant(true, random.Random(seed))
        _require_true(name, said, (seed, changes))


def _with_row(said: Mapping[str, Any], name: str, row: Mapping[str, Any], **proof: Any) -> dict[str, Any]:
    tree = proof or said["proof"]["tree"]
    return {**said, "rows": {**said["rows"], name: row}, "proof": {"tree": tree}, "arena": said["arena"] * 2}


@pytest.mark.parametrize("more", [1, 63])
@pytest.mark.parametrize("name", _GRAPHS)
def test_the_size_of_an_arena_is_a_multiple_of_the_alignment(name: str, more: int) -> None:
    true = _given(name)[1]
    assert _accepted(name, {**true, "arena": true["arena"] + more}) is None
    for odd in (float("nan"), true["arena"] + 0.5, True, str(true["arena"])):
        assert _accepted(name, {**true, "arena": odd}) is None


def test_a_row_counts_once_and_in_its_steps() -> None:
    true = _given("rows")[1]
    assert "step" in true["proof"]["tree"]
    twice = true["rows"] | {f"{name} again": row for name, row in true["rows"].items()}
    assert _accepted("rows", {**true, "arena": 2 * true["arena"], "rows": twice}) is None
    name, row = next(iter(true["rows"].items()))
    size = 2 * true["arena"]
    never = row | {"first": row["last"] + 1, "size": size, "bytes": size, "workspace": False}
    assert _accepted("rows", _with_row(true, name, never, chain=[name])) is None


def test_workspaces_that_cancel_each_other_are_told() -> None:
    true = _given("rows")[1]
    told = {name: row | {"workspace": (-1) ** at} for at, (name, row) in enumerate(true["rows"].items())}
    assert _accepted("rows", {**true, "rows": told}) != _accepted("rows", true)


def test_each_assumption_is_told() -> None:
    open_model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {_GRAPHS["node"][0]}')
    assert assumed(_given("node")[1], graph_of(open_model, _given("node")[1])).endswith(", N 2")
    assert (
        _accepted("state", _given("state")[1]) == "alignment 64, io outputs, overwrite_inputs False, state kv to next"
    )
    assert _accepted("node", _given("node")[1]) == "alignment 64, io outputs, overwrite_inputs False"
    assert str(_accepted("pin", _given("pin")[1])).startswith(
        "alignment 64, io outputs, overwrite_inputs False, b at 6400"
    )


_SPOILED: Mapping[str, Callable[[Any], str]] = {
    "no JSON": lambda _: "{",
    "a list": lambda _: "[]",
    "deep": lambda _: "[" * 100_000,
    "an alignment of 0": lambda said: json.dumps({**said, "alignment": 0}),
    "no end": lambda said: json.dumps({**said, "arena": float("inf")}),
    "a scope of its own": lambda said: json.dumps({**said, "scope": "all orders"}),
    "a reason of several lines": lambda said: json.dumps({**said, "proof": None, "reason": "a\nb\x1b[31m" + "c" * 999}),
    "a node far away": lambda said: json.dumps({**said, "proof": {"node": 10**30}}),
    "dims that are a number": lambda said: json.dumps({**said, "dims": 4}),
}


def _ended(script: ModuleType, *files: Path) -> str:
    """Run a script by itself in this process; return the line with which it ends, an empty one where it accepts."""
    program = Path(str(script.__file__))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(program.parent))
        patch.setattr(sys, "argv", [str(program), *map(str, files)])
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            return str(end.code)
    return ""


@pytest.mark.parametrize("name", _SPOILED)
def test_the_scripts_refuse_in_one_line(tmp_path: Path, name: str) -> None:
    model, said = _given("node")
    onnx.save(model, tmp_path / "p.onnx")
    (tmp_path / "c.json").write_text(_SPOILED[name](said))
    ends = [
        _ended(check_bound, tmp_path / "c.json"),
        _ended(check_account, tmp_path / "p.onnx", tmp_path / "c.json"),
    ]
    assert any(ends)
    for end in filter(None, ends):
        assert end.startswith("refused: ") and len(end) < 400 and end.isprintable()


def test_the_steps_are_those_of_the_plan_or_follow_each_other() -> None:
    """All bytes would live at once in one step, and a far one would take memory without end."""
    model, true = _given("rows")
    of_one_step = {name: row | {"first": 0, "last": 0} for name, row in true["rows"].items()}
    steps = len(true["steps"])
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for node in bare.graph.node:
        node.ClearField("metadata_props")
    for said in (
        {**true, "steps": [0] * steps, "rows": of_one_step, "proof": {"tree": {"step": 0}}},
        {**true, "steps": [*range(steps - 1), 10**30]},
        {**true, "rows": {name: row | {"last": 10**30} for name, row in true["rows"].items()}},
    ):
        assert _accepted("rows", said) is None
        with contextlib.suppress(*_REFUSALS):
            assert check_account.refusal(graph_of(copy.deepcopy(bare), said), said)
    assert check_account.refusal(graph_of(copy.deepcopy(bare), true), true) == ""


def test_the_order_of_a_proof_for_this_order_is_that_of_the_plan() -> None:
    model, true = _given("rows")
    names, problem = true["order"], graph_of(copy.deepcopy(model), true)
    for at in range(len(names) - 1):
        order = [*names[:at], names[at + 1], names[at], *names[at + 2 :]]
        assert _accepted("rows", {**true, "order": order}) is None
        with pytest.raises(ValueError, match="order"):
            check_account.require_order(problem, {**true, "order": order})
