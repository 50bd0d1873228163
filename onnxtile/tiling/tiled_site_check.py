"""Verifies each tiled node by running it, and the node that it replaces, on random inputs.

A sum in another order rounds otherwise, so the two are not compared with each other: both are compared with a float64
contraction, and the tiles may be no more than twice as far from it as the original is. One set of inputs on which they are further off is
no verdict: then the worst of both on sixteen more decides.

Tiles of 16 bits are run as hardware computes that keeps each tensor in its type: the result of each node is rounded to it. A chain of
n additions then rounds its total n times, which takes it about sqrt(n) units in the last place from the truth; that much is tolerated, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.model.feeds import require_array
from onnxtile.progress import Progress, counted, silent
from onnxtile.runtime import Array
from onnxtile.tiling.accumulate import roundings
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.element_types import BYTES, FLOATS, HALVES, INTEGERS, epsilon
from onnxtile.tiling.node_run import NodeRun, name_of, outer_values
from onnxtile.tiling.reference import ConstantFactors, Reference, exact
from onnxtile.tiling.result import TiledNode
from onnxtile.tiling.tensors import ConstantTable

_SLACK = 4
"""Units in the last place by which tiles may be off where the original happens to be exact."""
_TOGETHER = 16
"""Trials that run side by side, so that the blocks of constants are cut once for all of them. Their results are in memory together."""

_SiteOutcome: TypeAlias = tuple[float, float, float]
"""The error of the tiles, the error of the original, and the largest error allowed for the tiles."""


@dataclass(frozen=True)
class TileVerdict:
    """How far the tiles and the original node were from a float64 contraction, at worst over all `runs`, sets of random inputs.

    Errors are relative to the size of each element of the result: its absolute value, or where its terms cancel the root of
    the sum of their squares. `also` names further nodes that are equal but for their weights and were not run.
    """

    node: str
    error: float
    original_error: float
    tolerance: float
    passed: bool
    runs: int = 1
    also: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), "also": list(self.also)}


def check_tiles(
    sites: Iterable[TiledNode],
    constants: ConstantTable,
    opset: int,
    *,
    runs: int = 1,
    seed: int = 0,
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
        _check(group[0], constants, opset, runs, seed, tuple(site.node for site in group[1:]))
        for group in counted(groups.values(), "verifying each different product", progress)
    )


def _signature(site: TiledNode) -> tuple[object, ...]:
    one = site.contraction
    operands = [(o.dims, o.transposed, o.constant, o.dtype) for o in one.operands]
    zeros = [o.zero and o.zero.value for o in (one.left, one.right)]
    bias = one.bias and (one.bias.dims, one.bias.beta, one.bias.constant)
    same = one.left.value is one.right.value
    quantized = one.requantize and tuple((p.value, p.dims) for p in one.requantize.parameters)
    kind = (one.dtype, one.sums, one.alpha, one.groups, one.sliding, len(one.island))
    return (site.op, *operands, *zeros, bias, same, quantized, *kind, site.grid, site.accumulate)


def _check(
    site: TiledNode, constants: ConstantTable, opset: int, runs: int, seed: int, also: tuple[str, ...]
) -> TileVerdict:
    contraction = site.contraction
    tiled = NodeRun.of_tiles(site, opset)
    # No runtime kernel multiplies integers in a Gemm; their exact result is known without it.
    known = contraction.dtype in INTEGERS and contraction.requantize is None
    original = None if known else NodeRun.of_original(site, opset)
    random = np.random.default_rng(seed)
    held, kept = _held(contraction, constants), ConstantFactors()

    def outcomes(count: int) -> Iterator[_SiteOutcome]:
        for start in range(0, count, _TOGETHER):
            few = [_feeds(contraction, held, random) for _ in range(min(_TOGETHER, count - start))]
            yield from _outcomes(contraction, tiled, original, few, kept, slack)

    slack = _slack(site)
    found = list(outcomes(runs))
    worst = max(found, key=_excess)
    if 0 < _excess(worst) < float("inf"):
        found += outcomes(_TOGETHER)
        worst = _all_together(found, slack)
    error, original_error, tolerance = worst
    return TileVerdict(site.node, error, original_error, tolerance, error <= tolerance, len(found), also)


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
        return _SLACK * epsilon(ir.DataType.FLOAT)
    if contraction.dtype not in FLOATS:
        return 0.0
    sums = (
        roundings(site.accumulate, site.grid.shape[1])
        if contraction.dtype in HALVES and contraction.sums is None
        else 1
    )
    return (_SLACK + sqrt(sums - 1)) * epsilon(contraction.dtype)


def _outcomes(
    contraction: Contraction,
    tiled: NodeRun,
    original: NodeRun | None,
    trials: Sequence[Mapping[str, Array]],
    kept: ConstantFactors,
    slack: float,
) -> Iterator[_SiteOutcome]:
    """Run a few trials; yield for each the error of the tiles, the error of the original, and the largest error allowed for the tiles."""
    found = tiled.run(trials)
    if original is None:
        yield from (_equal(got, exact(contraction, feeds)) for got, feeds in zip(found, trials, strict=True))
        return
    for got, expected, feeds in zip(found, original.run(trials), trials, strict=True):
        if contraction.requantize is not None and not contraction.island:
            yield _equal(got, expected)
            continue
        island = bool(contraction.island)
        reference = Reference.of_island(contraction, feeds) if island else Reference.of(contraction, feeds, kept)
        error, original_error = reference.error(got, expected), reference.error(expected, expected)
        yield error, original_error, 2 * original_error + slack


def _equal(got: Array, expected: Array) -> _SiteOutcome:
    return (0.0 if np.array_equal(got, expected) else float("inf")), 0.0, 0.0


def _held(contraction: Contraction, constants: ConstantTable) -> dict[str, Array]:
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
