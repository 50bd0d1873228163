"""Chooses the kernels of a plan (each node, or each quantised island), its states and its settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxtile.model.binding import bind, bind_shapes, rename_symbols, require_symbols
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.formula import SizeFormula, SizeRanges
from onnxtile.model.node_kinds import is_quantised, quantises, quantises_at_run, sums_integers
from onnxtile.operators.table import operator_of
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.errors import UsageError

if TYPE_CHECKING:
    from onnxtile.arena.run import StateVerdict
    from onnxtile.common_options import SizeOptions
    from onnxtile.declare.plan_document import KernelCount
    from onnxtile.firmware.build import Firmware
    from onnxtile.kernels.from_onnx import StateChoice
    from onnxtile.planning.model_plan import PlanSettings
    from onnxtile.planning.result import KeptState, ListedState, PlanResult
    from onnxtile.shapes.opened_calls import Unfolded
    from onnxtile.verbs.fit import FitStepOptions
    from onnxtile.verbs.plan import PlanOptions, PlanStep


class KernelChoice(StrEnum):
    """The part of a model that a plan treats as one kernel."""

    ISLANDS = "islands"
    NODES = "nodes"


def choose_kernels(model: ir.Model, kernels: str) -> KernelCount | None:
    """Make each quantised island of `model` a meta-op where `kernels` is "islands" (in place), and count; None where no island is there."""
    if kernels == KernelChoice.NODES or not is_quantised(model):
        return None
    from onnxtile.declare.plan_document import KernelCount  # `inspect` plans nothing, and binds its sizes here
    from onnxtile.fusion.fuse import fuse
    from onnxtile.fusion.pattern import select

    before = _float_results(model)
    results = fuse(model, select(["quantised"]))
    islands = sum(len(result.calls) for result in results)
    return KernelCount(islands, len(before - _float_results(model))) if islands else None


def _float_results(model: ir.Model) -> set[str]:
    """Return the names of the float tensors that nodes make at run time."""

    constants = Constants(model)
    return {
        value.name or ""
        for graph in model.graphs()
        for node in graph
        for value in node.outputs
        if value not in constants and _is_float(node, value)
    }


def _is_float(node: ir.Node, value: ir.Value) -> bool:
    """Return whether `value`, made by `node`, has floats, as far as its type or the operator says."""
    if value.dtype is not None:
        return value.dtype.is_floating_point()
    from onnxtile.fusion.float_view import float_meaning  # few models are quantised

    row = operator_of(node)
    if quantises(node) or sums_integers(node) or float_meaning(node) is not None or (row is not None and row.truths):
        return False
    return not quantises_at_run(node) or value is node.outputs[1]


# The sizes that the options bind.


def bind_ranges(model: ir.Model, options: SizeOptions) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Give dimensions of `model` (in place) the sizes of `options`; return those that have one size, and the ranges of the others."""
    fixed, ranges = bind_shapes(model, options.shape_ranges)
    for given, sizes in ((fixed, options.fixed_dims), (ranges, options.dim_ranges)):
        for name in given.keys() & (options.fixed_dims.keys() | options.dim_ranges.keys()):
            if name not in sizes or given[name] != sizes[name]:
                raise UsageError(f"the dimension {name!r} has two sizes", hint="leave one of the two options out")
    ranges = {**options.dim_ranges, **ranges}
    bound = bind(model, {**options.fixed_dims, **fixed}, options.fixed_shapes)
    require_symbols(model, (*ranges, *options.dim_sums))
    rename_symbols(model, options.dim_sums)
    return bound, ranges


# The states that the options of `plan` choose, and the runs that prove them.


def state_choice(option: Mapping[str, str] | str | None) -> StateChoice:
    """Return the choice that the option `state` names: pairs, "found", "none", or None for a search that only lists states."""
    from onnxtile.kernels.from_onnx import StateChoice

    if isinstance(option, Mapping):
        return StateChoice(option, finds=True)
    return StateChoice(finds=option != "none", takes_found=option == "found")


def state_verdict(opened: Unfolded, result: PlanResult, wanted: Wanted, options: PlanOptions) -> StateVerdict:
    """Return the verdict of runs that follow each other at one size; of one run where a state grows, and the next needs a larger size."""
    from onnxtile.arena.run import same_plan, state_run

    runs = 1 if any(state.axis is not None for state in result.states) else options.state_runs
    return state_run(same_plan(opened, result, runs), wanted, progress=options.progress)


def require_lengths(plan: PlanResult, opened: Unfolded) -> None:
    """Raise UsageError for a range that begins with 0, unless it is that of the length of a state that grows."""
    lengths = lengths_of_states([*plan.states, *plan.listed], opened)
    require_sizes_from_1({name: ends for name, ends in plan.ranges.items() if name not in lengths})


def lengths_of_states(states: Iterable[KeptState | ListedState], opened: Unfolded) -> set[str]:
    """Return the dimensions of the model that are the length of one of `states` that grows."""
    grown = {state.input: state.axis for state in states if state.axis is not None}
    return {
        name
        for value in opened.model.graph.inputs
        for name, axis in _axes(opened.shapes, value)
        if grown.get(value.name or "") == axis
    }


def require_sizes_from_1(ranges: SizeRanges) -> None:
    """Raise UsageError for a range that begins with 0."""
    for name, (low, _) in ranges.items():
        if low == 0:
            raise UsageError(
                f"a size is at least 1, but the range of {name!r} begins with 0, and is not the length of a state that grows",
                hint="begin with 1",
            )


def _axes(shapes: Shapes, value: ir.Value) -> Iterator[tuple[str, int]]:
    """Yield the dimensions that are the size of an axis of `value`, each with the axis."""
    for axis, size in enumerate(shapes.formulas(value) or ()):
        yield from ((name, axis) for name in size.symbols if size == SizeFormula.symbol(name))


def settings_of(options: PlanOptions) -> PlanSettings:
    """Return the settings of the planner that the options of `plan` name, without those of one model."""
    from onnxtile.planning.model_plan import PlanSettings
    from onnxtile.planning.workspaces import WorkspaceRules
    from onnxtile.verbs.plan import OVERWRITE

    rules = options.rules
    is_overwritten = options.io == OVERWRITE
    return PlanSettings(
        fixed=rules,
        alignment=64 if options.alignment is None else options.alignment,
        planner=options.planner,
        order=options.order,
        streams=options.figures.streams,
        io="inside" if is_overwritten else options.io,
        overwrite_inputs=is_overwritten,
        whole_buffers=rules.whole_buffers,
        workspaces=WorkspaceRules.from_texts(rules.workspaces, rules.shared_workspaces),
        effort=replace(options.effort, progress=options.progress),
        capacity=options.capacities,
        bounds=options.dim_bounds,
        states=state_choice(options.state),
    )


def live_bytes(plan: PlanResult) -> list[int]:
    """Return the bytes of the buffers that are live at each step; a buffer takes a multiple of the alignment."""
    from onnxtile.kernels.kernel_graph import LiveChange, LiveSums

    sums = LiveSums(max((row.last for row in plan.buffers), default=0) + 1)
    owners = (row for row in plan.buffers if row.alias is None)
    sums.add(LiveChange(-(-row.size // plan.alignment) * plan.alignment, row.first, row.last + 1) for row in owners)
    live: list[int] = sums.in_steps.tolist()
    return live


def program_in_c(opened: Unfolded, plan: PlanResult, options: FitStepOptions | PlanStep, **how: Any) -> Firmware:
    """Return the program in C of `plan`, a plan of `opened`, as `options` ask for it; `how` has further arguments of `build`.

    Raises UsageError, Mismatch.
    """
    from onnxtile.firmware.build import ProgramTarget, build

    target = ProgramTarget.from_figures(options.figures)
    return build(opened, plan, target=target, verify=options.verify, progress=options.progress, **how)
