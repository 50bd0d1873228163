"""Real activations: the outputs of chosen nodes in a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxtile.errors import QueryError, UsageError
from onnxtile.inspection.branches import reachable, with_branches
from onnxtile.inspection.inlined import write_out_calls
from onnxtile.inspection.traced_bytes import require_room
from onnxtile.inspection.work import operator_name
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Ranges, sample_feeds
from onnxtile.model.given import Feeds, write_arrays
from onnxtile.model.submodel import exposing
from onnxtile.query.match import Matcher, compiled
from onnxtile.result import VerbResult
from onnxtile.runtime import Array
from onnxtile.verification.sizes import Assignment
from onnxtile.verification.trials import first_that_runs


@dataclass(frozen=True)
class Activation:
    """An output of a node in a run. `low`, `high` and `mean` are those of its finite numbers; None where it has none."""

    node: str
    op: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None
    high: float | None
    mean: float | None
    nans: int
    infinities: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one activation."""
        numbers = {"min": self.low, "max": self.high, "mean": self.mean}
        counts = {"nans": self.nans, "infinities": self.infinities}
        named = {"node": self.node, "op": self.op, "name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        return {**named, **numbers, **counts}


@dataclass(frozen=True, repr=False)
class Trace(VerbResult):
    """The outputs of the chosen nodes, in the order of the graph, by value name; `inputs` says on what the model ran.

    The elements of a sequence `s` are called `s[0]`, `s[1]` ...
    """

    verb: ClassVar[str] = "trace"

    activations: tuple[Activation, ...]
    arrays: Mapping[str, Array]
    inputs: str
    dims: Mapping[str, int]

    @property
    def summary(self) -> str:
        """How many activations there are, and on what the model ran."""
        return f"{len(self.activations):,} activations, {self.inputs} inputs"

    def write(self, path: str | Path) -> None:
        """Write the arrays to `path` where it ends in .npz, else what `to_dict` returns. Raises UsageError."""
        if Path(path).suffix == ".npz":
            write_arrays(Path(path), self.arrays)
            return
        super().write(path)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `inspect --trace`."""
        return {
            "activations": [one.to_dict() for one in self.activations],
            "inputs": self.inputs,
            "dims": dict(self.dims),
        }


def choose(model: ir.Model, wanted: Sequence[str]) -> dict[ir.Node, str]:
    """Return the nodes that `wanted` mean, with their names, in the order of the graph: of the main graph, and of branches of If nodes.

    Each is the name of a node (of its first output where it has none), an operator, or a query, of whose matches every node counts. Raises
    UsageError where one of them means none, or only nodes inside loops, which cannot be seen from outside, and QueryError.
    """
    names = dict(reachable(model.graph))
    by_name = {name: node for node, name in names.items()}
    chosen: set[ir.Node] = set()
    for text in wanted:
        found = {by_name[text]} if text in by_name else _matching(model, text)
        seen = found & names.keys()
        if not seen:
            where = "only in bodies of loops, whose values cannot be traced" if found else "nowhere in the model"
            raise UsageError(f"{text!r} is {where}", hint="give the name of a node, an operator or a query")
        chosen |= seen
    return {node: name for node, name in names.items() if node in chosen}


def choose_anywhere(model: ir.Model, wanted: Sequence[str]) -> tuple[ir.Model, dict[ir.Node, str]]:
    """Return `model` and what `choose` finds in it; where it finds something in local functions only, a copy with these written out.

    Raises as `choose` does.
    """
    try:
        return model, choose(model, wanted)
    except (UsageError, QueryError):
        copy = model.clone()
        if not model.functions or write_out_calls(copy):
            raise
        return copy, choose(copy, wanted)


def _matching(model: ir.Model, text: str) -> set[ir.Node]:
    same = {node for node in model.graph.all_nodes() if text in {node.op_type, operator_name(node)}}
    if same:
        return same
    known = {node.op_type for node in model.graph.all_nodes()}
    matches = Matcher(model, Constants(model)).find(compiled(text, known))
    return {node for match in matches for node in match.nodes}


def trace(
    model: ir.Model,
    chosen: Mapping[ir.Node, str],
    *,
    given: Feeds | None = None,
    ranges: Ranges | None = None,
    seed: int = 0,
) -> Trace:
    """Run `model` as far as the `chosen` nodes need it, and keep nothing but their outputs.

    Without inputs that are `given` they are random, and free dimensions get sizes with which it runs. Raises ModelError, and OverLimit
    where the values take more bytes than a run may.
    """

    def attempt(feeds: Feeds) -> dict[ir.Node, dict[str, Any]]:
        opened, nodes = with_branches(model, chosen, feeds)
        if not nodes:
            raise UsageError("the run does not reach the branches that hold these nodes", hint="give other --inputs")
        names = {node: [value.name for value in made.outputs if value.name] for node, made in nodes.items()}
        wanted = [name for made in names.values() for name in made]
        require_room(opened, wanted, feeds)
        session = exposing(opened, wanted)
        results = session.run(feeds)
        return {node: {name: results[name] for name in made} for node, made in names.items()}

    def sampled(assignment: Assignment) -> dict[ir.Node, dict[str, Any]]:
        return attempt(sample_feeds(model, assignment.sizes, seed=seed, ranges=ranges))

    results, dims = (attempt(given), {}) if given is not None else first_that_runs(model, sampled)
    arrays: dict[str, Array] = {}
    activations = []
    for node, name, value in ((node, *item) for node, made in results.items() for item in made.items()):
        for key, array in _named(name, value):
            arrays[key] = array
            activations.append(_summary(chosen[node], node, key, array))
    return Trace(tuple(activations), arrays, "random inputs" if given is None else "given inputs", dims)


def _named(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(value, list):
        for place, element in enumerate(value):
            yield from _named(f"{name}[{place}]", element)
    elif isinstance(value, np.ndarray):
        yield name, value


def _summary(node_name: str, node: ir.Node, name: str, array: Array) -> Activation:
    dtype = "string" if array.dtype.kind in "OSU" else array.dtype.name
    known = (node_name, operator_name(node), name, dtype, tuple(array.shape))
    if dtype == "string" or array.dtype.kind == "c":
        return Activation(*known, None, None, None, 0, 0)
    numbers = array.astype(np.float32) if array.dtype.kind == "V" else array
    finite = np.isfinite(numbers)
    nans = int(np.isnan(numbers).sum())
    if not finite.any():
        return Activation(*known, None, None, None, nans, int(numbers.size) - nans)
    whole = bool(finite.all())
    shown = numbers if whole else numbers[finite]
    mean = float(shown.mean(dtype=np.float64))
    return Activation(
        *known, float(shown.min()), float(shown.max()), mean, nans, int(numbers.size - finite.sum()) - nans
    )
