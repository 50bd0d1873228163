"""plan --largest: the largest size of one dimension for which weights, states and arena fit the capacity, with the plan up to that size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxtile.declare import values as option_values
from onnxtile.model.binding import bind_shapes
from onnxtile.model.formula import SizeFormula
from onnxtile.model.load import load
from onnxtile.planning.largest import (
    MOST_SIZE,
    Growth,
    LargestSize,
    NeededBytes,
    RefusedSize,
    SizeTrial,
    growth_of,
    largest_fitting,
)
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.offsets.effort import LEVELS
from onnxtile.planning.offsets.problem import OverCapacity
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.opened_calls import Unfolded
from onnxtile.shapes.resolve import bytes_formula, tensor_bytes
from onnxtile.system.errors import Infeasible, ModelError, OverLimit, UsageError, about_options
from onnxtile.verbs.flows.kernels import lengths_of_states
from onnxtile.verbs.flows.plan_ranges import RangedModel
from onnxtile.verbs.flows.results import PlannedModel
from onnxtile.verbs.plan import PlanOptions

_FIRST = 63
"""The first plan is up to a size larger by this than the least; its formulas say where to look."""
_FURTHER = 64
"""How much larger the second size is, where no formula depends on the dimension."""


def plan_largest(options: PlanOptions) -> PlannedModel:
    """Plan a model up to the largest size of the dimension `largest` that fits, as `onnxtile.plan` says."""
    name, capacity = _required(options)
    given = _given_range(options, name)
    least, most = given or (1, None)
    first = least + _FIRST if most is None else min(least + _FIRST, most)
    sized = options if given else replace(options, dims={**(options.dims or {}), name: (least, first)})
    sizes = _SizeTrials(RangedModel.read(replace(sized, largest=None)), name, least, capacity)
    start = sizes.start(first, most)
    if given is None and sizes.is_length:
        # The cache of a first run is empty.
        sizes.least = 0
    found, refused = largest_fitting(sizes.trial, start, sizes.least, most, capacity)
    if found is None:
        assert refused is not None
        raise Infeasible(
            f"DOES NOT FIT: at {name}={refused.size} the plan takes at least {refused.total:,} bytes of {capacity:,}, "
            f"{sizes.weights:,} of them for weights",
            hint="make the capacity larger, or other dimensions smaller",
        )
    largest = sizes.result(found, refused)
    opened, plan = sizes.best
    try:
        return replace(sizes.ranged.proved(plan, opened), largest=largest)
    except MemoryError:
        raise OverLimit(
            f"{name}={found} fits the capacity, and a run there takes more memory than there is, or than --runs allows",
            hint="--no-verify plans without a run",
        ) from None
    except ModelError as error:
        # Few models run at every size: a table of positions has an end.
        where = f"{name}={found} fits the capacity, and the model fails there or at a smaller size"
        error.say(f"{where}: {error.message}", f"give the sizes that it can run: --dim {name}={max(sizes.least, 1)}:N")
        raise


def _required(options: PlanOptions) -> tuple[str, int]:
    """Return the dimension whose largest size is asked for, and the bytes for it. Raises UsageError for options that exclude it."""
    if options.movement != "none":
        raise about_options("{largest} is for one memory, and {movement} for two", hint="leave one of the two out")
    capacity = options.capacities
    if capacity is None or (isinstance(capacity, Mapping) and len(capacity) != 1):
        raise about_options("{largest} needs the bytes of one memory", hint="give one {capacity}, such as 2GiB")
    assert options.largest is not None
    return options.largest, next(iter(capacity.values())) if isinstance(capacity, Mapping) else capacity


def _given_range(options: PlanOptions, name: str) -> tuple[int, int] | None:
    """Return the range that `options` give the dimension `name`; None without one. Raises UsageError for a size or a sum."""
    shaped: Mapping[str, tuple[int, int]] = {}
    if options.shape_ranges:
        _, shaped = bind_shapes(load(options.model), options.shape_ranges)
    given = {**shaped, **options.dim_ranges}
    if name not in given and name in option_values.read_dims(options.dims or {}):
        raise UsageError(
            f"the dimension {name!r} has a size already", hint=f"leave --dim {name} out, or give it a range"
        )
    return given.get(name)


class _SizeTrials:
    """The plans of a model up to several sizes of its dimension `name`, from `least` on, within `capacity` bytes in all."""

    def __init__(self, ranged: RangedModel, name: str, least: int, capacity: int) -> None:
        self.ranged, self.name, self.least = ranged, name, least
        self.is_length = False
        """Whether the dimension is the length of a state that is kept and grows."""
        self.weights = 0
        self._capacity, self._word = capacity, ranged.names.get(name, name)
        self._left: list[str] = []
        self._best: tuple[Unfolded, PlanResult] | None = None

    @property
    def best(self) -> tuple[Unfolded, PlanResult]:
        """The model at the sizes of the last plan that fitted, and that plan."""
        assert self._best is not None
        return self._best

    def start(self, first: int, most: int | None) -> SizeTrial:
        """Return a trial without a limit, from which the search begins. Raises UsageError where no byte depends on the dimension."""
        opened, plan = self._planned(first)
        self.is_length = self._word in lengths_of_states(plan.states, opened)
        self.weights = plan.constant_bytes
        held, states = {row.name for row in plan.buffers}, {state.input for state in plan.listed}
        self._left = [value.name or "" for value in opened.model.graph.inputs if value.name in states - held]
        total = self._needed(opened, plan).total
        growth = self._growth(opened, plan)
        if growth is not None:
            return SizeTrial(first, total, False, growth)
        # Tensors whose sizes have no formula may grow nevertheless.
        second = first * _FURTHER if most is None else most
        larger = self._needed(*self._planned(second)).total if second > first else total
        if larger <= total:
            raise UsageError(
                f"the size {self.name!r} bounds nothing: no byte of the plan depends on it",
                hint="name another dimension",
            )
        return SizeTrial(first, total, False, lambda size: size * (larger - total) / (second - first))

    def trial(self, size: int) -> SizeTrial:
        """Return the trial of a plan up to `size` within the capacity."""
        opened, settings = self._at(size)
        outside = sum(bytes_ for _, bytes_ in self._outside(opened))
        free = max(0, self._capacity - self.weights - outside)
        given = self.ranged.common.capacity
        limit = dict.fromkeys(given, free) if isinstance(given, Mapping) else free
        try:
            plan = plan_model(*opened, replace(settings, capacity=limit))
        except OverCapacity as error:
            return SizeTrial(size, self.weights + outside + free + error.shortfall, fits=False)
        total = self._needed(opened, plan).total
        fits = total <= self._capacity
        if fits:
            self._best = opened, plan
        return SizeTrial(size, total, fits, self._growth(opened, plan))

    def result(self, size: int, refused: SizeTrial | None) -> LargestSize:
        """Return what is said of `size`, the largest that fits, and of the next one."""
        opened, plan = self.best
        following = None if refused is None else RefusedSize(refused.size, refused.total)
        held = {row.name for row in plan.buffers} | set(self._left)
        graph = opened.model.graph
        apart = [value for value in (*graph.inputs, *graph.outputs) if value.name not in held]
        uncounted = sum(tensor_bytes(value, opened.shapes) or 0 for value in apart)
        needed = self._needed(opened, plan)
        return LargestSize(self.name, self.least, size, needed, uncounted, self._capacity, following)

    def _growth(self, opened: Unfolded, plan: PlanResult) -> Growth | None:
        """Return the estimate by the formulas of `plan`; None where no formula depends on the dimension."""
        growth = growth_of(plan, self._word, self._outside(opened))
        return growth if growth(MOST_SIZE) > growth(plan.ranges[self._word][1]) else None

    def _needed(self, opened: Unfolded, plan: PlanResult) -> NeededBytes:
        rows = {row.name: row for row in plan.buffers}
        kept = sum(rows[owner].size for owner in {rows[state.input].alias or state.input for state in plan.states})
        state = kept + sum(size for _, size in self._outside(opened))
        weights, arena = plan.constant_bytes, plan.arena_size - kept
        return NeededBytes(weights, state, arena, weights + state + arena)

    def _outside(self, opened: Unfolded) -> list[tuple[SizeFormula, int]]:
        """Return the bytes of the inputs outside the arena that are states not kept, as formulas and at the largest sizes."""
        values = [value for value in opened.model.graph.inputs if value.name in self._left]
        sizes = [(bytes_formula(value, opened.shapes), tensor_bytes(value, opened.shapes) or 0) for value in values]
        return [(formula or SizeFormula.number(size), size) for formula, size in sizes]

    def _at(self, size: int) -> tuple[Unfolded, PlanSettings]:
        """Return the model with the sizes up to `size`, and the settings of its plan."""
        ranges = {**self.ranged.ranges, self.name: (self.least, size)}
        opened = self.ranged.opened(ranges)
        self.ranged.options.progress(f"planning up to {self.name}={size}")
        return opened, self.ranged.settings(ranges)

    def _planned(self, size: int) -> tuple[Unfolded, PlanResult]:
        """Return the plan up to `size` without a limit, made with little effort."""
        opened, settings = self._at(size)
        return opened, plan_model(*opened, replace(settings, capacity=None, effort=LEVELS["low"]))
