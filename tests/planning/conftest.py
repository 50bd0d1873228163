"""What the tests of plans share: random problems, and small graphs written as ONNX text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import strategies as st

from onnxtile.arena.run import ArenaVerdict, arena_run
from onnxtile.check.audit import Audit, check, require
from onnxtile.check.graph import GraphModel
from onnxtile.check.reading import plain_model
from onnxtile.declare.plan_document import PlannedBuffer
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope, read_kernels
from onnxtile.kernels.kernel_graph import KernelGraph, Schedule, Share
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.load import load
from onnxtile.operators.takes import Sizes
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.resolve import Shapes, resolve


@st.composite
def problems(draw: st.DrawFn, max_buffers: int = 24) -> Problem:
    """Problems of up to 20 steps, with buffers without bytes and such with an alignment of their own."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 300), st.integers(0, 15), st.integers(1, 5), st.sampled_from([None, None, 1, 4, 128])
            ),
            max_size=max_buffers,
        )
    )
    buffers = tuple(Buffer(f"b{i}", s, lower, lower + n, a) for i, (s, lower, n, a) in enumerate(rows))
    return Problem(buffers, draw(st.sampled_from([1, 8, 64])))


@dataclass(frozen=True)
class InputsOfRuns(Wanted):
    """The inputs of each run, or how many random ones there are (None: as many as are asked for)."""

    sets: Sequence[Mapping[str, Any]] = ()
    count: int | None = None

    def feeds(self, model: ir.Model, sizes: Sizes, runs: int, *, seed: int = 0) -> list[Mapping[str, Any]]:
        return list(self.sets) or super().feeds(model, sizes, self.count or runs, seed=seed)


@contextmanager
def sharing_by(rules: Collection[str] | None) -> Iterator[None]:
    """Let tensors of planned models, also in their bodies, share bytes by `rules` and as views alone; by all with None."""

    of_all = KernelGraph.shares

    def limited(graph: KernelGraph, schedule: Schedule | None = None) -> Iterator[Share]:
        return (share for share in of_all(graph, schedule) if share.kind == "view" or share.kind in (rules or ()))

    with pytest.MonkeyPatch.context() as patch:
        if rules is not None:
            patch.setattr(KernelGraph, "shares", limited)
        yield


@dataclass(frozen=True)
class Case:
    """A model with what is known of it."""

    model: ir.Model
    shapes: Shapes
    constants: Constants

    @classmethod
    def of(cls, source: Any) -> Case:
        """Return the case of a path, a proto, or a graph in ONNX text."""
        if isinstance(source, str):
            source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{source}')
        model = load(source)
        return cls(model, resolve(model, run=True), Constants(model))

    @property
    def facts(self) -> LayoutFacts:
        """What rules ask about the model."""
        return LayoutFacts(self.model, self.shapes, self.constants)

    @cached_property
    def checked(self) -> GraphModel:
        """The model as the check reads it."""
        return GraphModel(*plain_model(self.model, self.shapes, self.constants))

    def graph(self, **options: Any) -> KernelGraph:
        """Return the kernels of the main graph with the `options` of a scope."""
        return read_kernels(self.facts, PlanScope(self.model.graph, **options))

    def plan(self, **options: Any) -> PlanResult:
        """Return the plan of the model, which has passed the check of what is published."""
        result = self.unchecked(**options)
        require(self.model, result, self.shapes, self.constants)
        return result

    def unchecked(self, share: Collection[str] | None = None, **options: Any) -> PlanResult:
        """Return the plan of the model, which may be wrong; with `share`, tensors share bytes by these rules and as views alone."""
        with sharing_by(share):
            return plan_model(self.model, self.shapes, self.constants, PlanSettings(**options))

    def audit(self, result: PlanResult) -> Audit:
        """Return what the check of published plans finds."""
        return check(self.model, result, self.shapes, self.constants)

    def plan_views(self, **options: Any) -> PlanResult:
        """Return the plan in which only views share bytes."""
        return self.plan(share=("view",), **options)

    def run(self, result: PlanResult, feeds: Sequence[Mapping[str, Any]] = (), runs: int | None = None) -> ArenaVerdict:
        """Run the model inside the arena of `result` on each of `feeds`, else on `runs` random sets of inputs."""
        wanted = InputsOfRuns(sets=feeds, count=runs)
        return arena_run(self.model, result, self.shapes, self.constants, wanted=wanted)


def proved(text: str, **options: Any) -> PlanResult:
    """Return a plan that the check and a run inside the arena have confirmed."""
    case = Case.of(text)
    result = case.plan(**options)
    verdict = case.run(result)
    assert verdict.equal, verdict
    return result


def rows(result: PlanResult) -> dict[str, PlannedBuffer]:
    """Return the buffers of a plan by name."""
    return {buffer.name: buffer for buffer in result.buffers}


def lives(result: PlanResult) -> dict[str, tuple[int, int]]:
    """Return the first and last step of each buffer by name."""
    return {buffer.name: (buffer.first, buffer.last) for buffer in result.buffers}


def aliases(result: PlanResult) -> dict[str, str]:
    """Return who owns the bytes of what shares another's."""
    return {buffer.name: buffer.alias for buffer in result.buffers if buffer.alias is not None}


def outside(result: PlanResult) -> dict[str, str]:
    """Return why what lies outside does."""
    return {excluded.name: excluded.reason for excluded in result.outside}
