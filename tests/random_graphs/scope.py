"""The scopes of a random model: its main graph, the bodies of If, Loop and Scan, and functions, each grown node by node."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
Form = Literal["tensor", "sequence", "optional"]
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
FLOAT, HALF, BRAIN, INT64, INT32, BOOL = (*FLOATS, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
UINT8, INT8 = TensorProto.UINT8, TensorProto.INT8
ORDINARY = {*FLOATS, INT64, INT32, BOOL, UINT8, INT8}
"""The element types that most operators take."""


@dataclass(frozen=True)
class Tensor:
    """A value that nodes may read: its element type, and its sizes, of which some may be open."""

    name: str
    dtype: int
    dims: tuple[Dim, ...]
    constant: bool = False
    form: Form = "tensor"
    """Whether it is a tensor, a sequence of such tensors, or an optional one."""

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        """Whether all sizes are numbers."""
        return all(isinstance(dim, int) for dim in self.dims)

    @property
    def size(self) -> int:
        """The number of elements, an open size counted as 3."""
        return math.prod(dim if isinstance(dim, int) else 3 for dim in self.dims)

    def at(self, axis: int) -> int:
        """Return the size of an axis that is not open."""
        found = self.dims[axis]
        assert isinstance(found, int)
        return found


@dataclass
class Shared:
    """The parts that all scopes of one model share."""

    random: Random
    opset: int
    ir_version: int
    steps: bool
    """Whether operators may stand in it that turn small differences into large ones."""
    deepest: int = 2
    """The deepest body."""
    further: bool = False
    """Whether there are numbers of few bits, strings, sequences and optional values, too."""
    drawing: bool = False
    """Whether there are random operators."""
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    domains: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    unknowns: int = 0


class Scope:
    """A graph that grows. `values` are the tensors that its nodes may read, those around it included."""

    def __init__(self, shared: Shared, outer: Scope | None = None, *, function: bool = False) -> None:
        self.shared = shared
        self.random = shared.random
        self.opset = shared.opset
        self.outer = outer
        self.is_function = function
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.own: list[Tensor] = []
        self.own_forms: list[Tensor] = []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[Tensor] = []
        self.counter = 0
        self._known: dict[tuple[int, tuple[int, ...], bytes], Tensor] = {}

    @property
    def values(self) -> list[Tensor]:
        """The tensors that a node may read."""
        around = [] if self.outer is None or self.is_function else self.outer.values
        return [*around, *self.own]

    @property
    def forms(self) -> list[Tensor]:
        """The sequences and optional values that a node may read."""
        around = [] if self.outer is None or self.is_function else self.outer.forms
        return [*around, *self.own_forms]

    def fresh(self) -> str:
        """Return a new name: the same names return in sibling bodies, and in functions."""
        self.counter += 1
        prefix = "v" if self.depth == 0 or self.is_function else "bcdefghij"[self.depth - 1]
        return f"{prefix}{self.counter}"

    def chance(self, probability: float) -> bool:
        """Return True as often as that."""
        return self.random.random() < probability

    def unknown(self) -> Dim:
        """Return a size that is known when the model runs."""
        self.shared.unknowns += 1
        return f"?{self.shared.unknowns}"

    def pick_form(self, form: Form) -> Tensor | None:
        """Return a sequence or an optional value."""
        found = [one for one in self.forms if one.form == form]
        return self.random.choice(found) if found else None

    def pick(
        self, fits: Callable[[Tensor], bool], *, recent: bool = True, types: Collection[int] = ORDINARY
    ) -> Tensor | None:
        """Return one of the tensors of `types` that fit, most often one of the last."""
        found = [one for one in self.values if one.dtype in types and fits(one)]
        if not found:
            return None
        if recent and self.chance(0.7):
            return self.random.choice(found[-4:])
        return self.random.choice(found)

    def give(self, dtype: int, dims: Sequence[Dim]) -> Tensor:
        """Add an input."""
        made = Tensor(self.fresh(), dtype, tuple(dims))
        self.inputs.append(made)
        self.own.append(made)
        return made

    def hand_in(self, dtype: int, dims: Sequence[Dim], form: Form) -> None:
        """Add an input that is a sequence, or an optional value, of tensors."""
        made = Tensor(self.fresh(), dtype, tuple(dims), form=form)
        self.inputs.append(made)
        self.own_forms.append(made)

    def put(
        self, op: str, inputs: Sequence[Tensor | str], results: Sequence[tuple[int, Sequence[Dim]]], **more: Any
    ) -> list[Tensor]:
        """Add a node with results of these types; `domain` and attributes may be given, too."""
        made = [Tensor(self.fresh(), dtype, tuple(dims)) for dtype, dims in results]
        if self.opset < 11:
            more |= self._counted_from_the_first(inputs, more)
        names = [one if isinstance(one, str) else one.name for one in inputs]
        self.nodes.append(
            helper.make_node(
                op,
                names,
                [one.name for one in made],
                name=self.random.choice(["", f"{op}_{len(self.nodes)}", f"{op}_{len(self.nodes)}"]),
                **more,
            )
        )
        self.own += made
        if more.get("domain"):
            self.shared.domains.add(more["domain"])
        return made

    @staticmethod
    def _counted_from_the_first(inputs: Sequence[Tensor | str], more: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes that name axes, without negative numbers: few operators took these before opset 11."""
        rank = inputs[0].rank if inputs and isinstance(inputs[0], Tensor) else 0
        found: dict[str, Any] = {}
        if "axis" in more:
            found["axis"] = more["axis"] % rank if more["axis"] < 0 else more["axis"]
        if "axes" in more:
            found["axes"] = [axis % rank if axis < 0 else axis for axis in more["axes"]]
        return found

    def one(self, op: str, inputs: Sequence[Tensor | str], dtype: int, dims: Sequence[Dim], **more: Any) -> Tensor:
        """Add a node with one result."""
        return self.put(op, inputs, [(dtype, dims)], **more)[0]

    def hold(self, op: str, inputs: Sequence[Tensor | str], item: Tensor, form: Form, **more: Any) -> Tensor:
        """Add a node whose result is a sequence, or an optional value, of tensors like `item`."""
        made = self.one(op, inputs, item.dtype, item.dims, **more)
        self.own.remove(made)
        held = replace(made, form=form)
        self.own_forms.append(held)
        self.shared.features.add(form)
        return held

    def constant(self, array: NDArray[Any], dtype: int | None = None) -> Tensor:
        """Return a constant in one of the forms that exporters write, or an equal one that is there."""
        array = np.asarray(array)
        code = helper.np_dtype_to_tensor_dtype(array.dtype) if dtype is None else dtype
        data = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
        key = (code, array.shape, data)
        known = self._find(key)
        if known is not None and self.chance(0.6):
            return known
        proto = tensor_proto(array, code, typed=self.chance(0.2))
        home = self._home()
        floats_only = self.opset < 9 and code not in FLOATS
        if (home.is_function or self.chance(0.2)) and not floats_only:
            home = self
            made = Tensor(self.fresh(), code, array.shape, constant=True)
            attribute = self._attribute(array, code, proto)
            self.nodes.append(helper.make_node("Constant", [], [made.name], **attribute))
        else:
            proto.name = home.fresh()
            home.initializers.append(proto)
            made = Tensor(proto.name, code, array.shape, constant=True)
        home._known[key] = made
        return made

    def _attribute(self, array: NDArray[Any], code: int, proto: onnx.TensorProto) -> dict[str, Any]:
        """Return the attribute of a Constant node that says `array`."""
        if self.opset >= 12 and array.ndim <= 1 and array.size and self.chance(0.4):
            one = "int" if code == INT64 else "float" if code == FLOAT else None
            if one is not None:
                return {f"value_{one}" if array.ndim == 0 else f"value_{one}s": array.tolist()}
        proto.name = self.random.choice(["", "value"])
        return {"value": proto}

    def _home(self) -> Scope:
        """Return a scope whose constants are seen here: its own, or one around it."""
        found = self
        while found.outer is not None and not found.is_function and self.chance(0.5):
            found = found.outer
        return found

    def _find(self, key: tuple[int, tuple[int, ...], bytes]) -> Tensor | None:
        if key in self._known or self.outer is None or self.is_function:
            return self._known.get(key)
        return self.outer._find(key)

    def ints(self, *numbers: int) -> Tensor:
        """Return a constant of one axis: sizes, axes, starts."""
        return self.constant(np.asarray(numbers, np.int64))

    def number(self, value: float, dtype: int) -> Tensor:
        """Return a scalar constant, now and then of one axis."""
        return self.constant(np.asarray(value if self.chance(0.8) else [value], np.float32), dtype)

    def weight(self, dims: Sequence[int], dtype: int = FLOAT, *, positive: bool = False) -> Tensor:
        """Return a constant of small multiples of 1/16, which every float type holds."""
        found = [round(self.random.gauss(0, 8)) for _ in range(math.prod(dims))]
        array = np.asarray(found, np.float32).reshape(tuple(dims)) / 16
        return self.constant(np.abs(array) + 0.5 if positive else array, dtype)

    def bytes_of(self, dims: Sequence[int], dtype: int) -> Tensor:
        """Return a constant of 8-bit integers."""
        low, kind = (0, np.uint8) if dtype == UINT8 else (-127, np.int8)
        found = [low + self.random.randrange(255) for _ in range(math.prod(dims))]
        return self.constant(np.asarray(found, kind).reshape(tuple(dims)))


def tensor_proto(array: NDArray[Any], code: int, *, typed: bool) -> onnx.TensorProto:
    """Return `array` as a tensor of the element type `code`, its numbers in the raw or in the typed field."""
    if code == TensorProto.STRING:
        words: Any = [str(one).encode() for one in array.flatten()]
        return helper.make_tensor("", code, array.shape, words)
    kind = helper.tensor_dtype_to_np_dtype(code)
    held = np.ascontiguousarray(array).astype(kind).reshape(array.shape)
    if typed:
        return helper.make_tensor("", code, array.shape, held.flatten().tolist())
    return numpy_helper.from_array(held)
