"""The proof of states by execution: runs one after the other in one arena, each going on with the state that the last one left there.

Between two runs, all bytes of the arena but those of states are overwritten. Beside it, onnxruntime runs the whole model as often, and gets
its own outputs as the state of the next run. The bits of all outputs and states must be equal after every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from onnxtile.arena.graph_run import Unsure
from onnxtile.arena.kernel import Corruption, rows_of_state
from onnxtile.arena.memory import ArenaMemory, TensorMemory, same
from onnxtile.arena.run import ArenaExecutor, PlainRun, copy_orders, differences
from onnxtile.declare.plan_document import PlanDocument, PlannedState
from onnxtile.declare.verb import JsonFields
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.model.feeds import Wanted
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import CheckFailed
from onnxtile.system.limits import Progress, silent
from onnxtile.system.process import return_free_memory
from onnxtile.system.runtime import Array

_FROM_DRAWN = 2
"""Further runs from a random first state: zeros may be a state that no run changes."""
_PATTERNS = (0xFF, 0xA5, 0x5A)
"""The bytes of the arena before a run, apart from states."""


@dataclass(frozen=True)
class SizedPlan:
    """A model at one size of each of its dimensions, and its plan there; `sizes` names these where a dimension has a range."""

    opened: Unfolded
    result: PlanDocument
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StateVerdict(JsonFields):
    """Whether runs in one arena, with the state kept in place, give the same bits as as many plain runs.

    `runs` runs followed each other; they end with the first difference. After them, `drawn_runs` followed from a random first state.
    `states` are the names of the inputs and outputs that are one state. `copied` bytes of states were copied after all runs together.
    `differing` is the first tensor with another bit, noticed in the step `step` of run number `at` (from 0). `outputs`, `red_zones`,
    `excused` and `repeated` are as in ArenaVerdict. `sizes` are the sizes of dimensions with a range at which the runs were made, by name.
    """

    JSON = "equal runs states outputs copied differing step at red_zones excused sizes repeated drawn_runs"

    runs: int
    states: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    copied: int
    differing: str | None
    step: int | None
    at: int | None
    red_zones: bool
    excused: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[Mapping[str, int], ...] = ()
    repeated: int = 0
    drawn_runs: int = 0

    @property
    def equal(self) -> bool:
        """Whether every bit was as in the plain runs, and nothing was written around the arena."""
        return self.differing is None and self.red_zones


def state_run(plans: Iterator[SizedPlan], wanted: Wanted, *, progress: Progress = silent) -> StateVerdict:
    """Run each of `plans` once, all in the arena of the first; return whether all bits are those of plain runs.

    All inputs are as `wanted`, with another seed for each run. The first state is given, or zeros for one that does not grow. Raises
    ModelError where onnxruntime cannot run the model, CheckFailed where a plan leaves the arena.
    """
    chain = _StateRuns(wanted)
    sizes: list[Mapping[str, int]] = []
    for number, plan in enumerate(plans):
        progress(f"running with the state in place: run {number + 1}")
        if plan.sizes and plan.sizes not in sizes:
            sizes.append(plan.sizes)
        if not chain.run(plan):
            break
    chain.run_from_drawn()
    return chain.verdict(tuple(sizes))


@dataclass
class _StateRuns:
    """Runs that follow each other: the memory that they share, and the state after the last one of each kind of run."""

    wanted: Wanted
    runs: int = 0
    copied: int = 0
    blocks: Mapping[str, ArenaMemory] | None = None
    corruption: Corruption | None = None
    is_intact: bool = True
    excused: dict[str, str] = field(default_factory=dict)
    drawn_runs: int = 0
    _begin: int = 0
    _plain: dict[str, Any] = field(default_factory=dict)
    _reference: dict[str, Any] = field(default_factory=dict)
    _last: tuple[SizedPlan, ArenaExecutor, PlainRun, Unsure] | None = None

    def run_from_drawn(self) -> None:
        """Run the last plan again, from a random first state, unless the runs began with another than zeros, or were not equal."""
        plan = self._last[0] if self._last is not None else None
        if plan is None or self.corruption is not None or not self.is_intact or self.wanted.given is not None:
            return
        states = plan.result.states
        if self.runs < 2 or any(state.axis is not None for state in states):
            return
        if all(_is_contributed(state, plan) for state in states):
            return
        self._begin = self.runs
        self._plain, self._reference = {}, {}
        while self.drawn_runs < _FROM_DRAWN:
            self.drawn_runs += 1
            if not self.run(plan):
                return

    def run(self, plan: SizedPlan) -> bool:
        """Run `plan` once in the arena and beside it; return whether all bits are equal."""
        executor, plain, unsure = self._prepared(plan)
        states, number = plan.result.states, self.runs
        feeds = dict(self.wanted.feeds(plan.opened.model, plan.opened.shapes.sizes, 1, seed=number)[0])
        is_first = number == self._begin
        carried = set() if is_first else {state.input for state in states}
        for state in states if is_first else ():
            feeds[state.input] = self._first(state, plan, feeds[state.input])
        expected = plain.run({**feeds, **{name: _array(value) for name, value in self._plain.items()}})
        return_free_memory()
        pattern = _PATTERNS[number % len(_PATTERNS)]
        self._overwrite(() if is_first else states, pattern)
        fed = {**feeds, **{name: _array(value) for name, value in self._reference.items()}}
        outputs = executor.run(fed, _order(plan.result, number), carried=carried)
        self.runs += 1
        if isinstance(outputs, Corruption):
            self.corruption = outputs
            return False
        after = {state: replace(outputs[state.output], data=outputs[state.output].data.copy()) for state in states}
        self._compare(outputs, expected, unsure, partial(executor.elsewhere, fed))
        lost = self._copy(states, after, outputs)
        self.corruption = self.corruption or lost
        self._carry(after, expected)
        self.is_intact = all(block.is_intact(pattern) for block in (self.blocks or {}).values())
        return self.corruption is None and self.is_intact

    def verdict(self, sizes: tuple[Mapping[str, int], ...]) -> StateVerdict:
        """Return the verdict of all runs."""
        assert self._last is not None
        plan, executor = self._last[:2]
        wrong = self.corruption
        return StateVerdict(
            runs=self.runs - self.drawn_runs,
            drawn_runs=self.drawn_runs,
            states=tuple((state.input, state.output) for state in plan.result.states),
            outputs=tuple(value.name or "" for value in plan.opened.model.graph.outputs),
            copied=self.copied,
            differing=None if wrong is None else wrong.name,
            step=None if wrong is None else wrong.step,
            at=None if wrong is None and self.is_intact else self.runs - 1,
            red_zones=self.is_intact,
            excused=self.excused,
            sizes=sizes,
            repeated=executor.repeated,
        )

    def _prepared(self, plan: SizedPlan) -> tuple[ArenaExecutor, PlainRun, Unsure]:
        """Return the runs of `plan`, those of the run before where that was of the same plan."""
        if self._last is not None and self._last[0] is plan:
            return self._last[1:]
        opened = Unfolded(*unfold(*plan.opened))
        executor = ArenaExecutor(opened.model, plan.result, opened.shapes, opened.constants, blocks=self.blocks)
        self.blocks = executor.blocks
        plain = PlainRun(opened.model, opened.shapes, executor.addresses)
        unsure = Unsure.of(LayoutFacts(opened.model, opened.shapes, opened.constants))
        self._last = (plan, executor, plain, unsure)
        return self._last[1:]

    def _first(self, state: PlannedState, plan: SizedPlan, drawn: Array) -> Array:
        """Return the value of `state` before the first run: given, or zeros, from which a deployment starts.

        Of a state that grows, the elements that are there are `drawn`; all are in runs from a random state. An operator of onnxruntime
        always begins with zeros: it leaves bytes of a cache unwritten.
        """
        is_zero = _is_contributed(state, plan) or (state.axis is None and not self.drawn_runs)
        return np.zeros_like(drawn) if is_zero and self.wanted.given is None else drawn

    def _overwrite(self, states: tuple[PlannedState, ...], pattern: int) -> None:
        """Fill the arenas with `pattern`, apart from states that an earlier run left there."""
        for name, block in (self.blocks or {}).items():
            kept = [state for state in states if state.arena == name]
            held = [(_bytes(block, state), _bytes(block, state).copy()) for state in kept]
            block.fill(pattern)
            for data, saved in held:
                data[:] = saved

    def _compare(
        self, outputs: Mapping[str, Any], expected: Mapping[str, Any], unsure: Unsure, elsewhere: Callable[[], Any]
    ) -> None:
        self.excused |= unsure.drawn
        excuses = differences(outputs, expected, unsure, elsewhere)
        self.excused |= {name: reason for name, reason in excuses.items() if reason is not None}
        wrong = next((name for name, reason in excuses.items() if reason is None), None)
        self.corruption = None if wrong is None else Corruption(wrong, None)

    def _carry(self, after: Mapping[PlannedState, TensorMemory], expected: Mapping[str, Any]) -> None:
        """Make the outputs `after` the run the states of the next ones; in the arena they must be there by now."""
        for state, memory in after.items():
            if not self._is_there(state, memory):
                raise CheckFailed(f"the state {state.output!r} is not at the address of {state.input!r} after a run")
            # A state whose bits may differ from those of a plain run goes on as it is in the arena.
            value, output = memory.array(), expected[state.output]
            self._reference[state.input] = value
            self._plain[state.input] = _array(output) if same(memory, output) else value

    def _is_there(self, state: PlannedState, memory: TensorMemory) -> bool:
        """Return whether the bytes of `state` hold `memory`, its output."""
        assert self.blocks is not None
        rows = rows_of_state(state, self.blocks, memory.shape)
        if rows is not None:
            held = replace(memory, data=np.empty_like(memory.data))
            rows.read(held)
            return np.array_equal(held.data, memory.data)
        data = _bytes(self.blocks[state.arena or ""], state)
        size = min(len(data), len(memory.data))
        return np.array_equal(data[:size], memory.data[:size])

    def _copy(
        self, states: Iterable[PlannedState], after: Mapping[PlannedState, TensorMemory], results: Mapping[str, Any]
    ) -> Corruption | None:
        """Copy states to their inputs as the plan says; return an output that this overwrites, which the caller reads afterwards."""
        outputs = {name: value for name, value in results.items() if isinstance(value, TensorMemory)}
        before = {name: value.data.copy() for name, value in outputs.items()}
        for state in (state for state in states if state.copied):
            assert self.blocks is not None
            data, output = _bytes(self.blocks[state.arena or ""], state), after[state].data
            size = min(len(data), len(output))
            data[:size] = output[:size]
            self.copied += size
        changed = (name for name, value in outputs.items() if not np.array_equal(value.data, before[name]))
        return next((Corruption(name, None) for name in changed), None)


def _bytes(block: ArenaMemory, state: PlannedState) -> Any:
    data = block.part(state.offset or 0, state.size or 0)
    if data is None:
        raise CheckFailed(f"the plan places the state {state.input!r} outside of the arena")
    return data


def _is_contributed(state: PlannedState, plan: SizedPlan) -> bool:
    outputs = {value.name: value.producer() for value in plan.opened.model.graph.outputs}
    maker = outputs[state.output]
    return maker is not None and maker.domain == "com.microsoft"


def _array(value: Any) -> Any:
    return value.array() if isinstance(value, TensorMemory) else value


def same_plan(opened: Unfolded, result: PlanDocument, runs: int) -> Iterator[SizedPlan]:
    """Yield one plan for each of `runs` runs."""
    plan = SizedPlan(opened, result)
    yield from (plan for _ in range(runs))


def _order(result: PlanDocument, number: int) -> tuple[int, ...] | None:
    """Return the order of run `number`: with copies between memories as they are planned, as early, and as late as that is allowed."""
    if result.movement is None or number % 3 == 0:
        return None
    return copy_orders(result.movement, len(result.schedule))[number % 3 - 1]
