"""Local functions: limits on what their calls expand to, calls that are written out, and nodes that are put into a new function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, TypeAlias

import onnx
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.topology import bodies_of, dependencies, nodes_inside
from onnxtile.system.errors import ModelError

MOST_EXPANDED = 20_000
"""Nodes that the calls of functions may stand for, all together, whatever the size of the file."""
MOST_TIMES = 20
"""Times as many nodes as are written in the file: a large model may expand to more."""
MOST_NESTED = 100
"""Largest depth of nested calls and bodies; the onnx checker allows as many calls."""

_Key: TypeAlias = tuple[str, str, str]


class _FunctionContent(NamedTuple):
    """How many nodes a graph or a function holds, those of bodies too, and the functions that they call."""

    nodes: int
    calls: Sequence[_Key]
    has_bodies: bool


def require_bounded_calls(proto: onnx.ModelProto) -> bool:
    """Return whether nodes of `proto` have bodies.

    Raises ModelError where a function calls itself, and where calls or bodies are too many, too deep, or do not fit.
    """
    functions = {(function.domain, function.name, function.overload): function for function in proto.functions}
    main = _content(proto.graph.node, functions, refers=False)
    contents = {key: _content(function.node, functions) for key, function in functions.items()}
    expanded: dict[_Key, int] = {}
    depth: dict[_Key, int] = {}
    for key in _callees_first(contents):
        calls = contents[key].calls
        expanded[key] = contents[key].nodes + sum(expanded[called] for called in calls)
        depth[key] = 1 + max((depth[called] for called in calls), default=0)
        if depth[key] > MOST_NESTED:
            raise ModelError(f"function calls are nested more than {MOST_NESTED} deep ({_shown(key)})")
    total = sum(expanded[called] for called in main.calls)
    most = max(MOST_EXPANDED, MOST_TIMES * (main.nodes + sum(content.nodes for content in contents.values())))
    if total > most:
        raise ModelError(f"its function calls expand to more than {most:,} nodes, the limit for a model of its size")
    return any(content.has_bodies for content in (main, *contents.values()))


def _content(
    nodes: Sequence[onnx.NodeProto], functions: Mapping[_Key, onnx.FunctionProto], *, refers: bool = True
) -> _FunctionContent:
    """Count `nodes` and their calls. `refers` says whether their attributes may refer to attributes of a caller.

    Raises ModelError for bodies that lie too deep in one another, for references where nobody calls, and for operands that a function
    does not take.
    """
    count, calls, has_bodies = 0, list[_Key](), False
    todo = [(nodes, 1)]
    while todo:
        level, depth = todo.pop()
        if depth > MOST_NESTED:
            raise ModelError(f"bodies of nodes are nested more than {MOST_NESTED} deep")
        count += len(level)
        for node in level:
            if functions and (key := (node.domain, node.op_type, node.overload)) in functions:
                _require_taken(node, functions[key])
                calls.append(key)
            attributes = node.attribute
            if not refers and any([attribute.ref_attr_name for attribute in attributes]):
                raise ModelError(f"a {node.op_type} outside of any function refers to an attribute of a caller")
            for body in _bodies(node) if attributes else ():
                _require_fitting(node, body)
                todo.append((body.node, depth + 1))
                has_bodies = True
    return _FunctionContent(count, calls, has_bodies)


def _require_taken(call: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    """Raise ModelError where `call` has more operands or results than the `function`."""
    given, taken = (len(call.input), len(call.output)), (len(function.input), len(function.output))
    if given[0] > taken[0] or given[1] > taken[1]:
        raise ModelError(
            f"a call of the function {function.name!r} has {given[0]} inputs and {given[1]} outputs, the function {taken[0]} and {taken[1]}"
        )


def _require_fitting(node: onnx.NodeProto, body: onnx.GraphProto) -> None:
    """Raise ModelError where `body` does not take what `node` gives it, or gives less than the node does."""
    given, outputs = len(node.input), len(node.output)
    taken = {
        "If": {0},
        "Loop": {max(given, 2)},
        "Scan": {given, given - 1},  # of opset 8, its first input is the length of sequences
    }.get(node.op_type)
    if taken is None or node.domain not in {"", "ai.onnx"}:
        return
    if len(body.input) not in taken or len(body.output) < outputs + (node.op_type == "Loop"):
        raise ModelError(
            f"a {node.op_type} has {given} inputs and {outputs} outputs, its body {len(body.input)} and {len(body.output)}"
        )


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_of_proto(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the bodies in it at any depth, in the order of `onnxtile.model.topology.main_graphs`."""
    yield graph
    for body in (body for node in graph.node for body in _bodies(node)):
        yield from graphs_of_proto(body)


def _callees_first(contents: Mapping[_Key, _FunctionContent]) -> list[_Key]:
    """Return the functions, each after those that it calls. Raises ModelError where one calls itself, through others or not."""
    try:
        return list(TopologicalSorter({key: content.calls for key, content in contents.items()}).static_order())
    except CycleError as error:
        called: _Key = error.args[1][0]
        raise ModelError(f"the function {_shown(called)} calls itself, and ONNX allows no recursion") from None


def _shown(key: _Key) -> str:
    domain, name, overload = key
    return f"{domain}::{name}{f':{overload}' if overload else ''}"


# Calls of local functions, written out in their places.


def inline_calls(model: ir.Model, wanted: Callable[[ir.Function], bool] | None = None) -> None:
    """Put the bodies of the `wanted` local functions (None: all) in the places of their calls (in place).

    Raises ValueError or onnx_ir's PassError where that cannot be; then `model` is used up.
    """
    from onnx_ir.passes.common import InlinePass  # the passes of onnx_ir take long to load

    class Inliner(InlinePass):
        """onnx_ir's pass, but for free names: that pass counts from 1 for each copy of a name, this goes on after the last copy."""

        def __init__(self, wanted: Callable[[ir.Function], bool] | None) -> None:
            super().__init__(wanted)
            self._nodes: dict[str, int] = {}
            self._values: dict[str, int] = {}

        def _instantiate_call(self, node: ir.Node, call_site_id: str) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
            """Copy the body of the function while its names are free ones, which the pass keeps."""
            body = list(_as_copied(self._functions[node.op_identifier()]))
            named: list[ir.Node | ir.Value] = [*body, *(value for renamed in body for value in renamed.outputs)]
            old_names = [renamed.name for renamed in named]
            for renamed in named:
                if isinstance(renamed, ir.Node):
                    renamed.name = _free(renamed.name or "node", self._used_node_names, self._nodes)
                else:
                    renamed.name = _free(renamed.name or "val", self._used_value_names, self._values)
            try:
                return super()._instantiate_call(node, call_site_id)
            finally:
                for renamed, name in zip(named, old_names, strict=True):
                    renamed.name = name

    Inliner(wanted)(model)


def _as_copied(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield `nodes` in the order in which the pass names their copies: each after the nodes of its bodies."""
    for node in nodes:
        for body in bodies_of(node):
            yield from _as_copied(body.graph)
        yield node


def _free(name: str, used: set[str], last: dict[str, int]) -> str:
    """Return `name`, or its first free copy: name_2, name_3 ... `last` has the last number of each name, and is changed."""
    copy = name
    while copy in used or copy in last:
        last[name] = last.get(name, 1) + 1
        copy = f"{name}_{last[name]}"
    last.setdefault(copy, 1)
    return copy


# Nodes in a function of their own.

_OPSET_VERSION = 1


def free_function(model: ir.Model, names: Iterable[str]) -> str:
    """Return the first of `names` that no function of onnxtile's domain has."""
    return next(name for name in names if (keys.DOMAIN, name, "") not in model.functions)


def read_from_outside(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the values that `nodes` and their bodies read and do not make, in the order of first use."""
    results = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in dependencies(node))
    return [value for value in read if value not in results]


def add_function(
    model: ir.Model,
    name: str,
    nodes: Sequence[ir.Node],
    operands: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    imports: Mapping[str, int],
    inline: Iterable[ir.Value] = (),
) -> ir.Function:
    """Add a function of onnxtile's domain to `model`, with `nodes` that stand in no graph; return it.

    The nodes and their bodies read the inputs of the function in the place of the `operands` of its call. Constants of `inline`, such as
    sizes, which compilers need there, are nodes in it.
    """
    constants = {value: constant_node(value) for value in inline}
    inside = {value: ir.Value(name=value.name, type=value.type, shape=value.shape) for value in operands}
    inputs = list(inside.values())
    inside.update((value, node.outputs[0]) for value, node in constants.items())
    for node in (*nodes, *(inner for outer in nodes for inner in nodes_inside(outer))):
        for index, operand in enumerate(node.inputs):
            if operand in inside:
                node.replace_input_with(index, inside[operand])
    graph = ir.Graph(inputs, outputs, nodes=[*constants.values(), *nodes], name=name, opset_imports=dict(imports))
    function = ir.Function(keys.DOMAIN, name, graph=graph, attributes=())
    model.functions[function.identifier()] = function
    model.opset_imports.setdefault(keys.DOMAIN, _OPSET_VERSION)
    return function


def constant_node(value: ir.Value, result: ir.Value | None = None) -> ir.Node:
    """Return the node that makes `result`, by default a new value, with the elements of the constant `value`."""
    assert value.const_value is not None
    inside = result or ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
    attribute = ir.AttrTensor("value", value.const_value)
    return ir.Node("", "Constant", [], [attribute], outputs=[inside], name=value.name)
