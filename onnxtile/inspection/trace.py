"""Real activations: the outputs of chosen nodes in a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields, VerbResult
from onnxtile.inspection.work import write_out_calls
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Feeds, Ranges, sample_feeds, write_arrays
from onnxtile.model.submodel import exposing
from onnxtile.model.topology import bodies_of, node_ids, nodes_inside
from onnxtile.model.validity import skeleton
from onnxtile.operators.node_view import operator_name
from onnxtile.query.match import Matcher, compiled
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, OverLimit, QueryError, UsageError
from onnxtile.system.long_work import memory_of_runs
from onnxtile.system.runtime import Array
from onnxtile.verification.open_sizes import Assignment
from onnxtile.verification.trials import first_that_runs

# Branches of If nodes moved into the main graph: the branches that a run takes, so that their values can be traced.


def reachable(graph: ir.Graph, path: str = "") -> Iterator[tuple[ir.Node, str]]:
    """Yield the nodes of `graph` and of the branches of its If nodes, each with its name, that of a branch before it."""
    for node, name in node_ids(graph).items():
        yield node, f"{path}/{name}" if path else name
        if _is_if(node):
            for body in bodies_of(node):
                yield from reachable(body.graph, f"{path}/{name}.{body.key}" if path else f"{name}.{body.key}")


def with_branches(
    model: ir.Model, chosen: Collection[ir.Node], feeds: Feeds
) -> tuple[ir.Model, dict[ir.Node, ir.Node]]:
    """Return a model whose main graph has those of `chosen` that a run on `feeds` reaches, and which of its nodes each of them is.

    That is `model` itself where none is in a branch. An If whose branches have one of them gives way to the branch that is taken. Raises
    ModelError where onnxruntime refuses the model.
    """
    if all(node.graph is model.graph for node in chosen):
        return model, {node: node for node in chosen}
    copy = model.clone()
    pairs = zip(model.graph.all_nodes(), copy.graph.all_nodes(), strict=True)
    copies = {original: copied for original, copied in pairs if original in chosen}
    wanted = set(copies.values())
    while (branching := next((node for node in copy.graph if _is_if(node) and _holds(node, wanted)), None)) is not None:
        _take(copy, branching, feeds)
    return copy, {original: copied for original, copied in copies.items() if copied.graph is copy.graph}


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and not node.domain


def _holds(node: ir.Node, wanted: Collection[ir.Node]) -> bool:
    return any(inner in wanted for inner in nodes_inside(node))


def _take(model: ir.Model, node: ir.Node, feeds: Feeds) -> None:
    """Put the branch of `node` that is taken in its place."""
    condition = node.inputs[0]
    assert condition is not None and condition.name is not None
    taken = exposing(model, [condition.name]).run(feeds)[condition.name]
    if taken.size != 1:
        raise ModelError(f"the condition {condition.name!r} of an If has {taken.size} elements, and must have one")
    branch = node.attributes["then_branch" if taken.item() else "else_branch"].as_graph()
    for value in list(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        model.graph.register_initializer(value)
    inner, results = list(branch), list(branch.outputs)
    branch.outputs.clear()
    branch.remove(inner)
    model.graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results, strict=False):  # a branch may make more than the node gives
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)


# The bytes of traced values, known before the run: they are in memory at once.

_MOST = 2**30
"""Bytes of all traced values of a run, unless limits say otherwise."""


def require_room(model: ir.Model, names: Iterable[str], feeds: Mapping[str, Any]) -> None:
    """Raise OverLimit where the values `names` of `model` take more bytes on the inputs `feeds` than a run may.

    Strings, and values whose shape onnx cannot infer, count nothing.
    """
    sizes, allowed = dict(_sizes(model, feeds)), memory_of_runs() or _MOST
    needed = sum(sizes.get(name, 0) for name in names)
    if needed > allowed:
        raise OverLimit(
            f"the traced values take {needed:,} bytes of memory, and {allowed:,} are allowed",
            hint="choose fewer nodes or smaller sizes (--dim, --shape), or allow more memory by --runs",
        )


def _sizes(model: ir.Model, feeds: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the name and the bytes of each value of the main graph whose shape onnx infers for these inputs."""
    proto = skeleton(model)
    for value in proto.graph.input:
        if isinstance(feeds.get(value.name), np.ndarray):
            tensor = value.type.tensor_type
            tensor.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.elem_type, feeds[value.name].shape).tensor_type)
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return  # onnxruntime says what is wrong with the model
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        has_bytes = tensor.elem_type not in {onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING}
        if tensor.HasField("shape") and has_bytes and all(dim.HasField("dim_value") for dim in dims):
            yield value.name, math.prod(dim.dim_value for dim in dims) * ir.DataType(tensor.elem_type).bitwidth // 8


@dataclass(frozen=True)
class Activation(JsonFields):
    """An output of a node in a run. `low`, `high` and `mean` are those of its finite numbers; None where it has none.

    `node` and `op` made it; `name` is that of the value, `dtype` its element type, `shape` its sizes. `nans` and `infinities` count
    elements.
    """

    JSON = "node op name dtype shape min=low max=high mean nans infinities"

    node: str
    op: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None
    high: float | None
    mean: float | None
    nans: int
    infinities: int


@dataclass(frozen=True, repr=False)
class Trace(VerbResult):
    """The outputs of the chosen nodes, in the order of the graph, by value name; `inputs` says on what the model ran.

    The elements of a sequence `s` are called `s[0]`, `s[1]` ...

    `activations` has the statistics of each output, `arrays` its elements by name, and `dims` the sizes of symbolic dimensions.
    """

    JSON = "activations inputs dims"

    verb: ClassVar[str] = "trace"

    activations: tuple[Activation, ...]
    arrays: Mapping[str, Array]
    inputs: str
    dims: Mapping[str, int]

    @property
    def summary(self) -> str:
        """How many activations there are, and on what the model ran."""
        return f"{len(self.activations):,} activations, {self.inputs} inputs"

    def write(self, path: str | Path) -> None:
        """Write the arrays to `path` where it ends in .npz, else what `to_dict` returns. Raises UsageError."""
        if Path(path).suffix == ".npz":
            write_arrays(Path(path), self.arrays)
            return
        super().write(path)


def choose(model: ir.Model, wanted: Sequence[str]) -> dict[ir.Node, str]:
    """Return the nodes that `wanted` mean, with their names, in the order of the graph: of the main graph, and of branches of If nodes.

    Each is the name of a node (of its first output where it has none), an operator, or a query, of whose matches every node counts. Raises
    UsageError where one of them means none, or only nodes inside loops, which cannot be seen from outside, and QueryError.
    """
    names = dict(reachable(model.graph))
    by_name = {name: node for node, name in names.items()}
    chosen: set[ir.Node] = set()
    for text in wanted:
        matching = {by_name[text]} if text in by_name else _matching(model, text)
        seen = matching & names.keys()
        if not seen:
            where = "only in bodies of loops, whose values cannot be traced" if matching else "nowhere in the model"
            raise UsageError(f"{text!r} is {where}", hint="give the name of a node, an operator or a query")
        chosen |= seen
    return {node: name for node, name in names.items() if node in chosen}


def choose_anywhere(model: ir.Model, wanted: Sequence[str]) -> tuple[ir.Model, dict[ir.Node, str]]:
    """Return `model` and what `choose` finds in it; where it finds something in local functions only, a copy with these written out.

    Raises as `choose` does.
    """
    try:
        return model, choose(model, wanted)
    except (UsageError, QueryError):
        copy = model.clone()
        if not model.functions or write_out_calls(copy):
            raise
        return copy, choose(copy, wanted)


def _matching(model: ir.Model, text: str) -> set[ir.Node]:
    same = {node for node in model.graph.all_nodes() if text in {node.op_type, operator_name(node)}}
    if same:
        return same
    known = {node.op_type for node in model.graph.all_nodes()}
    matches = Matcher(model, Constants(model)).find(compiled(text, known))
    return {node for match in matches for node in match.nodes}


def trace(
    model: ir.Model,
    chosen: Mapping[ir.Node, str],
    *,
    given: Feeds | None = None,
    ranges: Ranges | None = None,
    seed: int = 0,
) -> Trace:
    """Run `model` as far as the `chosen` nodes need it, and keep nothing but their outputs.

    Without inputs that are `given` they are random, and free dimensions get sizes with which it runs. Raises ModelError, and OverLimit
    where the values take more bytes than a run may.
    """

    def attempt(feeds: Feeds) -> dict[ir.Node, dict[str, Any]]:
        opened, nodes = with_branches(model, chosen, feeds)
        if not nodes:
            raise UsageError("the run does not reach the branches that hold these nodes", hint="give other --inputs")
        names = {node: [value.name for value in copied.outputs if value.name] for node, copied in nodes.items()}
        wanted = [name for outputs in names.values() for name in outputs]
        require_room(opened, wanted, feeds)
        session = exposing(opened, wanted)
        results = session.run(feeds)
        return {node: {name: results[name] for name in outputs} for node, outputs in names.items()}

    def sampled(assignment: Assignment) -> dict[ir.Node, dict[str, Any]]:
        return attempt(sample_feeds(model, assignment.sizes, seed=seed, ranges=ranges))

    results, dims = (attempt(given), {}) if given is not None else first_that_runs(model, sampled)
    arrays: dict[str, Array] = {}
    activations = []
    for node, name, value in ((node, *item) for node, outputs in results.items() for item in outputs.items()):
        for key, array in _named(name, value):
            arrays[key] = array
            activations.append(_summary(chosen[node], node, key, array))
    return Trace(tuple(activations), arrays, "random inputs" if given is None else "given inputs", dims)


def _named(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _named(f"{name}[{index}]", element)
    elif isinstance(value, np.ndarray):
        yield name, value


def _summary(node_name: str, node: ir.Node, name: str, array: Array) -> Activation:
    dtype = "string" if array.dtype.kind in "OSU" else array.dtype.name
    known = (node_name, operator_name(node), name, dtype, tuple(array.shape))
    if dtype == "string" or array.dtype.kind == "c":
        return Activation(*known, None, None, None, 0, 0)
    numbers = array.astype(np.float32) if array.dtype.kind == "V" else array
    finite = np.isfinite(numbers)
    nans = int(np.isnan(numbers).sum())
    if not finite.any():
        return Activation(*known, None, None, None, nans, int(numbers.size) - nans)
    whole = bool(finite.all())
    shown = numbers if whole else numbers[finite]
    mean = float(shown.mean(dtype=np.float64))
    return Activation(
        *known, float(shown.min()), float(shown.max()), mean, nans, int(numbers.size - finite.sum()) - nans
    )
