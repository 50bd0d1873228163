"""Verifies each tiled node by running it, and the node that it replaces, on random inputs.

A sum in another order rounds otherwise, so the two are not compared with each other: both are compared with a float64
contraction, and the tiles may be no more than twice as far from it as the original is. One set of inputs on which they are further off is
no verdict: then the worst of both on sixteen more decides.

Tiles of 16 bits are run as hardware computes that keeps each tensor in its type: the result of each node is rounded to it. A chain of
n additions then rounds its total n times, which takes it about sqrt(n) units in the last place from the truth; that much is tolerated, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import product
from math import prod, sqrt
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.model.exact_products import exact_session
from onnxtile.model.feeds import require_array
from onnxtile.model.submodel import assembled, bare_node, tensor_type
from onnxtile.operators.node_view import KnownConstants
from onnxtile.operators.reads import SlidingAxis
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.long_work import Progress, counted, silent
from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.contraction import (
    BYTES,
    FLOATS,
    INTEGERS,
    Contraction,
    PackedFactor,
    TensorOperand,
)
from onnxtile.tiling.result import TiledNode
from onnxtile.tiling.writer import roundings
from onnxtile.verification.rounding import HALVES
from onnxtile.verification.values import precision_of

# A convolution in float64, element of the kernel by element of the kernel.


def convolve(contraction: Contraction, x: Array, w: Array) -> Array:
    """Return `x` (batch, channels, spatial ...) convolved with `w`, both float64, without the bias."""
    slides = [slide.over(size) for slide, size in zip(contraction.sliding, x.shape[2:], strict=True)]
    outs = [slide.out for slide in slides if isinstance(slide.out, int)]
    batch, groups = x.shape[0], contraction.groups
    channels, filters = x.shape[1] // groups, contraction.filters
    assert isinstance(filters, int)
    grouped = x.reshape(batch, groups, channels, *x.shape[2:])
    # Weights as (groups, output channels, input channels, kernel ...).
    weights = w.reshape(groups, -1, *w.shape[1:])
    weights = weights.swapaxes(1, 2) if contraction.groups_in_k else weights
    result = np.zeros((batch, groups, weights.shape[1], *outs))
    for offset in product(*(range(slide.kernel) for slide in slides)):
        pairs = [_meeting(slide, j) for slide, j in zip(slides, offset, strict=True)]
        sources: tuple[Any, ...] = (..., *(source for source, _ in pairs))
        targets: tuple[Any, ...] = (..., *(target for _, target in pairs))
        element: tuple[Any, ...] = (..., *offset)
        part = grouped[sources]
        sizes = part.shape[3:]
        flat = weights[element] @ part.reshape(batch, groups, channels, prod(sizes))
        result[targets] += flat.reshape(batch, groups, filters, *sizes)
    return result.reshape(batch, -1, *outs)


def _meeting(slide: SlidingAxis, j: int) -> tuple[slice, slice]:
    """Return which inputs the kernel's element `j` takes to which outputs, as ranges of the same length."""
    assert isinstance(slide.size, int) and isinstance(slide.out, int)
    shift = j * slide.dilation - slide.before
    few, many = (slide.size, slide.out) if slide.transposed else (slide.out, slide.size)
    # Element i of the few meets element i·stride + shift of the many, where that exists.
    first = max(-(shift // slide.stride), 0)
    count = max(min((many - 1 - shift) // slide.stride, few - 1) - first + 1, 0)
    start = first * slide.stride + shift
    few_slice = slice(first, first + count)
    other = slice(start, start + (count - 1) * slide.stride + 1, slide.stride) if count else slice(0, 0)
    return (few_slice, other) if slide.transposed else (other, few_slice)


# Runs a node, or the tiles that replace it, outside its model; constants are fed, so that no weight is copied into a file.

_PART = 500
"""Nodes in one session. onnxruntime loads n nodes that read n inputs in about n² steps: 9,283 nodes of AlexNet took 5.1 s in one
piece, 0.9 s in pieces of 1,000, 0.7 s in pieces of 500 or less."""


@dataclass(frozen=True)
class _NodeSession:
    """Consecutive nodes in a session of their own, and the constants among their inputs."""

    session: Session
    constants: tuple[ir.Value, ...] = ()
    sums: tuple[ir.Node, ...] = ()
    """Its Sums of 16 bits."""

    def run(self, trials: Iterable[dict[str, Array]]) -> None:
        """Add the results of these nodes to the values of each trial. The blocks of constants are cut once for all of them."""
        held = {name_of(value): np.asarray(held_by(value), order="C") for value in self.constants}
        names = [feed.name for feed in self.session.inputs]
        for known in trials:
            known.update(self.session.run({name: held[name] if name in held else known[name] for name in names}))
            for node in self.sums:
                name = name_of(node.outputs[0])
                known[name] = _in_range(known[name], [known[name_of(value)] for value in _inputs([node])])


@dataclass(frozen=True)
class NodeRun:
    """A part of the model that makes `output`: the same nodes in the same order, in as many sessions as load fast."""

    parts: tuple[_NodeSession, ...]
    output: str

    @classmethod
    def of_original(cls, site: TiledNode, opset: int) -> NodeRun:
        """Return the nodes as they were. Raises ModelError where onnxruntime has no kernel for one."""
        inputs = {name: tensor_type(dtype, dims) for name, (_, dtype, dims) in outer_values(site.contraction).items()}
        output = site.originals[-1].output[0]
        return cls((_NodeSession(_session(assembled(site.originals, inputs, [output], _opsets(opset)))),), output)

    @classmethod
    def of_tiles(cls, site: TiledNode, opset: int) -> NodeRun:
        """Return the tiles that replace the node. Raises ModelError where onnxruntime has no kernel for one.

        With 16 bits, no node is in one session with a node that it reads: onnxruntime computes in float32, and would not round or
        overflow between the two, as hardware does that keeps each tensor in the type that the model says.
        """
        levels = _levels(site.emitted) if site.contraction.dtype in HALVES else [list(site.emitted)]
        runs = [level[start : start + _PART] for level in levels for start in range(0, len(level), _PART)]
        result = site.emitted[-1].outputs[0]
        # A value that a later session reads is an output of the one that makes it.
        last_read = {value: at for at, run in enumerate(runs) for value in _inputs(run)} | {result: len(runs)}
        leaving = [{value for value in _results(run) if last_read.get(value, -1) > at} for at, run in enumerate(runs)]
        results = frozenset(_results(site.emitted))
        parts = (_part(site, run, (results, values), opset) for run, values in zip(runs, leaving, strict=True))
        return cls(tuple(parts), name_of(result))

    def run(self, trials: Iterable[Mapping[str, Array]]) -> list[Array]:
        """Return the output of each trial, which holds the operands, also those that this part does not read."""
        known = [dict(feeds) for feeds in trials]
        for part in self.parts:
            part.run(known)
        return [values[self.output] for values in known]


def _part(
    site: TiledNode, nodes: Sequence[ir.Node], values: tuple[Set[ir.Value], Set[ir.Value]], opset: int
) -> _NodeSession:
    """Return some of the nodes of a site in a session of their own; `values` are those that all its nodes make, and its outputs."""
    (results, leaving), outer = values, outer_values(site.contraction)
    # The sizes for Split and Slice are initializers, as hardware compilers need.
    cutting = [value for node in nodes if node.op_type in {"Split", "Slice"} for value in node.inputs[1:]]
    sizes = [value for value in dict.fromkeys(cutting) if value is not None]
    inside = {*_results(nodes), *sizes}
    fed = [value for value in dict.fromkeys(_inputs(nodes)) if value not in inside]
    # By name where it comes from outside: the value itself may be gone from the model, or its name passed on.
    blocks = [value for value in fed if value not in results and value.name not in outer]

    def kind(value: ir.Value) -> onnx.TypeProto:
        dtype = value.dtype or site.contraction.dtype
        if value in results:
            return tensor_type(dtype, None)
        if value.name in outer:
            return tensor_type(*outer[value.name][1:])
        return tensor_type(dtype, held_by(value).shape)

    session = _session(
        assembled(
            (bare_node(node) for node in nodes),
            {name_of(value): kind(value) for value in fed},
            [name_of(value) for value in _results(nodes) if value in leaving],
            _opsets(opset),
            constants=[onnx.numpy_helper.from_array(held_by(value), value.name) for value in sizes],
        )
    )
    sums = [node for node in nodes if node.op_type == "Sum" and node.outputs[0].dtype in HALVES]
    return _NodeSession(session, tuple(blocks), tuple(sums))


def outer_values(contraction: Contraction) -> dict[str, tuple[ir.Value, ir.DataType, tuple[int, ...]]]:
    """Return operands, bias and scales by name, with their type and dimensions in the model, symbols replaced by a number.

    An axis along which windows slide gets three times the elements that the kernel reaches over.
    """
    outer = [(tensor.value, *tensor.held) for tensor in contraction.tensors]
    size, windows = _free_size(contraction), _window_sizes(contraction)
    free = [windows if value is contraction.left.value else {} for value, _, _ in outer]
    return {
        name_of(value): (
            value,
            dtype,
            tuple(dim if isinstance(dim, int) else sizes.get(axis, size) for axis, dim in enumerate(dims)),
        )
        for (value, dtype, dims), sizes in zip(outer, free, strict=True)
    }


def _window_sizes(contraction: Contraction) -> dict[int | None, int]:
    """Return for each axis of the left operand along which windows slide a size to run with where none is known."""
    pairs = zip(contraction.left_axes, contraction.sliding, strict=True)
    return {axis: 3 * sliding.reach for axis, sliding in pairs} if contraction.windows else {}


def _free_size(contraction: Contraction) -> int:
    """Return the size for any other axis that only a run decides: that of the axis of the other batch that it meets, else 3.

    It is the same for all symbols, so that those which must be equal are; 1, which broadcasts to any, where it meets several.
    """
    left, right, _ = contraction.batches
    pairs = list(zip(left[::-1], right[::-1], strict=False))
    met = {b for a, b in (*pairs, *((b, a) for a, b in pairs)) if not isinstance(a, int) and isinstance(b, int)} - {1}
    return (met.pop() if met else 3) if len(met) < 2 else 1


def held_by(value: ir.Value) -> Array:
    """Return the elements of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()


def name_of(value: ir.Value) -> str:
    """Return the name of a value, which every value of a tiled model has."""
    assert value.name is not None
    return value.name


def _levels(nodes: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Return `nodes` in groups, each node as early as possible; no node of a group reads another one of it."""
    level: dict[ir.Node | None, int] = {}
    groups: list[list[ir.Node]] = []
    for node in nodes:
        level[node] = max((level.get(value.producer(), -1) for value in _inputs([node])), default=-1) + 1
        groups += [[]] if level[node] == len(groups) else []
        groups[level[node]].append(node)
    return groups


def _in_range(total: Array, terms: Sequence[Array]) -> Array:
    """Return a Sum of 16 bits, rounded once; where adding term after term leaves the range, the result of that."""
    with np.errstate(over="ignore", invalid="ignore"):
        running = terms[0]
        for term in terms[1:]:
            running = running + term
    return np.where(np.isfinite(running), total, running)


def _results(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [value for node in nodes for value in node.outputs]


def _inputs(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [value for node in nodes for value in node.inputs if value is not None]


def _session(model: onnx.ModelProto) -> Session:
    try:
        return exact_session(model.SerializeToString(), model)
    except ModelError as error:
        raise ModelError(error.message, hint="to tile without running, use --no-verify") from None


def _opsets(opset: int) -> dict[str, int]:
    return {"": opset, "com.microsoft": 1}


# The result of a contraction in float64, or exact for integers, computed by numpy.

ConstantFactors: TypeAlias = dict[tuple[str, bool], tuple[Array, Array]]
"""Constant factors in float64, and their squares, by name and whether they are transposed; one trial keeps them for the next."""


@dataclass(frozen=True)
class Reference:
    """The result of a contraction in float64, and the size of each of its elements."""

    result: Array
    size: Array
    half: float = 0.0
    """Half a step of quantization, by which a rounded result is off its exact value at most."""

    @classmethod
    def from_contraction(cls, contraction: Contraction, feeds: Mapping[str, Array], kept: ConstantFactors) -> Reference:
        """Return the result of `contraction` on these operands, by name; constants are as they were when `kept` took them up.

        The result of a quantised island is that before it is rounded, saturated where its type ends.
        """
        with np.errstate(all="ignore"):
            factors = (contraction.left, contraction.right)
            (a, aa), (b, bb) = (_squared(operand, feeds, kept) for operand in factors)
            c = _added(contraction, feeds, np.float64)
            alpha = float(np.float32(contraction.alpha))
            result = alpha * _contracted(contraction, a, b) + c
            size = np.sqrt(alpha**2 * _contracted(contraction, aa, bb) + c * c)
            how = contraction.requantize
            if how is None:
                return cls(result, np.maximum(np.abs(result), size))
            first, second, *third = (feeds[name_of(scale.value)].astype(np.float64) for scale in how.scales)
            factor = first.reshape(()) * _per_column(contraction, second)
            factor = factor / third[0].reshape(()) if third else factor
            result, size = result * factor, size * np.abs(factor)
            size = np.maximum(np.abs(result), size)
        if how.y_zero is None:
            return cls(result, size)
        bounds = np.iinfo(how.dtype.numpy())
        shifted = result + float(feeds[name_of(how.y_zero.value)].flat[0])
        return cls(np.clip(shifted, bounds.min, bounds.max), size, 0.5)

    def error(self, got: Array, original: Array) -> float:
        """Return the worst error of `got` relative to the size of its element.

        Where the original is not finite, `got` must be so in the same way; an infinite error is returned where it is not.
        """
        if got.shape != original.shape:
            return float("inf")
        wide, first = got.astype(np.float64), original.astype(np.float64)
        finite = np.isfinite(first)
        if not np.array_equal(wide[~finite], first[~finite], equal_nan=True):
            return float("inf")
        off = np.maximum(np.abs(wide[finite] - self.result[finite]) - self.half, 0.0)
        size = self.size[finite]
        relative = np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
        worst = float(relative.max(initial=0.0))
        return worst if np.isfinite(worst) else float("inf")


def exact(contraction: Contraction, feeds: Mapping[str, Array]) -> Array:
    """Return the contraction of integers, which wrap around in numpy as they do in onnxruntime."""
    dtype = contraction.dtype.numpy()
    a, b = (_factor(operand, feeds, dtype) for operand in (contraction.left, contraction.right))
    total = _contracted(contraction, a, b) + _added(contraction, feeds, dtype)
    result: Array = np.asarray(total).astype(dtype)
    return result


def _contracted(contraction: Contraction, a: Array, b: Array) -> Array:
    return convolve(contraction, a, b) if contraction.windows else np.asarray(a @ b)


def _squared(operand: TensorOperand, feeds: Mapping[str, Array], kept: ConstantFactors) -> tuple[Array, Array]:
    """Return a factor in float64, and its squares."""
    key = name_of(operand.value), operand.transposed
    if key in kept:
        return kept[key]
    wide = _factor(operand, feeds, np.float64)
    pair = wide, np.asarray(wide * wide)
    if operand.constant:
        kept[key] = pair
    return pair


def _factor(operand: TensorOperand, feeds: Mapping[str, Array], dtype: Any) -> Array:
    """Return a factor as the product reads it, its zero point taken off."""
    if operand.packed is not None:
        return _unpacked(operand, operand.packed, feeds)
    array = feeds[name_of(operand.value)].astype(dtype)
    array = np.asarray(array.T if operand.transposed else array)
    if operand.zero is None:
        return array
    zero = feeds[name_of(operand.zero.value)].astype(dtype)
    return np.asarray(array - (zero.flat[0] if operand.zero.is_single else zero))


def _unpacked(operand: TensorOperand, how: PackedFactor, feeds: Mapping[str, Array]) -> Array:
    """Return in float64 the K × N elements that MatMulNBits reads."""
    columns, blocks, _ = how.dims
    elements = _elements(feeds[name_of(operand.value)].reshape(columns, blocks, -1), how.bits)
    zeros: Any = float(2 ** (how.bits - 1))
    if how.zeros is not None:
        zeros = feeds[name_of(how.zeros.value)].reshape(columns, -1)
        zeros = (_elements(zeros, how.bits) if how.packs_zeros else zeros.astype(np.float64))[:, :blocks, None]
    scales = feeds[name_of(how.scales.value)].astype(np.float64).reshape(columns, blocks, 1)
    return np.asarray(((elements - zeros) * scales).reshape(columns, -1)[:, : operand.size(0)].T)


def _elements(packed: Array, bits: int) -> Array:
    """Return the elements of so many bits that each byte holds, the lowest first, in float64."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1).astype(np.float64)


def _added(contraction: Contraction, feeds: Mapping[str, Array], dtype: Any) -> Array:
    """Return the bias, times beta; zero where none is read."""
    if contraction.tile_bias is not None:
        bias = feeds[name_of(contraction.tile_bias.value)].astype(dtype)
        return np.asarray(bias.reshape(-1, *(1 for _ in contraction.sliding)))
    if contraction.bias is None or not contraction.adds_bias:
        return np.zeros((), dtype)
    beta = np.asarray(np.float32(contraction.bias.beta)).astype(dtype)
    bias = feeds[name_of(contraction.bias.value)].astype(dtype)
    return np.asarray(beta * (_per_column(contraction, bias) if contraction.windows else bias))


def _per_column(contraction: Contraction, array: Array) -> Array:
    """Return numbers, one for each column or one for all, so that they broadcast to the result."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape(-1, *(1 for _ in contraction.sliding)) if contraction.windows else array


_SLACK = 4
"""Units in the last place by which tiles may be off where the original happens to be exact."""
_TOGETHER = 16
"""Trials that run side by side, so that the blocks of constants are cut once for all of them. Their results are in memory together."""

_SiteOutcome: TypeAlias = tuple[float, float, float]
"""The error of the tiles, the error of the original, and the largest error allowed for the tiles."""


@dataclass(frozen=True)
class TileVerdict(JsonFields):
    """How far the tiles and the original node were from a float64 contraction, at worst over all `runs`, sets of random inputs.

    Errors are relative to the size of each element of the result: its absolute value, or where its terms cancel the root of the sum of
    their squares. `also` names further nodes that are equal but for their weights and were not run. `node` is its name. `error` is that of
    the tiles, `original_error` that of the node, `tolerance` what is allowed, `passed` whether the error is within.
    """

    node: str
    error: float
    original_error: float
    tolerance: float
    passed: bool
    runs: int = 1
    also: tuple[str, ...] = ()


def check_tiles(
    sites: Iterable[TiledNode],
    constants: KnownConstants,
    opset: int,
    *,
    runs: int = 1,
    progress: Progress = silent,
) -> tuple[TileVerdict, ...]:
    """Run every site on `runs` sets of random inputs, constants as they are in the model; equal sites once.

    Float tiles pass when their error is at most twice the original's plus 4 ulps, integers when they are equal. The tiles of a
    quantised island, rounded to steps, pass when they round a value that is no further off than that from the exact one.
    Call it with the table of constants that the tiling used, before the model is changed further. Raises
    ModelError where onnxruntime has no kernel for the node, as for bfloat16.
    """
    groups: dict[tuple[object, ...], list[TiledNode]] = {}
    for site in sites:
        groups.setdefault(_signature(site), []).append(site)
    return tuple(
        _check(group[0], constants, opset, runs, tuple(site.node for site in group[1:]))
        for group in counted(groups.values(), "verifying each different product", progress)
    )


def _signature(site: TiledNode) -> tuple[object, ...]:
    contraction = site.contraction
    read = [contraction.left, contraction.right, contraction.left.zero, contraction.right.zero, contraction.tile_bias]
    operands = [(o.dims, o.transposed, o.constant, o.dtype) for o in read if o is not None]
    zeros = [o.zero and o.zero.value for o in (contraction.left, contraction.right)]
    bias = contraction.bias and (contraction.bias.dims, contraction.bias.beta, contraction.bias.constant)
    same = contraction.left.value is contraction.right.value
    quantized = contraction.requantize and tuple((p.value, p.dims) for p in contraction.requantize.parameters)
    kind = (
        contraction.dtype,
        contraction.sums,
        contraction.alpha,
        contraction.groups,
        contraction.sliding,
        len(contraction.island),
    )
    return (site.op, *operands, *zeros, bias, same, quantized, *kind, site.grid, site.accumulate)


def _check(site: TiledNode, constants: KnownConstants, opset: int, runs: int, also: tuple[str, ...]) -> TileVerdict:
    contraction = site.contraction
    tiled = NodeRun.of_tiles(site, opset)
    # No runtime kernel multiplies integers in a Gemm; their exact result is known without it.
    known = contraction.dtype in INTEGERS and contraction.requantize is None
    original = None if known else NodeRun.of_original(site, opset)
    random = np.random.default_rng(0)
    held, kept = _constant_operands(contraction, constants), ConstantFactors()

    def outcomes(count: int) -> Iterator[_SiteOutcome]:
        for start in range(0, count, _TOGETHER):
            few = [_feeds(contraction, held, random) for _ in range(min(_TOGETHER, count - start))]
            yield from _outcomes(contraction, tiled, original, few, kept, slack)

    slack = _slack(site)
    drawn = list(outcomes(runs))
    worst = max(drawn, key=_excess)
    if 0 < _excess(worst) < float("inf"):
        drawn += outcomes(_TOGETHER)
        worst = _all_together(drawn, slack)
    error, original_error, tolerance = worst
    return TileVerdict(site.node, error, original_error, tolerance, error <= tolerance, len(drawn), also)


def _excess(outcome: _SiteOutcome) -> float:
    error, _, tolerance = outcome
    return error - tolerance


def _all_together(outcomes: Sequence[_SiteOutcome], slack: float) -> _SiteOutcome:
    """Return the worst of the tiles beside the worst of the original: on one set of inputs it may have been right by luck."""
    error, original_error = (max(column) for column in tuple(zip(*outcomes, strict=True))[:2])
    return error, original_error, 2 * original_error + slack


def _slack(site: TiledNode) -> float:
    """Return by how much tiles may be off where the original is exact."""
    contraction = site.contraction
    if contraction.island:
        return _SLACK * precision_of(np.dtype(np.float32))
    if contraction.dtype not in FLOATS:
        return 0.0
    sums = 1
    if contraction.dtype in HALVES and contraction.sums is None:
        sums = roundings(site.accumulate, site.grid.shape[1], site.grid.k.outer_count)
    elif contraction.dtype == ir.DataType.DOUBLE and isinstance(contraction.k, int):
        sums = contraction.k  # the contraction that both are compared with is rounded as often as they are
    return (_SLACK + sqrt(sums - 1)) * precision_of(contraction.dtype.numpy())


def _outcomes(
    contraction: Contraction,
    tiled: NodeRun,
    original: NodeRun | None,
    trials: Sequence[Mapping[str, Array]],
    kept: ConstantFactors,
    slack: float,
) -> Iterator[_SiteOutcome]:
    """Run a few trials; yield for each the error of the tiles, the error of the original, and the largest error allowed for the tiles."""
    results = tiled.run(trials)
    if original is None:
        yield from (_equal(got, exact(contraction, feeds)) for got, feeds in zip(results, trials, strict=True))
        return
    for got, expected, feeds in zip(results, original.run(trials), trials, strict=True):
        if contraction.requantize is not None and not contraction.island:
            yield _equal(got, expected)
            continue
        reference = Reference.from_contraction(contraction, feeds, kept)
        error, original_error = reference.error(got, expected), reference.error(expected, expected)
        yield error, original_error, 2 * original_error + slack


def _equal(got: Array, expected: Array) -> _SiteOutcome:
    return (0.0 if np.array_equal(got, expected) else float("inf")), 0.0, 0.0


def _constant_operands(contraction: Contraction, constants: KnownConstants) -> dict[str, Array]:
    """Return the operands that are constants, by name."""
    outer = outer_values(contraction).items()
    return {name: np.asarray(constants.array(value), order="C") for name, (value, _, _) in outer if value in constants}


def _feeds(contraction: Contraction, held: Mapping[str, Array], random: np.random.Generator) -> dict[str, Array]:
    """Return the elements of the operands: constants as they are, the others at random."""
    feeds: dict[str, Array] = {
        name: held[name] if name in held else _random(random, name, dims, dtype)
        for name, (_, dtype, dims) in outer_values(contraction).items()
    }
    for scale in () if contraction.requantize is None else contraction.requantize.scales:
        if not scale.constant:
            name = name_of(scale.value)
            feeds[name] = np.asarray(random.uniform(0.01, 0.2, feeds[name].shape), np.float32)
    return feeds


def _random(random: np.random.Generator, name: str, dims: Sequence[int], dtype: ir.DataType) -> Array:
    require_array(name, dims)
    if dtype in BYTES:
        bounds = np.iinfo(dtype.numpy())
        return random.integers(bounds.min, bounds.max, dims, endpoint=True, dtype=dtype.numpy().type)
    if dtype in INTEGERS:
        least = 0 if dtype in {ir.DataType.UINT32, ir.DataType.UINT64} else -1000
        return random.integers(least, 1000, dims).astype(dtype.numpy())
    return random.standard_normal(dims).astype(dtype.numpy())
