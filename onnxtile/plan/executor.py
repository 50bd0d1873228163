"""Runs a model node by node with every tensor at its planned address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from onnxtile.errors import CheckFailed
from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.plan.alias import Facts, aliases
from onnxtile.plan.bytes import tensor_bytes
from onnxtile.plan.kernel import Kernel, Kernels
from onnxtile.plan.memory import Block, Site, to_bytes
from onnxtile.plan.result import PlanResult
from onnxtile.plan.schedule import own_order
from onnxtile.runtime import Array


class ArenaExecutor:
    """`model`, ready to be run inside an arena that `result` plans.

    `block` is the arena. Tensors that the plan places there are read and written there and nowhere else; graph inputs and
    constants have memory of their own; what has no fixed bytes is an ordinary Python value. Raises CheckFailed where the plan
    leaves the arena or does not give a tensor the bytes it has, ModelError where onnxruntime has no kernel for a node.
    """

    def __init__(self, model: ir.Model, result: PlanResult, shapes: Shapes, constants: Constants) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        self._facts = Facts(model, shapes, constants)
        self.block = Block(result.arena_size, result.alignment)
        self._sites = self._planned_sites(result)
        self._held: dict[ir.Value, Site | Any] = {}
        self._kernels = Kernels(model, shapes)
        self.views = 0
        self._steps: list[Kernel] = []
        for node in own_order(model).nodes:
            self._prepare(node)
        self._hold(model.graph.outputs)

    @property
    def kernels(self) -> int:
        """How many nodes are run as kernels."""
        return len(self._steps)

    @property
    def sessions(self) -> int:
        """How many different kernels those are."""
        return self._kernels.sessions

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Run once; return each graph output by name: a Site, or an ordinary value where it has no fixed bytes.

        Raises ModelError where a kernel refuses what it is given.
        """
        values: dict[ir.Value, Any] = {}
        for value in self._model.graph.inputs:
            if value in self._constants:
                continue
            default = value.const_value.numpy() if value.const_value is not None else None
            values[value] = Site.of(feeds.get(value.name or "", default), self._shapes.dtype(value))
        values |= self._held
        values |= self._sites
        self._link_views(values)
        for kernel in self._steps:
            self._run(kernel, values)
        return {output.name or "": values[output] for output in self._model.graph.outputs}

    def _planned_sites(self, result: PlanResult) -> dict[ir.Value, Site]:
        named = {value.name: value for node in self._model.graph for value in node.outputs if value.name}
        sites = {}
        for buffer in result.buffers:
            value = named[buffer.name]
            dtype, shape = self._shapes.dtype(value), self._shapes.sizes(value)
            if dtype is None or shape is None or tensor_bytes(value, self._shapes) != buffer.size:
                raise CheckFailed(f"the plan gives {buffer.name!r} {buffer.size} bytes, which is not what it takes")
            if buffer.size and not 0 <= buffer.offset <= result.arena_size - buffer.size:
                raise CheckFailed(f"the plan places {buffer.name!r} outside of the arena")
            data = self.block.bytes[buffer.offset : buffer.offset + buffer.size]
            sites[value] = Site(data, self.block.address + buffer.offset, dtype, shape)
        return sites

    def _prepare(self, node: ir.Node) -> None:
        """Note `node` as a step, unless it is computed before the run or is nothing but views."""
        outputs = [value for value in node.outputs if value.name]
        if all(value in self._constants and value not in self._sites for value in outputs):
            return
        if {alias.value for alias in aliases(node, self._facts) if self._shares(alias.value, alias.source)} == {
            *outputs
        }:
            self.views += 1
            self._hold(value for value in node.inputs if value is not None)
            return
        kernel = self._kernels.of(node)
        self._hold(value for _, value in kernel.inputs)
        self._steps.append(kernel)

    def _hold(self, values: Iterable[ir.Value]) -> None:
        """Keep the constants among `values` in memory, for all runs."""
        for value in values:
            if value in self._constants and value not in self._sites and value not in self._held:
                self._held[value] = Site.of(self._constants.array(value), self._shapes.dtype(value))

    def _shares(self, view: ir.Value, source: ir.Value) -> bool:
        """Return whether the plan leaves `view` where `source` is: at the same address, or outside of the arena, both."""
        if view not in self._sites:
            return True
        return source in self._sites and self._sites[view].address == self._sites[source].address

    def _link_views(self, values: dict[ir.Value, Any]) -> None:
        """Give each view outside of the arena the bytes of its source."""
        for node in self._model.graph:
            for alias in aliases(node, self._facts):
                shape = self._shapes.sizes(alias.value)
                source = values.get(alias.source)
                if alias.value not in self._sites and isinstance(source, Site) and shape is not None:
                    values[alias.value] = Site(source.data, source.address, source.dtype, shape)

    def _run(self, kernel: Kernel, values: dict[ir.Value, Any]) -> None:
        inputs = {name: values[value] for name, value in kernel.inputs}
        sites = {name: self._sites.get(value) for name, value in kernel.outputs}
        if all(isinstance(site, Site) for site in (*inputs.values(), *sites.values())):
            outputs = {name: site.binding for name, site in sites.items() if site is not None}
            kernel.session.run_in_place({name: site.binding for name, site in inputs.items()}, outputs)
            return
        feeds = {name: value.array() if isinstance(value, Site) else value for name, value in inputs.items()}
        results = kernel.session.run(feeds)
        for name, value in kernel.outputs:
            site = sites[name]
            if site is None:
                values[value] = results[name]
            else:
                site.data[:] = to_bytes(results[name], site.dtype)
