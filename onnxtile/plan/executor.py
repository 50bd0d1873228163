"""Runs a model node by node, twice in lockstep: with every tensor at its planned address, and with memory of its own for each.

A clash is noticed when it happens, also where it would not reach an output: a softmax of equal numbers hides much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxtile.errors import CheckFailed, ModelError
from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.plan.alias import Alias, Facts, parts, views
from onnxtile.plan.bytes import tensor_bytes
from onnxtile.plan.kernel import Kernel, Kernels
from onnxtile.plan.memory import Block, Site
from onnxtile.plan.result import PlanResult
from onnxtile.plan.schedule import named
from onnxtile.runtime import Array

_Values: TypeAlias = dict[ir.Value, Any]
"""Of each value a Site, or an ordinary Python value where it has no fixed bytes."""


@dataclass(frozen=True)
class _View:
    """A node that is not run: each output is the input beside it under another shape."""

    pairs: tuple[tuple[ir.Value, ir.Value], ...]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        return tuple(source for _, source in self.pairs)


@dataclass(frozen=True)
class _Moves:
    """A node that moves bytes, of which some are there already: in the arena only the others are copied.

    `there` are those, by output the ranges of its bytes, from start to end.
    """

    kernel: Kernel
    there: Mapping[ir.Value, tuple[tuple[int, int], ...]]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        return self.kernel.reads

    def is_needless(self, sites: Mapping[ir.Value, Site]) -> bool:
        """Return whether every byte is there already."""
        return all(not _rest(self.there.get(v, ()), len(sites[v].data)) for _, v in self.kernel.outputs if v in sites)


@dataclass(frozen=True)
class Clash:
    """A tensor that does not hold what was written to it, or not what its node computes.

    `step` is that of the node that was to read it, or that has just written it; None after the last one.
    """

    name: str
    step: int | None


class ArenaExecutor:
    """`model`, ready to be run inside an arena that `result` plans.

    `blocks` are the arenas by name. Tensors that the plan places there are read and written there and nowhere else; graph inputs and
    constants have memory of their own; what has no fixed bytes is an ordinary Python value. Raises CheckFailed where the plan
    leaves the arena or does not give a tensor the bytes it has, ModelError where onnxruntime has no kernel for a node.
    """

    def __init__(self, model: ir.Model, result: PlanResult, shapes: Shapes, constants: Constants) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        self._facts = Facts(model, shapes, constants)
        self._kernels = Kernels(model, shapes)
        self.blocks = {arena.name: Block(arena.size, result.alignment) for arena in result.arenas}
        self._sites = self._planned_sites(result)
        self._kept_inputs = [v for v in model.graph.inputs if v in self._sites and not result.overwrite_inputs]
        self._held: _Values = {}
        self._steps: dict[int, Kernel | _View | _Moves] = {}
        self._numbers = result.steps
        for place, node in enumerate(named(model.graph, result.schedule, result.steps).nodes):
            self._prepare(place, node)
        self._hold(model.graph.outputs)

    @property
    def kernels(self) -> int:
        """How many nodes are run as kernels."""
        return len(self._steps) - self.views

    @property
    def views(self) -> int:
        """How many nodes are not run, since what they give is there already."""
        moves = (step for step in self._steps.values() if isinstance(step, _Moves))
        return sum(isinstance(s, _View) for s in self._steps.values()) + sum(m.is_needless(self._sites) for m in moves)

    @property
    def sessions(self) -> int:
        """How many different kernels there are."""
        return self._kernels.sessions

    def run(self, feeds: Mapping[str, Array], order: Iterable[int] | None = None) -> dict[str, Any] | Clash:
        """Run once; return each graph output by name (a Site, or an ordinary value), or the first clash.

        `order` are places in the plan's schedule, where the nodes are to run in another order than that.

        Raises ModelError where a kernel refuses what it is given outside of the arena, too.
        """
        shadow: _Values = {**self._fed(feeds), **self._held}
        arena: _Values = {**shadow, **self._sites}
        for value in self._model.graph.inputs:
            if value in self._sites:
                self._sites[value].data[:] = shadow[value].data
        places = [place for place in order if place in self._steps] if order is not None else list(self._steps)
        dead_after = self._last_reads(places)
        for place in places:
            step = self._steps[place]
            if isinstance(step, _View):
                self._link(step, arena, shadow)
            else:
                clash = self._lockstep(self._numbers[place], step, arena, shadow)
                if clash is not None:
                    return clash
            for value in dead_after.get(place, ()):
                shadow.pop(value, None)
        for value in (*self._model.graph.outputs, *self._kept_inputs):
            if not _same(arena[value], shadow[value]):
                return Clash(value.name or "", None)
        return {output.name or "": arena[output] for output in self._model.graph.outputs}

    def _lockstep(self, number: int, step: Kernel | _Moves, arena: _Values, shadow: _Values) -> Clash | None:
        kernel = step.kernel if isinstance(step, _Moves) else step
        for _, value in kernel.inputs:
            if not _same(arena[value], shadow[value]):
                return Clash(value.name or "", number)
        self._run(kernel, shadow, {value: self._room(value) for _, value in kernel.outputs})
        try:
            self._run_inside(step, arena)
        except ModelError:
            # It has just run on the same inputs elsewhere: where it writes is at fault.
            return Clash(kernel.outputs[0][1].name or "", number)
        for _, value in kernel.outputs:
            if not _same(arena[value], shadow[value]):
                return Clash(value.name or "", number)
        return None

    def _run_inside(self, step: Kernel | _Moves, arena: _Values) -> None:
        if isinstance(step, Kernel):
            self._run(step, arena, {value: self._sites.get(value) for _, value in step.outputs})
            return
        outputs = [value for _, value in step.kernel.outputs]
        beside = dict(arena)
        self._run(step.kernel, beside, {value: self._room(value) for value in outputs})
        for value in outputs:
            site = self._sites.get(value)
            if site is None:
                arena[value] = beside[value]
                continue
            for start, end in _rest(step.there.get(value, ()), len(site.data)):
                site.data[start:end] = beside[value].data[start:end]
            arena[value] = site

    def _link(self, view: _View, arena: _Values, shadow: _Values) -> None:
        for value, source in view.pairs:
            shape = self._shapes.sizes(value)
            assert shape is not None
            shadow[value] = shadow[source].reshaped(shape)
            if value not in self._sites:
                arena[value] = arena[source].reshaped(shape)

    def _run(self, kernel: Kernel, values: _Values, rooms: Mapping[ir.Value, Site | None]) -> None:
        """Run `kernel` on `values`, and put what it gives into `rooms` and `values`."""
        inputs = {name: values[value] for name, value in kernel.inputs}
        is_fixed = not any(self._shapes.is_bound(value) for _, value in kernel.outputs)
        if is_fixed and all(isinstance(site, Site) for site in (*inputs.values(), *rooms.values())):
            outputs = {name: room.binding for name, value in kernel.outputs if (room := rooms[value]) is not None}
            kernel.session.run_in_place({name: site.binding for name, site in inputs.items()}, outputs)
            values.update(rooms)
            return
        feeds = {name: value.array() if isinstance(value, Site) else value for name, value in inputs.items()}
        results = kernel.session.run(feeds)
        for name, value in kernel.outputs:
            room = rooms[value]
            values[value] = results[name] if room is None else self._filled(room, results[name], value)

    def _filled(self, room: Site, result: Any, value: ir.Value) -> Site:
        try:
            return room.filled(result)
        except ValueError as error:
            raise CheckFailed(f"{value.name!r} is larger in a run than its bound: {error}") from error

    def _fed(self, feeds: Mapping[str, Array]) -> _Values:
        values: _Values = {}
        for value in self._model.graph.inputs:
            if value not in self._constants:
                default = value.const_value.numpy() if value.const_value is not None else None
                values[value] = Site.of(feeds.get(value.name or "", default), self._shapes.dtype(value))
        return values

    def _room(self, value: ir.Value) -> Site | None:
        """Return memory of its own for what the arena has a place for."""
        site = self._sites.get(value)
        return Site.empty(site.dtype, site.shape, len(site.data)) if site is not None else None

    def _planned_sites(self, result: PlanResult) -> dict[ir.Value, Site]:
        made = (value for node in self._model.graph for value in node.outputs)
        named = {value.name: value for value in (*self._model.graph.inputs, *made) if value.name}
        sites = {}
        for buffer in result.tensors:
            value = named[buffer.name]
            dtype, shape = self._shapes.dtype(value), self._shapes.sizes(value)
            if dtype is None or shape is None or tensor_bytes(value, self._shapes) != buffer.size:
                raise CheckFailed(f"the plan gives {buffer.name!r} {buffer.size} bytes, which is not what it takes")
            block = self.blocks.get(buffer.arena)
            if block is None or (buffer.size and not 0 <= buffer.offset <= len(block.bytes) - buffer.size):
                raise CheckFailed(f"the plan places {buffer.name!r} outside of the arena")
            data = block.bytes[buffer.offset : buffer.offset + buffer.size]
            sites[value] = Site(data, block.address + buffer.offset, dtype, shape)
        return sites

    def _prepare(self, place: int, node: ir.Node) -> None:
        """Note how `node` is run, unless it is computed before the run."""
        outputs = [value for value in node.outputs if value.name]
        if all(value in self._constants and value not in self._sites for value in outputs):
            return
        shared = {a.value: a.source for a in views(node, self._facts) if self._shares(a)}
        if any(self._shapes.is_bound(value) for value in outputs):
            shared = {}  # how it is seen, only a run tells
        if shared.keys() == set(outputs):
            self._steps[place] = _View(tuple(shared.items()))
            self._hold(shared.values())
            return
        kernel = self._kernels.of(node)
        self._hold(kernel.reads)
        there = self._there(node)
        self._steps[place] = _Moves(kernel, there) if there else kernel

    def _there(self, node: ir.Node) -> dict[ir.Value, tuple[tuple[int, int], ...]]:
        """Return which bytes of its outputs `node` need not move."""
        found: dict[ir.Value, tuple[tuple[int, int], ...]] = {}
        for alias in parts(node, self._facts):
            if alias.value in self._sites and alias.source in self._sites and self._shares(alias):
                start = max(0, -alias.at)
                end = min(len(self._sites[alias.value].data), len(self._sites[alias.source].data) - alias.at)
                found[alias.value] = (*found.get(alias.value, ()), (start, end))
        return found

    def _shares(self, alias: Alias) -> bool:
        """Return whether the plan leaves both where they may share bytes: in their places in the arena, or both outside of it."""
        if alias.value not in self._sites:
            return True
        sites = self._sites
        return alias.source in sites and sites[alias.value].address == sites[alias.source].address + alias.at

    def _hold(self, values: Iterable[ir.Value]) -> None:
        """Keep the constants among `values` in memory, for all runs."""
        for value in values:
            if value in self._constants and value not in self._sites and value not in self._held:
                self._held[value] = Site.of(self._constants.array(value), self._shapes.dtype(value))

    def _last_reads(self, places: Iterable[int]) -> dict[int, list[ir.Value]]:
        """Return by place what is read there for the last time in this order, so that the run beside the arena need not keep everything."""
        last: dict[ir.Value, int] = {}
        for number in places:
            step = self._steps[number]
            last.update(dict.fromkeys(step.reads, number))
            kernel = step.kernel if isinstance(step, _Moves) else step
            if isinstance(kernel, Kernel):
                last.update({value: number for _, value in kernel.outputs})
        found: dict[int, list[ir.Value]] = {}
        for value, number in last.items():
            if value not in self._held and not value.is_graph_output() and value not in self._kept_inputs:
                found.setdefault(number, []).append(value)
        return found


def _rest(there: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the ranges of `size` bytes that are not in `there`."""
    found, at = [], 0
    for start, end in (*sorted(there), (size, size)):
        if at < start:
            found.append((at, start))
        at = max(at, end)
    return found


def _same(found: Any, expected: Any) -> bool:
    """Return whether a tensor in the arena has the bytes it should; ordinary values are compared as outputs, at the end."""
    if found is expected or not isinstance(found, Site):
        return True
    return isinstance(expected, Site) and found.equals(expected)
