"""Random operators, with a seed or without, and what follows from them in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper

from tests.random_graphs.kernels import captured
from tests.random_graphs.picks import Step, picture
from tests.random_graphs.scope import FLOAT, INT32, Scope, Tensor

OPSETS = (13, 15, 17, 18, 20, 21)
"""Opsets of models with random operators: onnxruntime has no kernels for most of those of opset 22."""

RANDOM = {
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip


def _seed(scope: Scope, kind: type) -> dict[str, float]:
    """Return a seed most of the time."""
    return {"seed": kind(scope.random.randrange(1, 1_000_000))} if scope.chance(0.8) else {}


def _floats(scope: Scope, rank: int = 0) -> Tensor | None:
    return scope.pick(lambda t: t.dtype == FLOAT and t.rank >= rank and t.is_static and 0 < t.size <= 512)


def training_dropout(scope: Scope) -> object:
    """A Dropout that trains, with its mask now and then."""
    x = _floats(scope)
    return None if x is None else _dropped(scope, x)[0]


def _dropped(scope: Scope, x: Tensor) -> list[Tensor]:
    given = [x, scope.constant(np.asarray(0.5, np.float32)), scope.constant(np.asarray(True))]
    results = [(FLOAT, x.dims), (onnx.TensorProto.BOOL, x.dims)][: scope.random.choice([1, 1, 1, 2])]
    return scope.put("Dropout", given, results, **_seed(scope, int))


def noise(scope: Scope) -> object:
    """Random numbers of the shape of a value, or of a shape that is said; added to the value now and then."""
    x = _floats(scope)
    if x is None:
        return None
    op = scope.random.choice(["RandomNormal", "RandomUniform"])
    if scope.chance(0.6) or not x.dims:
        made = scope.one(f"{op}Like", [x], FLOAT, x.dims, **_seed(scope, float))
    else:
        made = scope.one(op, [], FLOAT, x.dims, shape=[int(dim) for dim in x.dims], **_seed(scope, float))
    return scope.one("Add", [x, made], FLOAT, x.dims) if scope.chance(0.6) else made


def drawn_steps(scope: Scope) -> object:
    """A Bernoulli or a Multinomial: both make large differences of small ones."""
    if not scope.shared.steps:
        return None
    x = _floats(scope)
    if scope.chance(0.5) and scope.opset >= 15 and x is not None:
        chance = scope.one("Sigmoid", [x], FLOAT, x.dims)
        return scope.one("Bernoulli", [chance], FLOAT, x.dims, **_seed(scope, float))
    rows = scope.pick(lambda t: t.dtype == FLOAT and t.rank == 2 and t.is_static and t.size <= 512)
    if rows is None:
        return None
    found = scope.one("Multinomial", [rows], INT32, (rows.dims[0], 3), sample_size=3, **_seed(scope, float))
    return scope.one("Cast", [found], FLOAT, found.dims, to=FLOAT)


def narrowed_picture(scope: Scope) -> object:
    """A wide picture between narrow ones, as fit cuts it into strips, with a random operator somewhere."""
    side = scope.random.choice([12, 16])
    x = picture(scope)
    if x is None or x.dims[0] != 1:
        return None
    made = scope.one("Resize", [x, "", scope.constant(np.asarray([1, 1, side / x.at(2), side / x.at(3)], np.float32))],
                     FLOAT, (1, x.at(1), side, side), mode="nearest")  # fmt: skip
    filters = scope.random.choice([8, 16])
    steps = ["wide", "relu", "pool", *scope.random.choices(["drop", "noise"], k=scope.random.choice([1, 1, 2]))]
    scope.random.shuffle(steps)
    for step in steps:
        dims = made.dims
        if step == "wide":
            weights = scope.weight((filters, made.at(1), 3, 3))
            made = scope.one("Conv", [made, weights], FLOAT, (1, filters, *dims[2:]), pads=[1] * 4)
        elif step == "relu":
            made = scope.one("Relu", [made], FLOAT, dims)
        elif step == "pool":
            half = (*dims[:2], made.at(2) // 2, made.at(3) // 2)
            made = scope.one("MaxPool", [made], FLOAT, half, kernel_shape=[2, 2], strides=[2, 2])
        elif step == "drop":
            made = _dropped(scope, made)[0]
        else:
            found = scope.one("RandomNormalLike", [made], FLOAT, dims, **_seed(scope, float))
            made = scope.one("Mul", [made, found], FLOAT, dims)
    return scope.one("GlobalAveragePool", [made], FLOAT, (*made.dims[:2], 1, 1)) if scope.chance(0.5) else made


DRAWING: tuple[Step, ...] = (
    training_dropout,
    training_dropout,
    noise,
    noise,
    drawn_steps,
    narrowed_picture,
    narrowed_picture,
)


def draws(node: onnx.NodeProto) -> bool:
    """Return whether `node` draws random numbers: here a Dropout does where it has three operands."""
    return node.op_type in RANDOM and (node.op_type != "Dropout" or len(node.input) > 2)


def in_order(model: onnx.ModelProto) -> list[tuple[str, float | None]]:
    """Return the random operators of a model in the order of its nodes, each with its seed; those of a function once for each call."""
    functions = {(one.domain, one.name): one for one in model.functions}

    def run(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, float | None]]:
        for node in nodes:
            if draws(node):
                seeds = [helper.get_attribute_value(a) for a in node.attribute if a.name == "seed"]
                yield node.op_type, seeds[0] if seeds else None
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from run(attribute.g.node)
            function = functions.get((node.domain, node.op_type))
            yield from () if function is None else run(function.node)

    return list(run(model.graph.node))


def followers(model: onnx.ModelProto, wanted: Callable[[onnx.NodeProto], bool]) -> frozenset[str]:
    """Return the outputs of a model that depend on a `wanted` node, in whatever graph or function."""
    functions = {(one.domain, one.name): one.node for one in model.functions}
    reached: set[str] = set()
    for node in model.graph.node:
        if _holds(node, wanted, functions) or reached & (set(node.input) | captured(node)):
            reached |= set(node.output)
    return frozenset(info.name for info in model.graph.output if info.name in reached)


def _holds(
    node: onnx.NodeProto,
    wanted: Callable[[onnx.NodeProto], bool],
    functions: Mapping[tuple[str, str], Iterable[onnx.NodeProto]],
) -> bool:
    inside = [one for a in node.attribute if a.HasField("g") for one in a.g.node]
    inside += functions.get((node.domain, node.op_type), ())
    return wanted(node) or any(_holds(one, wanted, functions) for one in inside)


def has_no_seed(node: onnx.NodeProto) -> bool:
    """Return whether `node` draws other numbers in each run."""
    return draws(node) and all(attribute.name != "seed" for attribute in node.attribute)
