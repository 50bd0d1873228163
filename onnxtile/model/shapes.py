"""Element types and shapes of all values, from several inference engines and, where they do not suffice, from a run.

No engine is complete. The graph is first inferred symbolically (onnx-shape-inference), then by onnx with data propagation; what is still
unknown is taken from what the file declares, and last from runs on sample inputs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx
import onnx_ir as ir
import onnx_shape_inference

from onnxtile.errors import ModelError
from onnxtile.model.check import skeleton
from onnxtile.model.dims import free_inputs
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.save import external_folder, raise_ir_version, to_bytes
from onnxtile.runtime import Session

Dim: TypeAlias = int | str | None
Dims: TypeAlias = tuple[Dim, ...]

_SAMPLES = 2
"""Runs whose shapes must agree: a shape that differs between them depends on the data."""


@dataclass(frozen=True)
class Shapes:
    """A side table beside a model: element type and dimensions of its values, in all its graphs."""

    _dtypes: Mapping[ir.Value, ir.DataType] = field(repr=False)
    _dims: Mapping[ir.Value, Dims] = field(repr=False)
    _reasons: Mapping[ir.Value, str] = field(default_factory=dict, repr=False)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type; None where it is unknown or the value is no tensor."""
        return self._dtypes.get(value)

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions: a number, the name of a symbol, or None where unknown; None as a whole where the rank is unknown."""
        return self._dims.get(value)

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the dimensions where all are known numbers, else None."""
        dims = self._dims.get(value)
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            return None
        return tuple(int(dim) for dim in dims if dim is not None)

    def reason(self, value: ir.Value) -> str:
        """Return why the shape of `value` is not known."""
        return self._reasons.get(value, "no shape inference knows it")


def resolve(model: ir.Model, *, run: bool = False) -> Shapes:
    """Return what can be known of the values of `model`, which stays as it is.

    With `run`, and every input's shape known, shapes that inference left open are read off runs on sample inputs.
    Raises ModelError where two engines contradict each other, and where onnxruntime refuses the model in a run.
    """
    originals = list(_values(model))
    declared = _declared(originals)
    copy = model.clone()
    values = list(_values(copy))
    for value in _computed(copy):
        value.shape = None
    for value in values:
        value.shape = _sane(value.shape)
    _infer_symbolic(copy)
    inferred = _declared(values)
    from_onnx = _infer_onnx(copy.clone())
    tables = [
        _Row(
            inferred[value],
            from_onnx.get(value.name or "", _NOTHING) if value.name in from_onnx else _NOTHING,
            declared[original],
        )
        for value, original in zip(values, originals, strict=True)
    ]
    merged = {original: _merge(original, row) for original, row in zip(originals, tables, strict=True)}
    dtypes = {value: known.dtype for value, known in merged.items() if known.dtype is not None}
    dims = {value: known.dims for value, known in merged.items() if known.dims is not None}
    shapes = Shapes(dtypes, dims)
    return _sampled(model, shapes) if run else shapes


@dataclass(frozen=True)
class _Known:
    dtype: ir.DataType | None
    dims: Dims | None


@dataclass(frozen=True)
class _Row:
    symbolic: _Known
    onnx: _Known
    declared: _Known


_NOTHING = _Known(None, None)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every value of all graphs once, in an order that a clone shares."""
    for graph in model.graphs():
        seen = dict.fromkeys((*graph.inputs, *graph.initializers.values()))
        yield from seen
        for node in graph:
            yield from node.outputs


def _computed(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        yield from node.outputs


def _declared(values: list[ir.Value]) -> dict[ir.Value, _Known]:
    return {value: _Known(_dtype(value), _dims(value)) for value in values}


def _dtype(value: ir.Value) -> ir.DataType | None:
    tensor = value.const_value
    if tensor is not None:
        return tensor.dtype
    return value.dtype if isinstance(value.type, ir.TensorType) else None


def _dims(value: ir.Value) -> Dims | None:
    tensor = value.const_value
    if tensor is not None:
        return tuple(int(size) for size in tensor.shape.numpy())
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def _sane(shape: ir.Shape | None) -> ir.Shape | None:
    """Drop the dimension names that cannot be read as an expression ("?", "unk__12:0"): they say nothing."""
    if shape is None or shape.is_static():
        return shape
    dims = (d if isinstance(d, int) or (d.value and re.fullmatch(r"[A-Za-z_]\w*", d.value)) else None for d in shape)
    return ir.Shape(list(dims))


def _infer_symbolic(model: ir.Model) -> None:
    """Infer in place. An operator that the engine stumbles over leaves what follows unknown, for the next engine."""
    logger = logging.getLogger("onnx_shape_inference")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        onnx_shape_inference.infer_symbolic_shapes(model, warn_on_missing=False)
    except (onnx_shape_inference.ShapeInferenceError, onnx_shape_inference.OpUsageError, ValueError) as error:
        raise ModelError(f"the shapes contradict each other: {' '.join(str(error).split())}") from None
    finally:
        logger.setLevel(level)


def _infer_onnx(model: ir.Model) -> dict[str, _Known]:
    """Return what onnx infers for the values of the main graph, by name; `model` is used up."""
    for value in _computed(model):
        value.shape = None
    try:
        proto = onnx.shape_inference.infer_shapes(skeleton(model), data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"the shapes contradict each other: {' '.join(str(error).split())}") from None
    return {info.name: _from_proto(info.type) for info in (*proto.graph.value_info, *proto.graph.output)}


def _from_proto(type_: onnx.TypeProto) -> _Known:
    if not type_.HasField("tensor_type"):
        return _NOTHING
    tensor = type_.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return _Known(dtype, None)
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim)
    return _Known(dtype, dims)


def _merge(value: ir.Value, row: _Row) -> _Known:
    """Return the union of what the engines know; what the file declares counts only where they know nothing."""
    known = row.symbolic
    for other in (row.onnx, row.declared):
        strict = other is row.onnx
        known = _Known(known.dtype or other.dtype, _merge_dims(value, known.dims, other.dims, strict=strict))
    return known


def _merge_dims(value: ir.Value, first: Dims | None, second: Dims | None, *, strict: bool) -> Dims | None:
    if first is None or second is None:
        return second if first is None else first
    numbers = [(a, b) for a, b in zip(first, second, strict=False) if isinstance(a, int) and isinstance(b, int)]
    if len(first) != len(second) or any(a != b for a, b in numbers):
        if strict:
            raise ModelError(f"shape inference contradicts itself on {value.name!r}: {list(first)} and {list(second)}")
        return first
    return tuple(_better(a, b) for a, b in zip(first, second, strict=True))


def _better(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) or (b is None and a is not None):
        return a
    return b if isinstance(b, int) or a is None else a


def _sampled(model: ir.Model, shapes: Shapes) -> Shapes:
    """Return `shapes` with what sample runs show of the main graph's values that inference left open."""
    open_ = [
        v for node in model.graph for v in node.outputs if v.name and shapes.sizes(v) is None and _may_be_tensor(v)
    ]
    if not open_ or any(shapes.sizes(value) is None for value in free_inputs(model)):
        return shapes
    session = _exposing(model, [value.name or "" for value in open_])
    runs = []
    for seed in range(_SAMPLES):
        found = session.run(sample_feeds(model, shapes.sizes, seed=seed), [value.name or "" for value in open_])
        runs.append({name: array for name, array in found.items() if hasattr(array, "shape")})
    dtypes, dims, reasons = dict(shapes._dtypes), dict(shapes._dims), dict(shapes._reasons)
    for value in open_:
        seen = [run[value.name or ""] for run in runs if value.name in run]
        if not seen:
            continue
        if len({array.shape for array in seen}) > 1:
            reasons[value] = (
                f"its shape depends on the data (runs gave {' and '.join(str(list(a.shape)) for a in seen)})"
            )
            continue
        dims[value] = tuple(int(size) for size in seen[0].shape)
        dtypes.setdefault(value, ir.DataType.from_numpy(seen[0].dtype))
    return Shapes(dtypes, dims, reasons)


def _may_be_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _exposing(model: ir.Model, names: list[str]) -> Session:
    """Return a session of `model` with the values `names` of its main graph as outputs."""
    copy = model.clone()
    raise_ir_version(copy)
    by_name = {value.name: value for node in copy.graph for value in node.outputs}
    present = {value.name for value in copy.graph.outputs}
    copy.graph.outputs.extend(by_name[name] for name in names if name not in present)
    return Session(to_bytes(copy), external=external_folder(model))
