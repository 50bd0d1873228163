"""Nodes with bodies: If, Loop, Scan, and calls of the model's own functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tests.random_graphs.drawing import DRAWING
from tests.random_graphs.low_bits import LOW_BITS
from tests.random_graphs.operators import STEPS
from tests.random_graphs.other_kinds import OTHER_KINDS
from tests.random_graphs.picks import MOST, Step
from tests.random_graphs.scope import BOOL, FLOAT, INT64, Dim, Scope, Tensor


def info_of(one: Tensor, *, typed: bool = True) -> onnx.ValueInfoProto:
    """Return what a file says of a value."""
    dims = [None if isinstance(dim, str) and dim.startswith("?") else dim for dim in one.dims]
    described = helper.make_tensor_type_proto(one.dtype, dims if typed else None)
    if one.form == "sequence":
        described = helper.make_sequence_type_proto(described)
    elif one.form == "optional":
        described = helper.make_optional_type_proto(described)
    return helper.make_value_info(one.name, described)


def grow(scope: Scope, count: int, steps: Sequence[Step]) -> None:
    """Add up to `count` groups of nodes."""
    for _ in range(count):
        scope.random.choice(steps)(scope)


def _steps(scope: Scope) -> tuple[Step, ...]:
    steps = (*STEPS, *LOW_BITS, *OTHER_KINDS) if scope.shared.further else STEPS
    steps = (*steps, *DRAWING, *DRAWING) if scope.shared.drawing else steps
    return (*steps, *steps, *BODIES) if scope.depth < scope.shared.deepest else steps


def _alike(scope: Scope, wanted: Tensor) -> Tensor:
    """Return a value that a node of this scope makes, of the element type and the sizes of `wanted`."""
    made = {name for node in scope.nodes for name in node.output}
    found = [
        t for t in scope.own if t.name in made and not t.constant and (t.dtype, t.dims) == (wanted.dtype, wanted.dims)
    ]
    if found and scope.chance(0.6):
        return scope.random.choice(found)
    source = scope.random.choice([t for t in scope.values if (t.dtype, t.dims) == (wanted.dtype, wanted.dims)])
    return scope.one("Identity" if scope.chance(0.3) else "Neg", [source], wanted.dtype, wanted.dims)


def _graph(scope: Scope, outputs: Sequence[Tensor], name: str, *, typed: float = 0.8) -> onnx.GraphProto:
    """Return the scope as a graph; as many of its outputs say their shape."""
    inputs = [info_of(one) for one in scope.inputs]
    results = [info_of(one, typed=scope.chance(typed)) for one in outputs]
    made = {one for node in scope.nodes for one in node.output} - {one.name for one in outputs}
    shown = [info_of(one) for one in scope.own if one.name in made and scope.chance(0.2)]
    shown += [info_of(Tensor(t.name, t.data_type, tuple(t.dims))) for t in scope.initializers if scope.chance(0.1)]
    return helper.make_graph(scope.nodes, name, inputs, results, scope.initializers, value_info=shown)


def _operand(scope: Scope, rank: int = 0) -> Tensor | None:
    return scope.pick(lambda t: t.dtype == FLOAT and t.rank >= rank and t.size <= MOST // 4)


def condition(scope: Scope) -> Tensor:
    """Return a truth value: an input, one that a node computes, or a constant."""
    there = scope.pick(lambda t: t.dtype == BOOL and t.dims in {(), (1,)})
    x = _operand(scope)
    kind = scope.random.choice(["there", "computed", "constant"])
    if kind == "there" and there is not None:
        return there
    if kind == "computed" and x is not None and scope.shared.steps:
        most = scope.one("ReduceMax", [x], FLOAT, (), keepdims=0)
        return scope.one("Greater", [most, scope.constant(np.asarray(0.5, np.float32))], BOOL, ())
    return scope.constant(np.asarray(scope.chance(0.5), np.bool_))


def branch(scope: Scope) -> object:
    """An If, whose branches use the same names."""
    wanted = [one for one in (_operand(scope) for _ in range(scope.random.choice([1, 1, 2]))) if one is not None]
    if not wanted:
        return None
    chosen, graphs = condition(scope), {}
    for name in ("then_branch", "else_branch"):
        inner = Scope(scope.shared, scope)
        grow(inner, scope.random.randint(0, 4), _steps(inner))
        outputs: list[Tensor] = []
        for one in wanted:
            found = _alike(inner, one)
            again = found in outputs
            outputs.append(inner.one("Abs", [found], found.dtype, found.dims) if again else found)
        graphs[name] = _graph(inner, outputs, scope.random.choice([name, "body"]))
    scope.shared.features.add("If")
    return scope.put("If", [chosen], [(one.dtype, one.dims) for one in wanted], **graphs)


def loop(scope: Scope) -> object:
    """A Loop with carried values, and results of every turn now and then."""
    carried = [one for one in (_operand(scope) for _ in range(scope.random.choice([1, 1, 2]))) if one is not None]
    if not carried:
        return None
    inner = Scope(scope.shared, scope)
    inner.give(INT64, ())
    goes_on = inner.give(BOOL, ())
    for one in carried:
        inner.give(one.dtype, one.dims)
    grow(inner, scope.random.randint(0, 4), _steps(inner))
    outputs = [goes_on if inner.chance(0.3) else inner.one("Identity", [goes_on], BOOL, ())]
    for one, passed in zip(carried, inner.inputs[2:], strict=True):
        outputs.append(passed if inner.chance(0.1) else _next(inner, one, outputs))
    kept = [_next(inner, one, outputs) for one in carried[: scope.random.choice([0, 0, 1])]]
    turns = scope.random.choice([1, 2, 3])
    given = [
        scope.constant(np.asarray(turns, np.int64)),
        scope.constant(np.asarray(True)) if scope.chance(0.6) else "",
        *carried,
    ]
    results: list[tuple[int, Sequence[Dim]]] = [(one.dtype, one.dims) for one in carried]
    results += [(one.dtype, (turns, *one.dims)) for one in kept]
    scope.shared.features.add("Loop")
    return scope.put("Loop", given, results, body=_graph(inner, [*outputs, *kept], "body"))


def _next(inner: Scope, wanted: Tensor, taken: Sequence[Tensor]) -> Tensor:
    found = _alike(inner, wanted)
    return inner.one("Tanh", [found], found.dtype, found.dims) if found in taken else found


def scan(scope: Scope) -> object:
    """A Scan over the first axis of a tensor, with a state."""
    if scope.opset < 9:
        return None
    x = scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 2 and isinstance(t.dims[0], int) and 1 <= t.dims[0] <= 8)
    if x is None:
        return None
    state = scope.pick(lambda t: t.dtype == FLOAT and t.dims == x.dims[1:])
    inner = Scope(scope.shared, scope)
    states = [] if state is None else [inner.give(FLOAT, state.dims)]
    row = inner.give(FLOAT, x.dims[1:])
    grow(inner, scope.random.randint(0, 4), _steps(inner))
    outputs: list[Tensor] = []
    for one in [*states, row]:
        outputs.append(_next(inner, one, outputs))
    given = [*([] if state is None else [state]), x]
    results: list[tuple[int, Sequence[Dim]]] = [(FLOAT, one.dims) for one in states]
    results += [(FLOAT, (x.dims[0], *row.dims))]
    scope.shared.features.add("Scan")
    body = _graph(inner, outputs, "body", typed=1)  # onnxruntime's Scan asks for the shapes of all outputs
    return scope.put("Scan", given, results, body=body, num_scan_inputs=1)


def call(scope: Scope) -> object:
    """A call of a function of the model, made now or there already."""
    if scope.shared.ir_version < 8 or (scope.is_function and scope.depth >= scope.shared.deepest):
        return None
    x = _operand(scope)
    if x is None:
        return None
    there = scope.shared.functions
    if there and scope.chance(0.5):
        function = scope.random.choice(there)
        return _called(scope, function, x)
    return _called(scope, _function(scope), x)


_ANY_SHAPE = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh")


def _function(scope: Scope) -> onnx.FunctionProto:
    """Make a function of two operands that keeps their shape, with an attribute now and then, calling another one now and then."""
    inner = Scope(scope.shared, scope, function=True)
    x, y = inner.give(FLOAT, ("?",)), inner.give(FLOAT, ("?",))
    values, random = [x, y], scope.random
    earlier = list(scope.shared.functions)
    attributes = ["slope"] if scope.chance(0.4) else []
    for _ in range(random.randint(1, 4)):
        one, other = random.choice(values), random.choice(values)
        kind = random.choice(["unary", "unary", "binary", "constant", "call", "attribute", "silu"])
        if kind == "binary":
            values.append(inner.one(random.choice(["Add", "Mul", "Sub"]), [one, other], FLOAT, ("?",)))
        elif kind == "constant":
            values.append(inner.one("Mul", [one, inner.constant(np.asarray(0.5, np.float32))], FLOAT, ("?",)))
        elif kind == "call" and earlier:
            values.append(_called(inner, random.choice(earlier), one, other))
        elif kind == "attribute" and attributes:
            made = inner.one("LeakyRelu", [one], FLOAT, ("?",))
            reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
            inner.nodes[-1].attribute.append(reference)
            values.append(made)
        elif kind == "silu":
            values.append(inner.one("Mul", [one, inner.one("Sigmoid", [one], FLOAT, ("?",))], FLOAT, ("?",)))
        else:
            values.append(inner.one(random.choice(_ANY_SHAPE), [one], FLOAT, ("?",)))
    if values[-1] in (x, y):
        values.append(inner.one("Neg", [values[-1]], FLOAT, ("?",)))
    imports = [helper.make_opsetid("", scope.opset), helper.make_opsetid("local", 1)]
    name = f"function{len(earlier)}"
    made_function = helper.make_function(
        "local", name, [x.name, y.name], [values[-1].name], inner.nodes, imports, attributes
    )
    scope.shared.functions.append(made_function)
    scope.shared.domains.add("local")
    scope.shared.features.add("function")
    return made_function


def _called(scope: Scope, function: onnx.FunctionProto, x: Tensor, y: Tensor | None = None) -> Tensor:
    other = y or scope.pick(lambda t: t.dtype == FLOAT and t.dims == x.dims) or x
    more = {"slope": scope.random.choice([0.25, 0.5])} if function.attribute else {}
    return scope.one(function.name, [x, other], FLOAT, x.dims, domain="local", **more)


BODIES: tuple[Step, ...] = (branch, branch, loop, scan, call, call, call)
