"""Whatever the graph and the query: what is fused computes the same bits, and unfuse gives the original back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.fusion.pattern import from_query
from onnxtile.model.load import Source, load
from onnxtile.model.save import to_bytes
from tests.conftest import ZOO
from tests.draws import draws

if TYPE_CHECKING:
    from tests.fusion.conftest import Lab

UNARY = ("Neg", "Abs")
BINARY = ("Add", "Sub")
NewNode = tuple[str, int, int]


def _model(steps: Sequence[NewNode], outputs: Sequence[int], order: Sequence[int]) -> onnx.ModelProto:
    """Return a graph of elementwise nodes: each step names its operator and, counted back from the last that is there, what it reads."""
    values = ["x", "z", "small", "large"]
    nodes = []
    for i, (op, a, b) in enumerate(steps):
        read = [values[-1 - a % len(values)]] + ([values[-1 - b % len(values)]] if op in BINARY else [])
        name = f"n{i}" if i % 3 else ""
        nodes.append(helper.make_node(op, read, [f"v{i}"], name=name, doc_string=f"{i}" if i % 4 == 0 else ""))
        values.append(f"v{i}")
    read_names = {name for node in nodes for name in node.input}
    ends = {node.output[0] for node in nodes if node.output[0] not in read_names and steps[0][1] % 3}
    made = sorted(ends | {f"v{i % len(steps)}" for i in outputs} | {f"v{len(steps) - 1}"})
    graph = helper.make_graph(
        _ordered(nodes, order),
        "random",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x", "z")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in made],
        [
            numpy_helper.from_array(np.asarray(1.5, np.float32), "small"),
            numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(2, 4), "large"),
        ],
        value_info=[
            helper.make_tensor_value_info(f"v{i}", TensorProto.FLOAT, None)
            for i in range(0, len(steps), 2)
            if f"v{i}" not in made
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _ordered(nodes: Sequence[onnx.NodeProto], order: Sequence[int]) -> list[onnx.NodeProto]:
    """Return `nodes` in the topological order that the numbers of `order` choose."""
    left, known, chosen = list(nodes), {"x", "z", "small", "large"}, []
    for i in range(len(nodes)):
        ready = [node for node in left if known.issuperset(node.input)]
        node = ready[order[i % len(order)] % len(ready)]
        left.remove(node)
        known.update(node.output)
        chosen.append(node)
    return chosen


@dataclass(frozen=True)
class Case:
    """A random graph, and queries made from walks through it, so that they match somewhere."""

    model: onnx.ModelProto
    queries: tuple[str, ...]


def _steps(random: Random) -> list[NewNode]:
    return [
        (random.choice(UNARY + BINARY), random.randrange(6), random.randrange(9)) for _ in range(random.randint(3, 16))
    ]


def _query(random: Random, nodes: Sequence[onnx.NodeProto]) -> str:
    """Return a query of one or two walks, the second from a node of the first."""
    start = random.choice(nodes)
    seen = {start.output[0]: "1"}
    clauses = [_walk(random, nodes, start, seen)]
    if random.random() < 0.5:
        name = random.choice(sorted(seen))
        clauses.append(_walk(random, nodes, next(node for node in nodes if node.output[0] == name), seen))
    return ";".join(clauses)


def _walk(random: Random, nodes: Sequence[onnx.NodeProto], node: onnx.NodeProto, seen: dict[str, str]) -> str:
    text = _item(node, seen)
    for _ in range(random.randint(1, 3)):
        forward = [(n, i, ">") for n in nodes for i, name in enumerate(n.input) if name == node.output[0]]
        backward = [(n, i, "<") for n in nodes for i, name in enumerate(node.input) if name == n.output[0]]
        if not forward + backward:
            break
        node, index, way = random.choice(forward + backward)
        place, kind = random.choice((str(index), "*")), random.choice("~~~~~~~-")
        text += f"{kind}{place}>" if way == ">" else f"<{place}{kind}"
        text += _item(node, seen)
    return text


def _item(node: onnx.NodeProto, seen: dict[str, str]) -> str:
    anchor = seen.setdefault(node.output[0], str(len(seen) + 1))
    return f"{node.op_type}#{anchor}"


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    random = draw(st.randoms(use_true_random=False).map(lambda r: Random(r.getrandbits(64))))
    steps = _steps(random)
    model = _model(
        steps, [random.randrange(40) for _ in range(random.randint(0, 2))], [random.randrange(40) for _ in range(8)]
    )
    return Case(model, tuple(_query(random, model.graph.node) for _ in range(random.randint(1, 3))))


# What is made of scalars alone is declared as a matrix, too.
pytestmark = pytest.mark.filterwarnings("ignore::onnxtile.system.errors.ModelWarning")

RUNS = draws(40, 150)


@RUNS
@given(case=_cases())
def test_fused_is_equal_and_unfuse_restores(lab: Lab, case: Case) -> None:
    lab.sound(case.model, *(from_query(query, f"Pattern{i}") for i, query in enumerate(case.queries)))


@RUNS
@given(case=_cases())
def test_runs_one_after_the_other_are_undone(lab: Lab, case: Case) -> None:
    original = model = load(case.model)
    fused = 0
    for i, query in enumerate(case.queries):
        result = api.fuse(model, [from_query(query, f"Pattern{i}")], verify=False)
        model, fused = result.model, fused + result.fused
    lab.require_same_bits(original, model)
    if fused:
        lab.require_undone(original, model)


@RUNS
@given(case=_cases(), order=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_the_order_of_the_file_changes_nothing(lab: Lab, case: Case, order: list[int]) -> None:
    patterns = [from_query(query, f"Pattern{i}") for i, query in enumerate(case.queries)]
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(case.model)
    nodes = _ordered(case.model.graph.node, order)
    shuffled.graph.ClearField("node")
    shuffled.graph.node.extend(nodes)
    one, other = (lab.fuse(model, *patterns, verify=False).model for model in (case.model, shuffled))
    assert _said(one) == _said(other)
    assert list(one.functions) == list(other.functions)


def _said(model: ir.Model) -> set[tuple[object, ...]]:
    values = {node: [value and value.name for value in (*node.inputs, *node.outputs)] for node in model.graph}
    return {(node.op_type, node.overload, node.name, *names) for node, names in values.items()}


def test_most_of_the_cases_fuse_something(lab: Lab) -> None:
    """Else the properties would say nothing."""
    fused = 0
    for seed in range(40):
        random = Random(seed)
        model = _model(_steps(random), [], [random.randrange(40) for _ in range(8)])
        fused += sum(lab.fuse(model, _query(random, model.graph.node), verify=False).counts) > 0
    assert fused >= 15


# The same input gives the same bytes.


def test_verification_changes_nothing(shallow: Path) -> None:
    patterns = ["aidge", "Add~*>.", ".~>Reshape"]
    fused, verified = (api.fuse(shallow, patterns, verify=verify).model for verify in (False, True))
    assert to_bytes(fused) == to_bytes(verified)


@pytest.mark.parametrize("form", ["path", "proto", "model"])
def test_the_form_of_the_model_changes_nothing(transformer: Path, form: str) -> None:
    forms: dict[str, Callable[[], Source]] = {
        "path": lambda: transformer,
        "proto": lambda: onnx.load(transformer),
        "model": lambda: ir.load(transformer),
    }
    source = forms[form]()
    data = to_bytes(api.fuse(source, ["aidge"], verify=False).model)
    expected = to_bytes(api.fuse(transformer, ["aidge"], verify=False).model)
    assert hashlib.sha256(data).hexdigest() == hashlib.sha256(expected).hexdigest()


# What the whole library fuses comes back, and is fused again to the same bytes: of each model of the zoo, and of models with bodies.


QUICK = {"bert_ts14_sim", "clip_text_dy20", "t5_encoder_ts14"}
MODELS = sorted({path.stem for path in ZOO.glob("*.onnx")} | QUICK)


def _require_undone(lab: Lab, path: Path) -> None:
    fused = lab.fuse(path, verify=False)
    restored = lab.require_restored(fused)
    assert sum(fused.counts) > 0
    assert to_bytes(api.fuse(restored, verify=False).model) == to_bytes(fused.model)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_each_model_of_the_zoo_comes_back(lab: Lab, zoo: Callable[[str], Path], name: str) -> None:
    _require_undone(lab, zoo(name))


def test_a_model_with_bodies_comes_back(lab: Lab, silero: Callable[[str], Path]) -> None:
    _require_undone(lab, silero("silero_vad"))


@pytest.mark.parametrize("raw", [True, False])
def test_a_constant_comes_back_in_the_form_it_had(lab: Lab, raw: bool) -> None:
    """As bytes, or in the field of its type; from a file as well as from memory."""
    source = lab.text("g (float[2] x) => (float[2] y) <float c = {3.0}> { h = Mul(x, c)  y = Exp(h) }")
    if raw:
        source.graph.initializer[0].CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(source.graph.initializer[0]), "c")
        )
    fused = api.fuse(source, ["Mul->Exp"], verify=False)
    (restored,) = onnx.ModelProto.FromString(to_bytes(api.unfuse(fused.model).model)).graph.initializer
    assert restored.HasField("raw_data") == raw
    assert list(restored.float_data) == ([] if raw else [3.0])
