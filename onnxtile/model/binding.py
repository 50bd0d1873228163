"""Dimensions bound by the user: `--dim batch=8` and `--shape pixels=1x3x640x640`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property

import onnx_ir as ir

from onnxtile.model.formula import SizeRange
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError, nearest


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
        for symbol, size in _symbols_of(input_named(name, inputs), shape):
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
    taken, size_of, is_new = set(symbols(inputs.values())), dict[str, int | SizeRange](), False
    for name, shape in shapes.items():
        value, dims = input_named(name, inputs), list[int | str]()
        written = [None] * len(shape) if value.shape is None else list(value.shape)
        if len(written) != len(shape):
            raise UsageError(f"the input {name!r} has {len(written)} dimensions, not {len(shape)}")
        for axis, (dim, size) in enumerate(zip(written, shape, strict=True)):
            known = dim.value if isinstance(dim, ir.SymbolicDim) and re.search(r"\w", dim.value or "") else None
            is_new |= isinstance(dim, int) and dim != size
            word = known or _word(f"{name}_{axis}", taken)
            if known is not None or not isinstance(size, int):
                if size_of.setdefault(word, size) != size:
                    raise UsageError(f"the dimension {word!r} has two sizes: {size_of[word]} and {size}")
                taken.add(word)
            dims.append(size if known is None and isinstance(size, int) else word)
        value.shape = ir.Shape(dims)
    for value in _computed_values(model) if is_new else ():
        value.shape = None
    fixed = {name: size for name, size in size_of.items() if isinstance(size, int)}
    return fixed, {name: size for name, size in size_of.items() if not isinstance(size, int)}


def require_symbols(model: ir.Model, names: Iterable[str]) -> None:
    """Raise UsageError unless all `names` are symbolic dimensions of the inputs of `model`."""
    _require_known(names, free_inputs(model))


def formula_names(model: ir.Model) -> dict[str, str]:
    """Return the names in formulas of those dimensions of inputs whose own names no formula can have, such as "batch-size"."""
    taken, words = set(symbols(free_inputs(model))), {}
    for name in list(taken):
        is_sum = set(re.findall(r"[A-Za-z_]\w*", name)) <= taken
        if re.fullmatch(r"[A-Za-z_]\w*", name) or is_sum or not re.search(r"\w", name):
            continue
        words[name] = _word(name, taken)
        taken.add(words[name])
    return words


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


def input_named(name: str, inputs: Mapping[str, ir.Value]) -> ir.Value:
    """Return the input `name`. Raises UsageError where a model with these `inputs` has none."""
    if name in inputs:
        return inputs[name]
    hint = nearest(name, inputs, f"its inputs are {', '.join(inputs) or 'none'}")
    raise UsageError(f"the model has no input {name!r}", hint=hint)


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
        static = "all its dimensions are static; --shape INPUT=... overrides one"
        hint = nearest(name, known, f"its dimensions are {', '.join(known)}" if known else static)
        raise UsageError(f"the model has no dimension {name!r}", hint=hint)


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


# Open dimensions of a model's inputs, and the options that give them sizes.


@dataclass(frozen=True)
class Unbound:
    """`symbols` are the sizes that have a name; `options` bind all there is: by that name, or whole shapes where a size has none."""

    symbols: frozenset[str] = frozenset()
    options: str = ""

    @classmethod
    def from_inputs(cls, inputs: Iterable[ir.Value]) -> Unbound:
        """Return the open dimensions of `inputs`. A name without a letter or digit, such as "?", counts as no name."""
        known = [(value.name or "", value.shape) for value in inputs if value.shape is not None]
        named = {name: sorted(_symbols(shape)) for name, shape in known if not _has_nameless(shape)}
        shapes = [_shape(name, shape) for name, shape in known if _has_nameless(shape)]
        dims = binding(sorted({symbol for symbols in named.values() for symbol in symbols}))
        symbols = frozenset(symbol for _, shape in known for symbol in _symbols(shape))
        return cls(symbols, " ".join(option for option in (dims, *shapes) if option))

    def words(self, dim: object) -> list[str]:
        """Return the symbols and the other words in a size, which may be an expression; none in a number."""
        return self._pattern.findall(dim) if isinstance(dim, str) else []

    def bindable(self, dim: object) -> list[str]:
        """Return the symbols that a size is made of."""
        return [word for word in self.words(dim) if word in self.symbols]

    def covers(self, dim: str) -> bool:
        """Return whether a size is made of symbols, and of nothing else that is not known."""
        words = [word for word in self.words(dim) if not word.isdecimal()]
        return bool(words) and all(word in self.symbols for word in words)

    def once_bound(self, reason: str) -> str:
        """Return `reason`, why something is not known, and the options that may take it away."""
        return f"{reason}; it may be once all is bound with {self.options}" if self.options else reason

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # A name may hold dots and the like, as in p2o.DynamicDimension.0.
        names = "".join(f"{re.escape(name)}|" for name in sorted(self.symbols, key=len, reverse=True))
        return re.compile(rf"(?<!\w)(?:{names}\w+)(?!\w)")


@dataclass(frozen=True)
class LeadingSizes:
    """The sizes of 1 that a verb takes for dimensions which a file leaves open, where only the first dimensions of inputs are open.

    `dims` has those with a name, `shapes` the whole shapes of inputs whose first dimension has none.
    """

    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def options(self) -> str:
        """The options that give the same sizes."""
        shapes = (f"--shape {shlex.quote(f'{name}={_times(shape)}')}" for name, shape in self.shapes.items())
        return " ".join([*(f"--dim {shlex.quote(f'{name}={size}')}" for name, size in self.dims.items()), *shapes])

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by dimension; one without a name is called as "x[0]" is, by its input."""
        return {**self.dims, **{f"{name}[0]": shape[0] for name, shape in self.shapes.items()}}

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{sizes}, which the file leaves open ({self.options})"


def bind_leading(model: ir.Model) -> LeadingSizes | None:
    """Give the open dimensions of the inputs of `model` (in place) the size 1, where each is the first of its input; return them.

    None, with `model` as it was, where no dimension is open, another dimension is, or the rank of an input is not known.
    """
    inputs = [value for value in free_inputs(model) if isinstance(value.type, ir.TensorType)]
    written = {value.name or "": list(value.shape) for value in inputs if value.shape is not None}
    open_ = {name: shape for name, shape in written.items() if not all(isinstance(dim, int) for dim in shape)}
    is_leading = all(isinstance(dim, int) for shape in open_.values() for dim in shape[1:])
    if not open_ or not is_leading or len(written) < len(inputs):
        return None
    dims = {_name(shape[0]): 1 for shape in open_.values() if _name(shape[0])}
    nameless = {name: shape for name, shape in open_.items() if not _name(shape[0])}
    shapes = {name: (1, *(dim for dim in shape[1:] if isinstance(dim, int))) for name, shape in nameless.items()}
    bind(model, dims, shapes)
    return LeadingSizes(dims, shapes)


def _times(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def missing_sizes(inputs: Iterable[ir.Value]) -> ModelError:
    """Return the error to raise where `inputs` need sizes. It names each open dimension; its hint is a line to paste."""
    values = list(inputs)
    listed = ", ".join(f"{value.name!r} {_listed(value.shape)}" for value in values)
    return ModelError(f"sizes of inputs are not known: {listed}", hint=f"give them, for example {example(values)}")


def require_sizes(model: ir.Model, sizes: Callable[[ir.Value], object]) -> None:
    """Raise ModelError where `sizes` gives None for an input of `model` that is a tensor and must be fed."""
    left = [v for v in free_inputs(model) if isinstance(v.type, ir.TensorType) and sizes(v) is None]
    if left:
        raise missing_sizes(left)


def example(inputs: Iterable[ir.Value]) -> str:
    """Return options, ready to paste, that give `inputs` sizes: each dimension of one name the same, each shape of the right rank."""
    values = list(inputs)
    named: dict[str, int] = {}
    for value in values:
        for axis, dim in enumerate(value.shape or ()):
            if _name(dim):
                named.setdefault(_name(dim), _example_size(value, axis))
    shapes = [value for value in values if value.shape is None or _has_nameless(value.shape)]
    bound = {_name(dim) for value in shapes for dim in value.shape or ()}
    dims = [f"--dim {shlex.quote(f'{symbol}={size}')}" for symbol, size in named.items() if symbol not in bound]
    return " ".join([*dims, *(f"--shape {shlex.quote(_example_shape(value, named))}" for value in shapes)])


def _example_shape(value: ir.Value, named: Mapping[str, int]) -> str:
    if value.shape is None:
        return f"{value.name}=SIZES"
    known = enumerate(value.shape)
    sizes = [dim if isinstance(dim, int) else named.get(_name(dim)) or _example_size(value, at) for at, dim in known]
    return f"{value.name}={'x'.join(map(str, sizes))}"


def _example_size(value: ir.Value, axis: int) -> int:
    """Return a size that is usual: a batch of 1, an image of 224 whose height and width are open, 64 tokens, 512 samples of a sound."""
    assert value.shape is not None
    rank = len(value.shape)
    is_last = axis == rank - 1
    if axis == 0 or (not is_last and not _name(value.shape[axis]) and rank < 4):
        return 1
    if rank == 4 and axis > 1 and not any(isinstance(dim, int) for dim in value.shape[2:]):
        return 224
    return 512 if is_last and value.dtype is not None and value.dtype.is_floating_point() else 64


def _name(dim: int | ir.SymbolicDim) -> str:
    """Return the name of a dimension; empty for a number, and for a name without a letter or digit, such as "?"."""
    name = "" if isinstance(dim, int) else dim.value or ""
    return name if re.search(r"\w", name) else ""


def _listed(shape: ir.Shape | None) -> str:
    if shape is None:
        return "of any rank"
    return f"[{', '.join(str(dim) if isinstance(dim, int) else _name(dim) or '?' for dim in shape)}]"


def binding(symbols: Iterable[str]) -> str:
    """Return the options that bind `symbols`."""
    return " ".join(f"--dim {shlex.quote(f'{symbol}=N')}" for symbol in dict.fromkeys(symbols))


def _symbols(shape: ir.Shape) -> list[str]:
    return [name for name in map(_name, shape) if name]


def _has_nameless(shape: ir.Shape) -> bool:
    return len(_symbols(shape)) < sum(isinstance(dim, ir.SymbolicDim) for dim in shape)


def _shape(name: str, shape: ir.Shape) -> str:
    sizes = "x".join(str(dim) if isinstance(dim, int) else "N" for dim in shape)
    return f"--shape {shlex.quote(f'{name}={sizes}')}"
