"""Random models over ranges of sizes, and what must hold of their plans: one seed, one model with its options.

The models have one to three open dimensions, elements of one to eight bytes, views, parts, sizes that are computed, and now and then a
cache that grows. The plans have alignments from 1 to 64, and keep states.
"""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper

import onnxtile
from onnxtile.arena.run import arena_run, at_sizes
from onnxtile.check.audit import require
from onnxtile.model.binding import bind
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.opened_calls import unfold
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from tests import build

RangeFault: TypeAlias = tuple[int, str, str]
"""The seed, the kind of model, and what was wrong."""
_Dims: TypeAlias = tuple[int | str, ...]
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_KINDS = (*_FLOATS, TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.BOOL)
_UNARY = ("Neg", "Abs", "Identity")
_SIZES = 3
"""Sizes, beside those of the proof, at which a plan is checked and run."""


@dataclass
class _Graph:
    """A graph that grows; `values` have their element types and dimensions, in which equal texts are equal sizes."""

    random: Random
    symbols: tuple[str, ...]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: dict[str, tuple[int, _Dims]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def give(self, name: str, kind: int, dims: _Dims) -> str:
        """Add an input."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        self.values[name] = (kind, dims)
        return name

    def hold(self, numbers: Any, kind: type = np.int64) -> str:
        """Add a constant."""
        name = f"k{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(numbers, kind), name))
        return name

    def make(self, operator: str, operands: list[str], kind: int, dims: _Dims, **attributes: Any) -> str:
        """Add a node of one result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [name], **attributes))
        self.values[name] = (kind, dims)
        return name

    def side(self, operator: str, operands: list[str], **attributes: Any) -> str:
        """Add a node whose result is a size, which no other step reads."""
        name = f"s{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [name], **attributes))
        return name

    def pick(self, holds: Callable[[int, _Dims], bool] = lambda *_: True) -> str | None:
        """Return a value, of late ones rather than of early ones."""
        names = [name for name, (kind, dims) in self.values.items() if holds(kind, dims)]
        return self.random.choice(names[-6:]) if names else None

    def size(self, name: str, axis: int) -> str:
        """Return a list of the size of an axis, computed from the tensor."""
        return self.side("Gather", [self.side("Shape", [name]), self.hold([axis])], axis=0)


def _is_float(kind: int, _: _Dims) -> bool:
    return kind in _FLOATS


def _unary(graph: _Graph) -> None:
    name = graph.pick(_is_float)
    if name is not None:
        kind, dims = graph.values[name]
        graph.make(graph.random.choice((*_UNARY, "Sigmoid", "Relu")), [name], kind, dims)


def _binary(graph: _Graph) -> None:
    name = graph.pick(_is_float)
    if name is not None:
        kind, dims = graph.values[name]
        other = graph.pick(lambda k, d: k == kind and d == dims)
        graph.make(graph.random.choice(("Add", "Sub", "Mul")), [name, other or name], kind, dims)


def _cast(graph: _Graph) -> None:
    name = graph.pick()
    assert name is not None
    kind = graph.random.choice(_KINDS)
    graph.make("Cast", [name], kind, graph.values[name][1], to=kind)


def _softmax(graph: _Graph) -> None:
    name = graph.pick(lambda kind, dims: _is_float(kind, dims) and bool(dims))
    if name is not None:
        graph.make("Softmax", [name], *graph.values[name], axis=-1)


def _transpose(graph: _Graph) -> None:
    name = graph.pick(lambda _, dims: len(dims) > 1)
    if name is not None:
        kind, dims = graph.values[name]
        order = graph.random.sample(range(len(dims)), len(dims))
        graph.make("Transpose", [name], kind, tuple(dims[axis] for axis in order), perm=order)


def _product(graph: _Graph) -> None:
    name = graph.pick(lambda kind, dims: kind == TensorProto.FLOAT and len(dims) > 1)
    if name is not None:
        kind, dims = graph.values[name]
        order = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        turned = graph.make("Transpose", [name], kind, tuple(dims[axis] for axis in order), perm=order)
        graph.make("MatMul", [name, turned], kind, (*dims[:-1], dims[-2]))


def _joined(graph: _Graph) -> None:
    name = graph.pick(lambda _, dims: bool(dims))
    if name is not None:
        kind, dims = graph.values[name]
        other = graph.pick(lambda k, d: k == kind and d == dims) or name
        axis = graph.random.randrange(len(dims))
        both = 2 * size if isinstance(size := dims[axis], int) else f"2*({size})"
        graph.make("Concat", [name, other], kind, (*dims[:axis], both, *dims[axis + 1 :]), axis=axis)


def _split(graph: _Graph) -> None:
    name = graph.pick(lambda _, dims: any(isinstance(dim, int) and dim > 1 and dim % 2 == 0 for dim in dims))
    if name is not None:
        kind, dims = graph.values[name]
        axis, size = next((at, dim) for at, dim in enumerate(dims) if isinstance(dim, int) and dim > 1 and dim % 2 == 0)
        half = (*dims[:axis], size // 2, *dims[axis + 1 :])
        made = [f"v{len(graph.nodes)}", f"w{len(graph.nodes)}"]
        graph.nodes.append(helper.make_node("Split", [name, graph.hold([size // 2] * 2)], made, axis=axis))
        graph.values.update(dict.fromkeys(made, (kind, half)))


def _flat(graph: _Graph) -> None:
    """Join two axes by a Reshape to -1, or to a size that is computed."""
    name = graph.pick(lambda _, dims: len(dims) > 1)
    if name is not None:
        kind, dims = graph.values[name]
        first = graph.size(name, 0)
        shape = graph.side("Concat", [first, graph.hold([-1])], axis=0)
        rest = "*".join(f"({dim})" for dim in dims[1:])
        graph.make("Reshape", [name, shape], kind, (dims[0], rest if len(dims) > 2 else dims[1]))


def _cut(graph: _Graph) -> None:
    """Take all but the first of an axis, or the first of another tensor's size."""
    name = graph.pick(lambda _, dims: any(isinstance(dim, str) for dim in dims))
    if name is not None:
        kind, dims = graph.values[name]
        axis = next(at for at, dim in enumerate(dims) if isinstance(dim, str))
        twice = graph.make(
            "Concat", [name, name], kind, (*dims[:axis], f"2*({dims[axis]})", *dims[axis + 1 :]), axis=axis
        )
        begin, end = graph.size(name, axis), graph.hold([2**62])
        graph.make("Slice", [twice, begin, end, graph.hold([axis])], kind, dims)


def _reduced(graph: _Graph) -> None:
    name = graph.pick(lambda kind, dims: kind in (TensorProto.FLOAT, TensorProto.INT64) and bool(dims))
    if name is not None:
        kind, dims = graph.values[name]
        graph.make("ReduceMax", [name, graph.hold([-1])], kind, (*dims[:-1], 1), keepdims=1)


def _summed(graph: _Graph) -> None:
    name = graph.pick(lambda kind, dims: kind in (TensorProto.INT64, TensorProto.FLOAT) and bool(dims))
    if name is not None:
        graph.make("CumSum", [name, graph.hold(0)], *graph.values[name])


def _spread(graph: _Graph) -> None:
    """Expand a constant to the sizes of a tensor, and add it."""
    name = graph.pick(lambda kind, dims: kind == TensorProto.FLOAT and bool(dims))
    if name is not None:
        kind, dims = graph.values[name]
        wide = graph.make("Expand", [graph.hold([0.5], np.float32), graph.side("Shape", [name])], kind, dims)
        graph.make("Add", [wide, name], kind, dims)


def _grown(graph: _Graph) -> None:
    """Append to a cache of a length of its own, and read it: one state, or two of one length."""
    rows, new = graph.random.choice((1, 2)), graph.random.choice((1, 1, 2))
    fresh = graph.give(f"x{len(graph.inputs)}", TensorProto.FLOAT, (rows, new, 4))
    for _ in range(graph.random.choice((1, 2))):
        past = graph.give(f"past{len(graph.inputs)}", TensorProto.FLOAT, (rows, "past", 4))
        present = graph.make("Concat", [past, fresh], TensorProto.FLOAT, (rows, f"past+{new}", 4), axis=1)
        graph.outputs.append(present)
        turned = graph.make("Transpose", [present], TensorProto.FLOAT, (rows, 4, f"past+{new}"), perm=[0, 2, 1])
        scores = graph.make("MatMul", [fresh, turned], TensorProto.FLOAT, (rows, new, f"past+{new}"))
        weights = graph.make("Softmax", [scores], TensorProto.FLOAT, (rows, new, f"past+{new}"))
        graph.make("MatMul", [weights, present], TensorProto.FLOAT, (rows, new, 4))


_STEPS: tuple[Callable[[_Graph], None], ...] = (
    *(_unary, _unary, _binary, _binary, _cast, _cast, _softmax, _transpose, _product, _joined, _joined, _split, _flat),
    *(_cut, _reduced, _summed, _summed, _spread),
)


@dataclass(frozen=True)
class RangedModel:
    """A model, the ranges of its dimensions, and the options of its plan."""

    model: onnx.ModelProto
    ranges: dict[str, tuple[int, int]]
    options: dict[str, Any]


def ranged_model(seed: int) -> RangedModel:
    """Return the model of `seed`."""
    random = Random(seed)
    graph = _Graph(random, tuple("abc"[: random.choice((1, 1, 2, 2, 3))]))
    dims: list[int | str] = [*graph.symbols, *graph.symbols, 1, 2, 3, 4, 8]
    for place in range(random.choice((1, 2, 3))):
        shape: list[int | str] = [random.choice(dims) for _ in range(random.choice((1, 2, 2, 3)))]
        if place == 0:
            shape[0] = graph.symbols[0]
        graph.give(f"i{place}", random.choice(_KINDS), tuple(shape))
    has_cache = random.random() < 0.3
    if has_cache:
        _grown(graph)
    for _ in range(random.randint(3, 14)):
        random.choice(_STEPS)(graph)
    read = {name for node in graph.nodes for name in node.input}
    outputs = [name for name in graph.values if name not in read and name.startswith(("v", "w"))]
    outputs = list(dict.fromkeys([*graph.outputs, *outputs])) or [graph.make("Identity", ["i0"], *graph.values["i0"])]
    shown = {name: (graph.values[name][0], [None] * len(graph.values[name][1])) for name in outputs}
    model = build.model(graph.nodes, graph.inputs, shown, graph.constants, opset=18, ir_version=9)
    used = {dim.dim_param for info in model.graph.input for dim in info.type.tensor_type.shape.dim if dim.dim_param}
    lows = {name: random.choice((1, 1, 2, 3)) for name in sorted(used)}
    ranges = {name: (low, low + random.choice((1, 3, 7, 15, 40))) for name, low in lows.items()}
    options = {
        "alignment": random.choice((1, 2, 4, 8, 64)),
        "order": random.choice(("auto", "auto", "model")),
        "io": random.choice(("outputs", "outputs", "inside", "outside")),
        "layout": {"whole_buffers": random.random() < 0.3},
    }
    if has_cache and random.random() < 0.7:
        options |= {"state": "found", "runs": random.choice((2, 4))}
        ranges["past"] = (random.choice((0, 1)), ranges["past"][1])
    return RangedModel(model, ranges, options)


def range_faults(seed: int) -> list[RangeFault]:
    """Plan the model of `seed` over its ranges, prove the plan, and check and run it at further sizes; return what is wrong."""
    made = ranged_model(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _require_sound(made, Random(seed))
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return [(seed, "ranges", f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:400]}")]
    return []


def _require_sound(made: RangedModel, random: Random) -> None:
    found = onnxtile.plan(made.model, dims=made.ranges, **made.options)
    plan = found.plan
    with TemporaryDirectory() as folder:
        document = Path(folder, "plan.json")
        found.write(document)
        audit = onnxtile.check_plan(made.model, document)
        assert audit.sound, f"--check: {audit.failures[0]}"
        said = json.loads(document.read_text())
    if plan.unplanned:
        return
    largest = {name: high for name, (_, high) in plan.ranges.items()}
    assert plan.arena_size_at(largest) <= plan.arena_size, "the formula takes more than the plan at the largest sizes"
    for _ in range(_SIZES):
        sizes = {name: random.randint(low, high) for name, (low, high) in plan.ranges.items()}
        _require_published(said, sizes, plan.alignment)
        if min(sizes.values()) > 0:
            _require_run(made, found, sizes)
    if plan.arena_size > 64 and not plan.states:
        _require_refused(made, plan.arena_size // 2)


def _require_published(said: Mapping[str, Any], sizes: Mapping[str, int], alignment: int) -> None:
    """Raise AssertionError where buffers of the published plan overlap at `sizes`, are not aligned, or leave the arena."""

    def at(text: str | int) -> int:
        return int(eval(str(text), {"__builtins__": {}, "min": min, "max": max}, dict(sizes)))

    sized = {arena["name"]: at((arena["scaled"] or arena["fixed"])["bytes"]) for arena in said["formulas"]}
    rows = [row for row in said["buffers"] if row["alias"] is None and row["size"]]
    for row in rows:
        start = at(row.get("scaled_offset") or row["offset"])
        end = start + at(row.get("size_formula") or row["size"])
        assert start % alignment == 0, f"{row['name']} at {start} is not aligned at {sizes}"
        assert end <= sized[row["arena"]] or row.get("parts"), (
            f"{row['name']} ends at {end}, beyond the arena at {sizes}"
        )
        row["at"] = (start, end)
    for one, other in combinations([row for row in rows if not row.get("parts")], 2):
        apart = one["last"] < other["first"] or other["last"] < one["first"] or one["arena"] != other["arena"]
        (start, end), (begin, until) = one["at"], other["at"]
        assert apart or end <= begin or until <= start, f"{one['name']} and {other['name']} overlap at {sizes}"


def _require_run(made: RangedModel, found: onnxtile.PlannedModel, sizes: Mapping[str, int]) -> None:
    """Check the plan at `sizes`, and run it inside its arena; the runs of states follow each other, and are those of the proof."""
    plan = found.plan
    model = load(made.model)
    bind(model, dict(sizes), {}, least=0)
    opened = unfold(model, resolve(model, run=True), Constants(model))
    for scaled in (False, True):
        one = at_sizes(plan, sizes, opened.model, opened.shapes, scaled=scaled)
        require(opened.model, one.claims, opened.shapes, opened.constants)
    if not plan.states:
        verdict = arena_run(opened.model, one.result, opened.shapes, opened.constants)
        assert verdict.equal, f"the run at {sizes} differs: {verdict.differing}"


def _require_refused(made: RangedModel, capacity: int) -> None:
    """The sizes named where a plan does not fit exceed the capacity, and are all of the smallest."""
    try:
        onnxtile.plan(made.model, dims=made.ranges, verify=False, capacity=capacity, **made.options)
    except Infeasible as error:
        assert "DOES NOT FIT" in str(error), str(error)
        return
    raise AssertionError(f"a plan above {capacity} bytes is not refused")
