"""Dimensions bound by the user: `--dim batch=8` and `--shape pixels=1x3x640x640`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

from onnxtile.errors import UsageError
from onnxtile.model.size_formula import SizeRange


def bind(
    model: ir.Model, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]], *, least: int = 1
) -> dict[str, int]:
    """Give symbolic dimensions of `model` (in place) their sizes, and inputs their whole shapes, also over static ones.

    Sizes are counts of elements along an axis, at least `least`. A symbol that a whole shape binds is bound everywhere. Shapes written in
    the file that the new sizes make doubtful are dropped, for inference to find again. Returns the symbols that are bound. Raises
    UsageError for an unknown dimension or input, a wrong rank, a smaller size, or two sizes for one symbol.
    """
    if not dims and not shapes:
        return {}
    bound = dict(dims)
    inputs = {value.name or "": value for value in free_inputs(model)}
    for name, shape in shapes.items():
        for symbol, size in _symbols_of(_input(inputs, name), shape):
            if bound.setdefault(symbol, size) != size:
                raise UsageError(f"the dimension {symbol!r} is bound to {bound[symbol]} and to {size}")
    for name, size in (*dims.items(), *((name, size) for name, shape in shapes.items() for size in shape)):
        if not least <= size < 2**63:
            limit = f"at least {least}" if size < least else "at most 2^63 - 1, as ONNX writes it"
            raise UsageError(f"{name!r} cannot be bound to {size}: a dimension is {limit}")
    _require_known(dims, inputs.values())
    overridden = any(_overrides_static(inputs[name], shape) for name, shape in shapes.items())
    for value in inputs.values():
        value.shape = _bound_shape(value.shape, bound, drop=False)
    for name, shape in shapes.items():
        inputs[name].shape = ir.Shape(shape)
    for value in _computed_values(model):
        value.shape = _bound_shape(value.shape, bound, drop=overridden)
    return bound


def bind_shapes(
    model: ir.Model, shapes: Mapping[str, tuple[int | SizeRange, ...]]
) -> tuple[dict[str, int], dict[str, SizeRange]]:
    """Give inputs of `model` (in place) whole shapes in which sizes may be ranges; return the sizes and the ranges of named dimensions.

    A dimension without a name gets its size, or one of its input and axis, such as "x_3". Raises UsageError for an unknown input, a
    wrong rank, or two sizes for one name.
    """
    inputs = {value.name or "": value for value in free_inputs(model)}
    taken, said, is_new = set(symbols(inputs.values())), dict[str, int | SizeRange](), False
    for name, shape in shapes.items():
        value, dims = _input(inputs, name), list[int | str]()
        written = [None] * len(shape) if value.shape is None else list(value.shape)
        if len(written) != len(shape):
            raise UsageError(f"the input {name!r} has {len(written)} dimensions, not {len(shape)}")
        for axis, (dim, size) in enumerate(zip(written, shape, strict=True)):
            known = dim.value if isinstance(dim, ir.SymbolicDim) and re.search(r"\w", dim.value or "") else None
            is_new |= isinstance(dim, int) and dim != size
            word = known or _word(f"{name}_{axis}", taken)
            if known is not None or not isinstance(size, int):
                if said.setdefault(word, size) != size:
                    raise UsageError(f"the dimension {word!r} has two sizes: {said[word]} and {size}")
                taken.add(word)
            dims.append(size if known is None and isinstance(size, int) else word)
        value.shape = ir.Shape(dims)
    for value in _computed_values(model) if is_new else ():
        value.shape = None
    fixed = {name: size for name, size in said.items() if isinstance(size, int)}
    return fixed, {name: size for name, size in said.items() if not isinstance(size, int)}


def require_symbols(model: ir.Model, names: Iterable[str]) -> None:
    """Raise UsageError unless all `names` are symbolic dimensions of the inputs of `model`."""
    _require_known(names, free_inputs(model))


def formula_names(model: ir.Model) -> dict[str, str]:
    """Return the names in formulas of those dimensions of inputs whose own names no formula can have, such as "batch-size"."""
    taken, found = set(symbols(free_inputs(model))), {}
    for name in list(taken):
        is_sum = set(re.findall(r"[A-Za-z_]\w*", name)) <= taken
        if re.fullmatch(r"[A-Za-z_]\w*", name) or is_sum or not re.search(r"\w", name):
            continue
        found[name] = _word(name, taken)
        taken.add(found[name])
    return found


def _word(name: str, taken: Collection[str]) -> str:
    """Return a name for formulas that is like `name`, and is not `taken`."""
    word = re.sub(r"^(?=\d)|\W", "_", name)
    while word in taken:
        word += "_"
    return word


def rename_symbols(model: ir.Model, names: Mapping[str, str]) -> None:
    """Give symbolic dimensions of `model` (in place) other names."""
    for value in (*free_inputs(model), *_computed_values(model)) if names else ():
        if value.shape is not None and any(getattr(dim, "value", None) in names for dim in value.shape):
            dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            value.shape = ir.Shape([names.get(dim, dim) if isinstance(dim, str) else dim for dim in dims])


def free_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that must be fed: graph inputs without a default value."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def symbols(values: Iterable[ir.Value]) -> list[str]:
    """Return the names of the symbolic dimensions of `values`, each once, in order of appearance."""
    dims = (dim for value in values for dim in (value.shape or ()))
    return list(dict.fromkeys(d.value for d in dims if isinstance(d, ir.SymbolicDim) and d.value))


def _input(inputs: Mapping[str, ir.Value], name: str) -> ir.Value:
    if name in inputs:
        return inputs[name]
    near = difflib.get_close_matches(name, inputs, n=1)
    listed = f"its inputs are {', '.join(inputs) or 'none'}"
    raise UsageError(f"the model has no input {name!r}", hint=f"did you mean {near[0]!r}?" if near else listed)


def _symbols_of(value: ir.Value, shape: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    if value.shape is None:
        return
    if len(value.shape) != len(shape):
        raise UsageError(f"the input {value.name!r} has {len(value.shape)} dimensions, not {len(shape)}")
    for dim, size in zip(value.shape, shape, strict=True):
        if isinstance(dim, ir.SymbolicDim) and dim.value and dim.value.isidentifier():
            yield dim.value, size


def _require_known(dims: Iterable[str], inputs: Iterable[ir.Value]) -> None:
    known = symbols(inputs)
    for name in dims:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        listed = (
            f"its dimensions are {', '.join(known)}"
            if known
            else "all its dimensions are static; --shape INPUT=... overrides one"
        )
        raise UsageError(f"the model has no dimension {name!r}", hint=f"did you mean {near[0]!r}?" if near else listed)


def _overrides_static(value: ir.Value, shape: tuple[int, ...]) -> bool:
    return value.shape is not None and any(
        isinstance(old, int) and old != new for old, new in zip(value.shape, shape, strict=True)
    )


def _computed_values(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        yield from node.outputs
    for graph in model.graph.subgraphs():
        yield from (value for value in graph.inputs if value not in model.graph.inputs)


def _bound_shape(shape: ir.Shape | None, bound: Mapping[str, int], *, drop: bool) -> ir.Shape | None:
    if shape is None or drop:
        return None
    return ir.Shape([_bound_dim(dim, bound) for dim in shape])


def _bound_dim(dim: int | ir.SymbolicDim, bound: Mapping[str, int]) -> int | ir.SymbolicDim | None:
    if isinstance(dim, int) or not dim.value:
        return dim
    if dim.value in bound:
        return bound[dim.value]
    return _evaluated(dim, bound) if set(re.findall(r"\w+", dim.value)) & bound.keys() else dim


def _evaluated(dim: ir.SymbolicDim, bound: Mapping[str, int]) -> int | ir.SymbolicDim | None:
    """Return the value of an expression of bound symbols, such as "2*seq"; None where it cannot be read, so that inference decides."""
    try:
        return dim.evaluate(bound)
    except (ValueError, ArithmeticError, TypeError):
        return None
