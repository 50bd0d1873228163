"""Local verification of lowering: each different site is run alone, the call as it was beside the operators it became.

First on random inputs; where it agrees, on edge rows besides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.edge_rows import SiteRuns
from onnxtile.fusion.lower.driver import SitePair
from onnxtile.fusion.lower.lowering import Argument, FactsTable
from onnxtile.fusion.site_check import SiteVerdict
from onnxtile.model.feeds import draw
from onnxtile.model.session import session_of
from onnxtile.system.errors import ModelError, NoKernel
from onnxtile.system.progress import Progress, counted, silent
from onnxtile.system.runtime import Array
from onnxtile.verification.values import compare_quantised, compare_values
from onnxtile.verification.widen import is_narrow, widened

_COUNTS = {ir.DataType.INT64, ir.DataType.INT32}
_STORED = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255)}


class _Skipped(Exception):
    """Why a site cannot be run alone."""


class LoweredSites:
    """Checks the parts of a lowering, and of further lowerings of the same model: a part that was checked is not run again."""

    def __init__(self) -> None:
        self._verdicts: dict[object, SiteVerdict] = {}

    def check(
        self, parts: Collection[SitePair], facts: FactsTable, progress: Progress = silent
    ) -> tuple[SiteVerdict, ...]:
        """Run each part as it was and as it is, on random inputs and edge rows, constants as they are, and compare the outputs.

        `facts` know the sizes of all inputs. A site in bfloat16, for which onnxruntime has few kernels, is compared with what it was in
        float; where it has none for the operator either, the verdict says so, and edge rows are run in float before and after. Where
        onnxruntime refuses the lowered site, so does the verdict.
        """
        different = counted(parts, "verifying each different lowered site", progress)
        return tuple(self._verdict(part, facts) for part in different)

    def _verdict(self, part: SitePair, facts: FactsTable) -> SiteVerdict:
        if part.key not in self._verdicts:
            # A seed of its own for each part: what is drawn does not depend on the parts before.
            self._verdicts[part.key] = _check(part, facts, np.random.default_rng(0))
        return replace(self._verdicts[part.key], call=part.call, also=len(part.same))


def _check(part: SitePair, facts: FactsTable, generator: np.random.Generator) -> SiteVerdict:
    try:
        feeds, varied, guessed = _feeds(part, facts, generator)
    except _Skipped as reason:
        return SiteVerdict(part.call, (), 0, str(reason))
    try:
        return _narrow_verdict(part, feeds, varied) if is_narrow(part.before) else _verdict(part, feeds, varied)
    except ModelError as error:
        # A shape or an index that the model computes elsewhere cannot be drawn at random.
        why = f"{guessed!r}, which the model computes, takes no random values" if guessed else ""
        refused = "" if guessed else " ".join(str(error).split())
        return SiteVerdict(part.call, (), 0, why, refused)


def _feeds(
    part: SitePair, facts: FactsTable, generator: np.random.Generator
) -> tuple[dict[str, Array], list[str], str]:
    """Return an array for each input of a part, the names of those that are drawn, and one that is drawn though it may be a shape."""
    shapes = _computed_shapes(part.before, facts)
    feeds: dict[str, Array] = {}
    varied: list[str] = []
    guessed = ""
    for value in part.before.graph.inputs:
        name, argument = value.name or "", facts.argument(value)
        if name in part.constants:
            feeds[name] = facts.elements(value)
        elif argument.array is not None or name in shapes:
            feeds[name] = shapes[name] if argument.array is None else argument.array
        else:
            guessed = name if argument.dtype in _COUNTS else guessed
            drawn = _drawn(value, argument, generator)
            feeds[name] = _twice(drawn) if name in part.twice else drawn
            varied.append(name)
    return feeds, varied, guessed


def _verdict(part: SitePair, feeds: Mapping[str, Array], varied: list[str]) -> SiteVerdict:
    runs = SiteRuns(session_of(part.before), session_of(part.after), part.rounds, part.twice)
    expected, got = runs.before.run(feeds), runs.after.run(feeds)
    compared = compare_quantised if part.rounds else compare_values
    verdict = SiteVerdict(part.call, tuple(compared(name, value, got[name]) for name, value in expected.items()), 0)
    return replace(verdict, edges=runs.differences(feeds, varied)) if verdict.equal else verdict


def _narrow_verdict(part: SitePair, feeds: Mapping[str, Array], varied: list[str]) -> SiteVerdict:
    """Return the verdict on a site in bfloat16: both are held against the site as it was in float, and edge rows run in float."""
    wide = {name: _wide(array) for name, array in feeds.items()}
    before = session_of(widened(part.before))
    reference, verdict = before.run(wide), SiteVerdict(part.call, (), 0)
    try:
        got = session_of(part.after).run(feeds)
        errors = (compare_values(name, reference[name].astype(value.dtype), value) for name, value in got.items())
        verdict = replace(verdict, outputs=tuple(errors))
    except NoKernel:
        operators = " and ".join(dict.fromkeys(node.op_type for node in part.after.graph))
        verdict = replace(verdict, skipped=f"onnxruntime has no kernel for {operators} of bfloat16")
    with suppress(NoKernel):
        after = session_of(widened(part.after))
        edges = SiteRuns(before, after, part.rounds, part.twice).differences(wide, varied)
        return replace(verdict, edges=edges) if verdict.equal else verdict
    return verdict


def _computed_shapes(model: ir.Model, facts: FactsTable) -> dict[str, Array]:
    """Return, by name, the shapes that the Reshapes of `model` are given, as far as the shapes of their results are known."""
    shapes = {}
    for node in model.graph:
        if node.op_type != "Reshape" or node.inputs[1] is None or node.inputs[1].producer() is not None:
            continue
        sizes = _sizes(facts.argument(node.outputs[0]))
        if sizes is not None:
            shapes[node.inputs[1].name or ""] = np.asarray(sizes, np.int64)
    return shapes


def _sizes(argument: Argument) -> tuple[int, ...] | None:
    sizes = tuple(dim for dim in argument.dims or () if isinstance(dim, int))
    return sizes if argument.dims is not None and len(sizes) == len(argument.dims) else None


def _drawn(value: ir.Value, argument: Argument, generator: np.random.Generator) -> Array:
    sizes = _sizes(argument)
    if sizes is None:
        raise _Skipped(f"the shape of {value.name!r} is not known")
    if argument.dtype in _STORED:  # what is quantised uses the whole range of its type
        low, high = _STORED[argument.dtype]
        return generator.integers(low, high, sizes, argument.dtype.numpy(), endpoint=True)
    return draw(generator, value, lambda _: sizes)


def _twice(array: Array) -> Array:
    first = array[..., : array.shape[-1] // 2]
    return np.concatenate([first, first], -1)


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
