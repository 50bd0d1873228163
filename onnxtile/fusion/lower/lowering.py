"""The interfaces of plug-ins that lower a meta-op, and an operator of the model itself."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from enum import Enum
from functools import cached_property, lru_cache, partial
from itertools import permutations
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.fusion.lower.terms import (
    REDUCTIONS,
    Poly,
    Reader,
    TermsTooLarge,
    atom,
    constant,
    inputs_of,
    number,
    reduced,
    same,
    variable,
)
from onnxtile.fusion.lower.terms import (
    value_of as term_of,
)
from onnxtile.model.constants import Constants, constant_array
from onnxtile.operators.node_view import MICROSOFT, Dim, Dims
from onnxtile.operators.table import movement_of
from onnxtile.shapes.propagation import Propagation
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import HALVES
from onnxtile.verification.values import precision_of

_WITHOUT_FORMULA = frozenset({"Attention", "MultiHeadAttention", "QAttention"})
"""Operators that onnxruntime documents without a formula."""
FLOATS = frozenset({ir.DataType.FLOAT, *HALVES})
WITH_DOUBLE = FLOATS | {ir.DataType.DOUBLE}

PRECISION = {dtype: (1 if dtype in HALVES else 2) * precision_of(dtype.numpy()) for dtype in WITH_DOUBLE}
"""Relative tolerance of a product of two rounded constants; it separates 1.7 from 1.702, except in bfloat16, where both are equal."""


class Target(Enum):
    """Whose operators the calls become: the standard's, onnxruntime's, or floats between QuantizeLinear and DequantizeLinear."""

    ONNX = "onnx"
    ORT = "ort"
    QDQ = "qdq"


class NotLowered(Exception):
    """Why a call stays what it is; the reason is one line for the user."""


@contextmanager
def provable() -> Iterator[None]:
    """Raise NotLowered where the terms of a body are too large."""
    try:
        yield
    except TermsTooLarge:
        raise NotLowered("its body is too large to be proved") from None


@dataclass(frozen=True)
class Literal:
    """A constant that the lowered nodes need and the graph does not have. `dtype` is its element type in the graph."""

    array: Array
    dtype: ir.DataType
    hint: str

    @staticmethod
    def ints(*values: int, hint: str) -> Literal:
        """Return a list of int64."""
        return Literal(np.asarray(values, np.int64), ir.DataType.INT64, hint)


@dataclass(frozen=True)
class Made:
    """An output of one of the lowered nodes, or of the nodes that compute in an island."""

    step: int
    output: int = 0


Operand: TypeAlias = ir.Value | Literal | Made | None
Setting: TypeAlias = int | float | str | tuple[int, ...]


@dataclass(frozen=True)
class NewNode:
    """A node that takes part in place of the call; `since` is the opset of its domain that brought the operator."""

    op: str
    inputs: tuple[Operand, ...]
    attributes: Mapping[str, Setting] = field(default_factory=dict)
    domain: str = ""
    since: int = 1
    outputs: int = 1


@dataclass(frozen=True)
class Replacement:
    """What a call becomes: `steps` in order, and which of their results its outputs are. `main` is the step that it is named for.

    `plain` says that the steps are the nodes of the body: nothing is gained but the call. `twice` are inputs of which is proved that
    their last axis is one vector twice: a run of the call alone must feed such inputs. `rounds` says that the outputs are quantised anew:
    an element may be one step off. `claimed` says that a pattern file declares the operator, which no proof confirms.
    """

    steps: tuple[NewNode, ...]
    outputs: tuple[Made, ...]
    main: int = 0
    plain: bool = False
    twice: frozenset[ir.Value] = frozenset()
    rounds: bool = False
    claimed: bool = False

    @property
    def needs_run(self) -> bool:
        """Whether only a run decides if the steps mean the call: they are claimed, or an operator has no documented formula."""
        return self.claimed or any(step.domain == MICROSOFT and step.op in _WITHOUT_FORMULA for step in self.steps)

    @property
    def opset(self) -> int:
        """The first opset of the standard domain that has all the operators."""
        return max((step.since for step in self.steps if not step.domain), default=0)

    @staticmethod
    def one(
        op: str,
        inputs: tuple[Operand, ...],
        attributes: Mapping[str, Setting] | None = None,
        *,
        since: int,
        domain: str = "",
    ) -> Replacement:
        """Return the proof that the call is one node with one output."""
        return Replacement((NewNode(op, inputs, attributes or {}, domain, since if not domain else 1),), (Made(0),))


class NewNodes:
    """Collects the new nodes of a replacement."""

    def __init__(self) -> None:
        self.steps: list[NewNode] = []

    def add(self, step: NewNode) -> Made:
        """Append a node; return its first output."""
        self.steps.append(step)
        return Made(len(self.steps) - 1)

    def replacement(
        self, output: Made, main: Made, *, twice: frozenset[ir.Value] = frozenset(), rounds: bool = False
    ) -> Replacement:
        """Return what the call becomes, named for the node that makes `main`."""
        return Replacement(tuple(self.steps), (output,), main.step, twice=twice, rounds=rounds)


@dataclass(frozen=True)
class Argument:
    """An input of the call, or a result: the value (None where it has no name outside), and what is known of it.

    `array` holds the elements of a small constant.
    """

    value: ir.Value | None
    dtype: ir.DataType | None
    dims: Dims | None
    array: Array | None = None
    constant: bool = False


@dataclass(frozen=True)
class CallSite:
    """A call of a meta-op, and what is known of it."""

    function: ir.Function
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    functions: Mapping[ir.OperatorIdentifier, ir.Function] = field(repr=False)
    facts: LoweringFacts = field(repr=False)

    @cached_property
    def known(self) -> dict[ir.Value, Argument]:
        """What is known of the inputs of the function, and of the results of its Constants."""
        known = dict(zip(self.function.inputs, self.arguments, strict=True))
        return known | {
            node.outputs[0]: held(constant_array(node)) for node in self.function if node.op_type == "Constant"
        }

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes of the function that are no constants."""
        return [node for node in self.function if node.op_type != "Constant"]

    @cached_property
    def forms(self) -> list[Poly]:
        """What the outputs are, as polynomials in the inputs. Raises NotLowered where they are too large."""
        return self._read(loose=False)

    @cached_property
    def loose_forms(self) -> list[Poly]:
        """What the outputs are for an operator that computes in float whatever it is given. Raises NotLowered as `forms` does."""
        return self._read(loose=True)

    @property
    def is_half(self) -> bool:
        """Whether all inputs and results are of one type of half precision."""
        return self._native() in HALVES

    def _read(self, *, loose: bool) -> list[Poly]:
        arguments = [_form(i, argument) for i, argument in enumerate(self.arguments)]
        reader = Reader(self.functions, self._native(), loose=loose)
        with provable():
            return reader.read(self.function, arguments, [a.array for a in self.arguments])

    def _native(self) -> ir.DataType | None:
        dtypes = {argument.dtype for argument in (*self.arguments, *self.results)}
        return dtypes.pop() if len(dtypes) == 1 else None

    @property
    def dtype(self) -> ir.DataType:
        """The element type of the result. Raises NotLowered where it is unknown."""
        return known_dtype(self.results[0])

    def tolerance(self) -> float:
        """Return how far a constant may be off, relative to its size: the precision of the element type."""
        dtypes = {a.dtype for a in (*self.arguments, *self.results) if a.dtype in PRECISION}
        return max((PRECISION[d] for d in dtypes if d is not None), default=PRECISION[ir.DataType.DOUBLE])


_MOST_ELEMENTS = 16
"""Constants of no more elements than this are looked into: numbers, axes."""


class LoweringFacts:
    """What is known of the values of a model, by name: fused and opened, a model keeps the names of what it was."""

    def __init__(self, model: ir.Model, shapes: Shapes) -> None:
        self._shapes = shapes
        self._constants = Constants(model)
        self._model = model
        self._values: dict[str, list[ir.Value]] = {}
        for graph in model.graphs():
            results = (value for node in graph for value in node.outputs if value.name)
            for value in dict.fromkeys((*graph.inputs, *graph.initializers.values(), *results)):
                self._values.setdefault(value.name or "", []).append(value)

    def argument(self, value: ir.Value) -> Argument:
        """Return the type and shape of a value of the fused model."""
        named = self._values.get(value.name or "", ())
        if len(named) != 1:  # a name that several graphs use identifies no value, but these may agree
            types, shapes = (
                {self._shapes.dtype(named_value) for named_value in named},
                {self._shapes.dims(named_value) for named_value in named},
            )
            dtype = types.pop() if len(types) == 1 else value.dtype
            return Argument(value, dtype, shapes.pop() if len(shapes) == 1 else None)
        (known,) = named
        constant, dims, dtype = known in self._constants, self._shapes.dims(known), self._shapes.dtype(known)
        if constant and known.const_value is not None:
            dims = tuple(known.const_value.shape.numpy()) if dims is None else dims
            dtype = dtype or known.const_value.dtype
        is_small = dims is not None and _count(dims) <= _MOST_ELEMENTS
        if constant and is_small:
            return Argument(value, dtype, dims, self._constants.array(known), constant)
        computed = self._computed.number(known) if dtype is not None and (is_small or dims is None) else None
        array = None if computed is None or dtype is None else computed.astype(dtype.numpy())
        return Argument(value, dtype, dims, array, constant)

    @cached_property
    def _computed(self) -> Propagation:
        """The numbers that the model computes from shapes: the root of a head's size, the place where a vector is halved.

        They are no constants, for a shape may be any; where the sizes they come from are known, so are they.
        """
        return self._shapes.carried_on(self._model)

    def elements(self, value: ir.Value) -> Array:
        """Return the elements of a constant. Raises KeyError where it is none."""
        named = self._values.get(value.name or "", ())
        if len(named) != 1:
            raise KeyError(value.name)
        return self._constants.array(named[0])

    def elements_of(self, argument: Argument, refusal: str) -> Array:
        """Return the elements of a constant argument. Raises NotLowered with the `refusal` where it is none."""
        if argument.array is not None:
            return argument.array
        if not argument.constant or argument.value is None:
            raise NotLowered(refusal)
        return self.elements(argument.value)


def _count(dims: Iterable[object]) -> int:
    return math.prod(dim if isinstance(dim, int) else _MOST_ELEMENTS + 1 for dim in dims)


def _form(index: int, argument: Argument) -> Poly:
    if argument.array is not None and argument.array.size == 1:
        return constant(argument.array)
    return variable(index)


def known_dtype(argument: Argument) -> ir.DataType:
    """Return the element type. Raises NotLowered."""
    if argument.dtype is None:
        raise NotLowered(f"the element type of {_name(argument)} is not known")
    return argument.dtype


def known_dims(argument: Argument) -> Dims:
    """Return the dimensions. Raises NotLowered where the rank is unknown."""
    if argument.dims is None:
        raise NotLowered(f"the shape of {_name(argument)} is not known")
    return argument.dims


def require_type(operator: str, argument: Argument, admitted: frozenset[ir.DataType]) -> ir.DataType:
    """Return the element type of `argument`. Raises NotLowered where `operator` does not take it."""
    dtype = known_dtype(argument)
    if dtype not in admitted:
        raise NotLowered(f"{operator} does not take the element type {dtype.name.lower()}")
    return dtype


def require_shape(result: Argument, argument: Argument) -> Dims:
    """Return the dimensions of `argument`. Raises NotLowered unless `result` has as many, and the same as far as they are known."""
    dims, others = known_dims(argument), known_dims(result)
    if len(dims) != len(others) or any(not may_equal(a, b) for a, b in zip(dims, others, strict=True)):
        raise NotLowered(f"its result has the shape {shown(others)}, its input {shown(dims)}")
    return dims


def shown(dims: Dims) -> str:
    """Return dimensions for a reason; a symbol that a shape engine invented is a question mark."""
    return f"[{', '.join('?' if dim is None or _is_invented(dim) else str(dim) for dim in dims)}]"


def _is_invented(dim: Dim) -> bool:
    return isinstance(dim, str) and re.fullmatch(r"(unk__|_d|s|unknown_)?\d+", dim) is not None


def may_equal(a: Dim, b: Dim) -> bool:
    """Tell whether two sizes can be the same: all but two different numbers."""
    return a == b or not isinstance(a, int) or not isinstance(b, int)


def held(array: Array) -> Argument:
    """Return what is known of a constant in the body of a call."""
    return Argument(None, ir.DataType.from_numpy(array.dtype), array.shape, array, constant=True)


def operand_of(argument: Argument | None, hint: str = "constant") -> Operand:
    """Return an argument as an operand of a new node: its value, or what a Constant in the body holds."""
    if argument is None or argument.value is not None or argument.array is None:
        return None if argument is None else argument.value
    return Literal(argument.array, known_dtype(argument), hint)


def _name(argument: Argument) -> str:
    return repr(argument.value.name) if argument.value is not None else "an inner value"


class Lowering(ABC):
    """How one meta-op is lowered: one instance in one file of onnxtile/fusion/lowerings, named after the meta-op.

    All methods are pure: they look at the site, and change nothing. They raise NotLowered with the reason.
    """

    name: str

    @abstractmethod
    def to_onnx(self, site: CallSite) -> Replacement:
        """Return the standard operator that means the same."""

    def to_ort(self, site: CallSite) -> Replacement:
        """Return the operator that onnxruntime runs best and that means the same: by default the standard one."""
        return self.to_onnx(site)

    def to_qdq(self, site: CallSite) -> Replacement:
        """Return float operators between QuantizeLinear and DequantizeLinear nodes: none by default."""
        raise NotLowered(f"{site.function.name} does not compute on quantised tensors")

    def lowered(self, site: CallSite, target: Target) -> Replacement:
        """Return what the call becomes for `target`."""
        ways = {Target.ONNX: self.to_onnx, Target.ORT: self.to_ort, Target.QDQ: self.to_qdq}
        return ways[target](site)


# Proofs of meta-ops that are made of standard operators only: these are written in place of the call.


def inlined(site: CallSite, since: Mapping[str, int], *, main: int) -> Replacement:
    """Return the nodes of the body as they are; `since` has their operators. `main` counts the nodes that are no constants.

    Raises NotLowered where an attribute is a graph or a tensor, or an operator is not in `since`.
    """
    operands: dict[ir.Value | None, Operand] = {None: None}
    operands.update((value, operand_of(argument)) for value, argument in site.known.items())
    steps: list[NewNode] = []
    for node in site.nodes:
        if node.op_type not in since or node.domain:
            raise NotLowered(f"its body contains {node.op_type}")
        inputs = tuple(operands[value] for value in node.inputs)
        steps.append(
            NewNode(node.op_type, inputs, settings(node), since=since[node.op_type], outputs=len(node.outputs))
        )
        operands.update((value, Made(len(steps) - 1, i)) for i, value in enumerate(node.outputs))
    outputs = tuple(operands[value] for value in site.function.outputs)
    return Replacement(tuple(steps), tuple(output for output in outputs if isinstance(output, Made)), main, plain=True)


def settings(node: ir.Node) -> dict[str, Setting]:
    """Return the attributes of a node. Raises NotLowered where one is no number, text or list of integers."""
    held = {name: attribute.value for name, attribute in node.attributes.items()}
    for name, value in held.items():
        if not isinstance(value, (int, float, str)) and not _is_ints(value):
            raise NotLowered(f"the attribute {name} of {node.op_type} is no number")
    return held


def _is_ints(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(item, int) for item in value)


def value_of(x: Argument) -> ir.Value:
    """Return the value of an argument that has one."""
    if x.value is None:
        raise NotLowered("its input has no name")
    return x.value


# Plug-ins that lower an operator of the model itself, which no pattern fused.


@dataclass(frozen=True)
class OperatorSite:
    """A node, and what is known of what it reads and makes."""

    node: ir.Node
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    facts: LoweringFacts = field(repr=False)

    def argument(self, index: int) -> Argument | None:
        """Return the operand at `index`, None where it is left out."""
        argument = self.arguments[index] if index < len(self.arguments) else None
        return None if argument is None or (argument.value is None and argument.array is None) else argument

    def operand(self, index: int) -> Operand:
        """Return the operand at `index` for a new node, None where it is left out."""
        return operand_of(self.argument(index))

    def elements(self, index: int) -> Array:
        """Return the elements of the constant operand at `index`. Raises NotLowered where it is none."""
        argument, refusal = self.argument(index), f"the operand {index} of {self.node.op_type} is not constant"
        if argument is None or not argument.constant:
            raise NotLowered(refusal)
        return self.facts.elements_of(argument, refusal)


class OperatorLowering(ABC):
    """How one operator is lowered: one instance in one file of onnxtile/fusion/operator_lowerings.

    `name` is the operator, with its domain before it and two colons where that is not the standard's.
    """

    name: str

    @abstractmethod
    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return the float operator between DequantizeLinear and QuantizeLinear nodes. Raises NotLowered with the reason."""


# Float operators between DequantizeLinear and QuantizeLinear nodes, which stand for operators on stored tensors.

NUMBER = {(), (1,)}
"""The shapes of a scale or a zero point of a whole tensor."""


class QdqSteps(NewNodes):
    """Collects the nodes that stand for one operator: `stored` operands first, then `compute`, then `finished`."""

    def __init__(self, site: OperatorSite) -> None:
        super().__init__()
        self._site = site
        self._main = Made(0)

    def stored(self, index: int, scale: int, zero: int, *, axis: int | None = None) -> Made:
        """Dequantise the operand at `index`, whose scale and zero point are at `scale` and `zero`; several lie along `axis`."""
        operands = [self._site.operand(index), self._number(scale, axis), self._number(zero, axis)]
        several = axis is not None and any(not self._is_number(at) for at in (scale, zero))
        return self.dequantised(operands, axis=axis if several else None)

    def dequantised(self, operands: list[Operand], *, axis: int | None = None, block: int = 0) -> Made:
        """Dequantise a tensor with a scale and, where it is not None, a zero point."""
        given: dict[str, Setting] = {} if axis is None else {"axis": axis}
        since = 21 if block else 13 if axis is not None else 10
        if block:
            given["block_size"] = block
        inputs = tuple(operands if operands[2] is not None else operands[:2])
        return self.add(NewNode("DequantizeLinear", inputs, given, since=since))

    def quantised_as_it_comes(self, index: int) -> Made:
        """Quantise the float operand at `index` by its own range, and dequantise it."""
        quantised = self.add(NewNode("DynamicQuantizeLinear", (self._site.operand(index),), since=11, outputs=3))
        return self.dequantised([quantised, Made(quantised.step, 1), Made(quantised.step, 2)])

    def bias(self, index: int, *scales: int, factor: float = 1.0) -> Made | None:
        """Dequantise the bias at `index`: integers of 32 bits in units of the product of the constant `scales`; None without one."""
        if self._site.argument(index) is None:
            return None
        units: Array = np.full((), factor, np.float64)
        for scale in scales:
            units = units * self._site.elements(scale).astype(np.float64).ravel()
        whole = units.reshape(()) if units.size == 1 else units
        literal = Literal(whole.astype(np.float32), ir.DataType.FLOAT, "bias_scale")
        return self.dequantised([self._site.operand(index), literal, None], axis=0 if whole.ndim else None)

    def compute(
        self,
        operator: str,
        inputs: tuple[Operand, ...],
        settings: Mapping[str, Setting],
        *,
        since: int,
        domain: str = "",
    ) -> Made:
        """Add the float operator."""
        self._main = self.add(NewNode(operator, inputs, settings, domain, since))
        return self._main

    def summed(self, product: Made, index: int) -> Made:
        """Add the float operand at `index`, where there is one."""
        bias = self._site.operand(index)
        return product if bias is None else self.add(NewNode("Add", (product, bias), since=7))

    def finished(self, result: Made, scale: int | None = None, zero: int | None = None) -> Replacement:
        """Quantise the result with the scale and the zero point at these places, where there is a scale."""
        if scale is None or zero is None or self._site.argument(scale) is None:
            return self.replacement(result, self._main)
        operands = (result, self._number(scale, None), self._number(zero, None))
        inputs = operands if operands[2] is not None else operands[:2]
        stored = self.add(NewNode("QuantizeLinear", inputs, since=10))
        return self.replacement(stored, self._main, rounds=True)

    def _number(self, index: int, axis: int | None) -> Operand:
        """Return the scale or zero point at `index`; a list of one constant number as that number. Raises NotLowered."""
        argument = self._site.argument(index)
        if argument is None:
            return None
        if not self._is_number(index) and axis is None:
            raise NotLowered("a tensor has several scales or zero points where a float operator reads one")
        if argument.dims == (1,) and argument.constant:
            dtype = argument.dtype
            assert dtype is not None
            return Literal(self._site.elements(index).reshape(()), dtype, "quantisation")
        return operand_of(argument)

    def _is_number(self, index: int) -> bool:
        argument: Argument | None = self._site.argument(index)
        return argument is None or argument.dims in NUMBER


# What an operator computes, as terms: of the function by which onnx defines it, or of ours where onnx has none.
#
# A proof that a call is an operator compares both: the terms of the matched body, and those of the definition read with the operands of the
# call. A definition is read for operands of as many axes as it reduces or fewer, so what it flattens and reshapes stays as it is.


_DIVIDED = "f (x) => (y) { length = ReduceL2 (x) y = Div (x, length) }"
_PRODUCT = "f (a, b, c) => (y) { product = MatMul (a, b) y = Add (product, c) }"
_OURS = {"LpNormalization": _DIVIDED, "Gemm": _PRODUCT}
"""Definitions in the words of onnx's documentation, for p = 2, and for alpha = beta = 1 without transpositions."""


@lru_cache(256)
def definition(
    operator: str,
    version: int,
    operands: tuple[Poly, ...],
    settings: tuple[tuple[str, Setting], ...] = (),
    axes: tuple[int, ...] = (),
    casts: tuple[int, ...] = (),
) -> Poly:
    """Return what a standard operator computes of `operands`. Raises TermsTooLarge.

    It reduces over `axes`, whatever its attributes say. Of its Casts, only those to the element types `casts` are kept, the narrowest last.
    """
    function = _function(operator, version, len(operands), settings, casts[-1] if casts else onnx.TensorProto.FLOAT)
    given = [*operands, *[number(0.0)] * (len(function.inputs) - len(operands))]
    return _DefinitionReader(axes, casts).read(function, given, [None] * len(given))[0]


@lru_cache(256)
def _function(
    operator: str, version: int, count: int, settings: tuple[tuple[str, Setting], ...], dtype: int
) -> ir.Function:
    """Return the function that defines an operator with `count` operands of two axes and an element type."""
    node = onnx.helper.make_node(operator, [f"operand_{i}" for i in range(count)], ["result"])
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in settings)
    if operator in _OURS:
        proto = onnx.parser.parse_function(f'<domain: "definitions", opset_import: ["": {version}]> {_OURS[operator]}')
    else:
        proto = _of_onnx(node, version, dtype)
    del proto.output[1:]
    attributes = {attribute.name: attribute for attribute in node.attribute}
    for inner in proto.node:
        for attribute in inner.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(attributes[attribute.ref_attr_name])
                attribute.name = name
    return ir.from_proto(proto)


def _of_onnx(node: onnx.NodeProto, version: int, dtype: int) -> onnx.FunctionProto:
    schema: Any = onnx.defs.get_schema(node.op_type, version, "")
    if not schema.has_context_dependent_function:
        return onnx.FunctionProto.FromString(schema.function_body.SerializeToString())
    kind = onnx.helper.make_tensor_type_proto(dtype, ["rows", "columns"]).SerializeToString()
    body = schema.get_context_dependent_function(node.SerializeToString(), [kind] * len(node.input))
    return onnx.FunctionProto.FromString(body)


class _DefinitionReader(Reader):
    """Reads a definition: reductions are over the axes of the call."""

    def __init__(self, axes: tuple[int, ...], casts: tuple[int, ...]) -> None:
        super().__init__({})
        self._axes = axes
        self._casts = casts

    def _results(self, node: ir.Node, polys: dict[ir.Value, Poly], arrays: dict[ir.Value, Array]) -> list[Poly]:
        if node.op_type != "Cast" and movement_of(node) in {"renames", "converts"} and node.inputs[0] is not None:
            return [polys[node.inputs[0]]]
        if node.op_type in REDUCTIONS and node.inputs[0] is not None:
            return [reduced(node.op_type, self._axes, 1, polys[node.inputs[0]])]
        return super()._results(node, polys, arrays)

    def _cast(self, to: int, poly: Poly) -> Poly:
        return atom("Cast", to, poly) if to in self._casts and term_of(poly) is None else poly


def is_defined_as(site: CallSite, form: Poly, wanted: Callable[[], Poly]) -> bool:
    """Tell whether a call computes the terms `wanted`, where both are of rounded constants. Raises NotLowered where they are too large."""
    with provable():
        return same(form, wanted(), site.tolerance() + PRECISION[ir.DataType.FLOAT])


def require_operator(
    site: CallSite,
    computes: Callable[..., Poly],
    reason: str,
    *,
    count: int = 1,
) -> tuple[Argument, ...]:
    """Return the `count` inputs of which the call computes the terms that `computes` returns for them. Raises NotLowered with `reason`.

    The result has the element type of all of them, and the shape of the first where it is the only one.
    """
    read = sorted(inputs_of(site.forms[0]))
    if len(site.forms) != 1 or len(read) != count:
        raise NotLowered(reason)
    for order in permutations(read):
        if is_defined_as(site, site.forms[0], partial(computes, *map(variable, order))):
            operands = tuple(site.arguments[index] for index in order)
            if any(operand.dtype != site.results[0].dtype for operand in operands):
                raise NotLowered("its inputs and its result differ in their element types")
            if count == 1:
                require_shape(site.results[0], operands[0])
            return operands
    raise NotLowered(reason)
