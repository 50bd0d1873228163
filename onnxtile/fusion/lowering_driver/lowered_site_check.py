"""Local verification of lowering: each different site is run alone, the call as it was beside the operators it became."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError, NoKernel
from onnxtile.fusion.lowering import Argument, FactsTable
from onnxtile.fusion.lowering_driver.evidence import SitePair
from onnxtile.fusion.site_check import SiteVerdict
from onnxtile.model.feeds import draw
from onnxtile.model.session import session_of
from onnxtile.model.widen import is_narrow, widened
from onnxtile.progress import Progress, counted, silent
from onnxtile.runtime import Array
from onnxtile.verification import OutputError, compare_quantised, compare_values

_COUNTS = {ir.DataType.INT64, ir.DataType.INT32}
_STORED = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255)}


class _Skipped(Exception):
    """Why a site cannot be run alone."""


def check_parts(
    parts: Collection[SitePair], facts: FactsTable, *, seed: int = 0, progress: Progress = silent
) -> tuple[SiteVerdict, ...]:
    """Run each part as it was and as it is, on random inputs, constants as they are, and compare the outputs.

    `facts` know the sizes of all inputs. A site in bfloat16, for which onnxruntime has few kernels, is compared with what it was in float;
    where it has none for the operator either, the verdict says so. Where onnxruntime refuses the lowered site, so does the verdict.
    """
    generator = np.random.default_rng(seed)
    different = counted(parts, "verifying each different lowered site", progress)
    return tuple(_check(part, facts, generator) for part in different)


def _check(part: SitePair, facts: FactsTable, generator: np.random.Generator) -> SiteVerdict:
    also = len(part.same)
    try:
        return SiteVerdict(part.call, _errors(part, facts, generator), also)
    except _Skipped as reason:
        return SiteVerdict(part.call, (), also, str(reason))
    except ModelError as error:
        return SiteVerdict(part.call, (), also, refused=" ".join(str(error).split()))


def _errors(part: SitePair, facts: FactsTable, generator: np.random.Generator) -> tuple[OutputError, ...]:
    shapes = _computed_shapes(part.before, facts)
    feeds = {}
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
    try:
        return _compared(part, feeds)
    except ModelError:
        if not guessed:
            raise
        # A shape or an index that the model computes elsewhere cannot be drawn at random.
        raise _Skipped(f"{guessed!r}, which the model computes, takes no random values") from None


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


def _compared(part: SitePair, feeds: Mapping[str, Array]) -> tuple[OutputError, ...]:
    narrow = is_narrow(part.before)
    if not narrow:
        expected = session_of(part.before).run(feeds)
        got = session_of(part.after).run(feeds)
        compared = compare_quantised if part.rounds else compare_values
        return tuple(compared(name, value, got[name]) for name, value in expected.items())
    got = _run_narrow(part.after, feeds)
    reference = session_of(widened(part.before)).run({name: _wide(array) for name, array in feeds.items()})
    return tuple(compare_values(name, reference[name].astype(value.dtype), value) for name, value in got.items())


def _run_narrow(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    try:
        return session_of(model).run(feeds)
    except NoKernel:
        operators = " and ".join(dict.fromkeys(node.op_type for node in model.graph))
        raise _Skipped(f"onnxruntime has no kernel for {operators} of bfloat16") from None


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
