"""Random valid models: one seed, one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tests.random_graphs.bodies import BODIES, info_of
from tests.random_graphs.composites import COMPOSITES
from tests.random_graphs.drawing import DRAWING, draws, followers, has_no_seed
from tests.random_graphs.low_bits import LOW_BITS
from tests.random_graphs.names import Names
from tests.random_graphs.notes import Notes
from tests.random_graphs.operators import STEPS
from tests.random_graphs.other_kinds import OTHER_KINDS, STRING
from tests.random_graphs.picks import Step
from tests.random_graphs.scope import BOOL, BRAIN, FLOAT, HALF, INT64, ORDINARY, Dim, Form, Scope, Shared, Tensor

OPSETS = (11, 13, 14, 15, 17, 17, 18, 20, 21, 22)
FURTHER_OPSETS = (12, 16, 19, 23, 24, 25)
"""Opsets of models that are made where these are asked for."""
OLDEST_AND_NEWEST = (7, 8, 9, 10, 13, 17, 20, 21, 22, 23, 24, 25, 26)
"""Opsets of models that have further kinds of values."""
SIZES = {"N": 3, "M": 2}
"""The sizes that open dimensions have when a model is run."""
SHAPES: tuple[tuple[Dim, ...], ...] = (
    (4, 8), (2, 6), (1, 8), (3, 5), (2, 3, 8), (1, 5, 4), (1, 4, 6, 6), (2, 3, 8, 8), (1, 8, 4, 4), (7,), (1,), (), (1, 1, 1), (13, 1),
    (2, 1, 4, 1),     ("N", 8), ("N", 4, 8), ("N", "M", 8), ("N", 3, 6, 6), ("N", 5),
)  # fmt: skip


_LEAST_IR = {
    **dict.fromkeys((7, 8, 9, 10, 11), 4), **dict.fromkeys((12, 13, 14), 7), **dict.fromkeys((15, 16, 17, 18), 8),
    **dict.fromkeys((23, 24, 25, 26), 10),
}  # fmt: skip


@dataclass(frozen=True)
class RandomModel:
    """A model, the sizes of its open dimensions, and the `stepped` outputs, where a small difference may become a large one."""

    seed: int
    model: onnx.ModelProto
    dims: dict[str, int]
    stepped: frozenset[str]
    features: frozenset[str]
    drawn: frozenset[str] = frozenset()
    """The outputs that depend on a random operator."""
    unrepeated: frozenset[str] = frozenset()
    """The outputs that depend on a random operator without a seed."""

    def feeds(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return values for the inputs."""
        random = np.random.default_rng(seed)
        constants = {tensor.name for tensor in self.model.graph.initializer}
        return {
            info.name: self._fed(info.type, random) for info in self.model.graph.input if info.name not in constants
        }

    def _fed(self, described: onnx.TypeProto, random: np.random.Generator) -> Any:
        if described.HasField("sequence_type"):
            return [self._fed(described.sequence_type.elem_type, random) for _ in range(2)]
        if described.HasField("optional_type"):
            return self._fed(described.optional_type.elem_type, random)
        tensor = described.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else self.dims[dim.dim_param] for dim in tensor.shape.dim]
        if tensor.elem_type == STRING:
            return np.asarray(random.choice(["a", "bb", "Größe", ""], shape), object)
        if tensor.elem_type == BOOL:
            return np.asarray(random.integers(0, 2, shape), np.bool_)
        if tensor.elem_type == INT64:
            return np.asarray(random.integers(0, 2, shape))
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        return np.asarray(random.standard_normal(shape)).astype(kind)


def random_model(
    seed: int, most: int = 18, opsets: Sequence[int] = OPSETS, *, further: bool = False, drawing: bool = False
) -> RandomModel:
    """Return the model of `seed` in one of the `opsets`, of up to `most` groups of nodes.

    A `further` one has numbers of few bits, strings, sequences, optional values, unusual names, and deeper bodies, too; a `drawing` one has
    random operators.
    """
    random = Random(seed)
    opset = random.choice(opsets)
    versions = [version for version in (4, 7, 8, 9, 10, 10, 11) if version >= _LEAST_IR.get(opset, 9)]
    shared = Shared(random, opset, random.choice(versions), steps=random.random() < 0.4)
    scope = Scope(shared)
    _add_inputs(scope)
    groups: list[tuple[Step, ...]] = [STEPS, COMPOSITES, BODIES]
    if further:
        shared.further, shared.deepest = True, random.choice([2, 2, 4])
        _add_further_inputs(scope)
        groups += [LOW_BITS, OTHER_KINDS]
    if drawing:
        shared.drawing = True
        scope.give(FLOAT, random.choice([(1, 3, 8, 8), (1, 4, 6, 6)]))
        groups.append(DRAWING)
    for _ in range(random.randint(2, most)):
        kinds = random.choices(groups, [6, 3, 1, *([3, 2] if further else []), 4][: len(groups)])[0]
        random.choice(kinds)(scope)
    if not scope.nodes:
        scope.one("Identity", [scope.inputs[0]], scope.inputs[0].dtype, scope.inputs[0].dims)
    model = _model(scope)
    Notes(random, random.choice([0, 0.2, 0.6]), metadata=shared.ir_version >= 10).write(model)
    named: dict[str, str] = {}
    if further:
        named = Names(random, random.choice([0, 0.2, 0.8])).change(model)
    dims = {named.get(name, name): SIZES[name] for name in SIZES if any(name in one.dims for one in scope.inputs)}
    drawn, unrepeated = followers(model, draws), followers(model, has_no_seed)
    return RandomModel(seed, model, dims, _stepped(model), frozenset(shared.features), drawn, unrepeated)


def _add_inputs(scope: Scope) -> None:
    random = scope.random
    first = random.choice(SHAPES)
    scope.give(HALF if random.random() < 0.15 else FLOAT, first)
    for _ in range(random.choice([0, 1, 1, 2])):
        same = random.random() < 0.5
        scope.give(scope.inputs[0].dtype if same else FLOAT, first if same else random.choice(SHAPES))
    if random.random() < 0.4:
        scope.give(BOOL, random.choice([(), (1,)]))
    if random.random() < 0.15:
        scope.give(INT64, random.choice([(), (3,)]))


def _add_further_inputs(scope: Scope) -> None:
    """Add an input of strings, a sequence, or an optional value now and then."""
    random = scope.random
    if random.random() < 0.3:
        scope.give(STRING, random.choice([(3,), (), ("N",), (2, 2)]))
    forms: list[Form] = ["sequence"] * (scope.opset >= 11)
    forms += ["optional"] * (scope.opset >= 18 and scope.shared.ir_version >= 8)
    if forms and random.random() < 0.3:
        scope.hand_in(FLOAT, random.choice(SHAPES), random.choice(forms))


def _model(scope: Scope) -> onnx.ModelProto:
    random, shared = scope.random, scope.shared
    _end_brains(scope)
    read = _read(scope.nodes)
    made = {name for node in scope.nodes for name in node.output}
    results = [one for one in (*scope.own, *scope.own_forms) if one.name in made and not one.constant]
    outputs = [one for one in results if one.name not in read or (one.dtype in _SHOWN and random.random() < 0.1)]
    if random.random() < 0.1:
        outputs.append(random.choice(scope.inputs))
    constants = [Tensor(t.name, t.data_type, tuple(t.dims)) for t in scope.initializers]
    # onnxruntime's Python gives no arrays of few bits.
    given = [one for one in constants if one.dtype in _SHOWN]
    if given and random.random() < 0.05:
        outputs.append(random.choice(given))
    random.shuffle(outputs)
    if shared.ir_version >= 4 and constants and random.random() < 0.1:
        free = random.choice(constants)
        if free.name not in limits_of_empty_loops(scope.nodes):
            scope.inputs.append(free)
    if random.random() < 0.1:
        scope.weight((3, 2))
    shown = [one for one in results if one not in outputs and random.random() < 0.5 and one.form == "tensor"]
    # Without their sizes, onnx's inference takes an initializer for one of no axes.
    held = [one for one in constants if one not in scope.inputs and random.random() < 0.1]
    graph = helper.make_graph(
        scope.nodes,
        random.choice(["main", "g"]),
        [info_of(one) for one in scope.inputs],
        [_shown(scope, one, always=True) for one in outputs],
        scope.initializers,
        value_info=[*(_shown(scope, one) for one in shown), *map(info_of, held)],
    )
    imports = [
        helper.make_opsetid("", shared.opset),
        *(helper.make_opsetid(name, 1) for name in sorted(shared.domains)),
    ]
    model = helper.make_model(graph, opset_imports=imports, ir_version=shared.ir_version, functions=shared.functions)
    model.producer_name, model.model_version = random.choice([("", 0), ("random", 3)])
    return model


def limits_of_empty_loops(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Return the names of the turns of Loops without nodes, also in bodies: onnxtile refuses these where the caller says how many."""
    bodies = [(node, attribute.g) for node in nodes for attribute in node.attribute if attribute.HasField("g")]
    here = {node.input[0] for node, body in bodies if node.op_type == "Loop" and not body.node}
    return here.union(*(limits_of_empty_loops(body.node) for _, body in bodies))


def _shown(scope: Scope, one: Tensor, *, always: bool = False) -> onnx.ValueInfoProto:
    """Return what the file says of a value: all of its sizes, some, or none. The checker wants a shape of outputs, `always`."""
    dims = tuple(f"?{place}" if scope.chance(0.15) else dim for place, dim in enumerate(one.dims))
    return info_of(replace(one, dims=dims), typed=always or scope.chance(0.9))


def _end_brains(scope: Scope) -> None:
    """Cast what would be an output of bfloat16 or few bits: onnxruntime's Python gives no such arrays."""
    for one in [one for one in scope.own if one.dtype not in _SHOWN and one.name not in _read(scope.nodes)]:
        scope.one("Cast", [one], FLOAT, one.dims, to=FLOAT)


def _read(nodes: Any) -> set[str]:
    """Return the names that `nodes` read, and the graphs in them."""
    found: set[str] = set()
    for node in nodes:
        found |= set(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _read(attribute.g.node) | {info.name for info in attribute.g.output}
    return found


_SUDDEN = {
    "QuantizeLinear",
    "DynamicQuantizeLinear",
    "Less",
    "Greater",
    "ArgMax",
    "TopK",
    "QLinearConv",
    "QLinearMatMul",
    "BitCast",
    "ThresholdedRelu",
    "Bernoulli",
    "Multinomial",
}
_COARSE = {6, 7, STRING}
"""Element types in which a small difference may become a large one; so it may in those of few bits."""


_SHOWN = (ORDINARY | {STRING}) - {BRAIN}
"""The element types of outputs."""


def _stepped(model: onnx.ModelProto) -> frozenset[str]:
    """Return the outputs that depend on an operator that makes small differences large."""
    reached: set[str] = set()
    for node in model.graph.node:
        inner = {name for attribute in node.attribute if attribute.HasField("g") for name in _read(attribute.g.node)}
        sudden = node.op_type in _SUDDEN or any(_is_sudden(a.g) for a in node.attribute if a.HasField("g"))
        to_int = node.op_type == "Cast" and any(
            a.name == "to" and (a.i in _COARSE or a.i >= 17) for a in node.attribute
        )
        if sudden or to_int or reached & (set(node.input) | inner):
            reached |= set(node.output)
    return frozenset(info.name for info in model.graph.output if info.name in reached)


def _is_sudden(graph: onnx.GraphProto) -> bool:
    inner = (a.g for node in graph.node for a in node.attribute if a.HasField("g"))
    return any(node.op_type in {*_SUDDEN, "Cast"} for node in graph.node) or any(_is_sudden(one) for one in inner)
