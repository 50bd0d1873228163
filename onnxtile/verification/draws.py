"""Random operators of two models that are compared: both models draw the same numbers.

Before the models run, each random operator of one is paired with one of the other, by the name of its result or else by its place in the
order of the runs, and both get one seed where they have none. onnxruntime then draws the same numbers in the first run of each session.
Outputs that depend on a random operator without a partner are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import SEED, RandomNodes, has_seed, holders
from onnxtile.model.topology import all_nodes, bodies_of, followers
from onnxtile.operators.table import may_draw
from onnxtile.system.dataclass import dataclass

if TYPE_CHECKING:
    from onnxtile.verification.trials import Verdict

_NAMED = 3
"""Random nodes that a reason names."""
_MOST = 10_000
"""Runs of random operators in all calls of functions that are paired, at most."""
_STEP = 104_729
"""The distance of two seeds: the numbers of small seeds begin alike, and those of 0 and 1 are the same. Steps have other seeds."""
_WHOLE = frozenset({"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Dropout"})
"""The random operators whose seed is a whole number; it is a float in the others."""
_CHOOSING = frozenset({"Bernoulli", "Multinomial", "Sampling"})
"""The random operators that choose by the size of their operands: the least change of one becomes a large change of the result."""
_SEEDED = "random operators have the same seeds in both models"


@dataclass(frozen=True)
class SameDraws:
    """Two models to compare whose random operators draw the same numbers, in copies where seeds were added.

    `seeded` outputs depend on an operator that got a seed, outputs `apart` on one without a partner: by name, with the reason.
    """

    first: ir.Model
    second: ir.Model
    seeded: frozenset[str]
    apart: Mapping[str, str]

    def judged(self, verdict: Verdict) -> Verdict:
        """Return `verdict` without the outputs that are not compared, which it names; what is compared by seeds says so."""
        outputs = (
            replace(output, reason=f"{output.reason}; {_SEEDED}" if output.reason else _SEEDED)
            if output.name in self.seeded
            else output
            for output in verdict.outputs
            if output.name not in self.apart
        )
        names = [output.name for output in verdict.outputs if output.name in self.apart]
        return replace(verdict, outputs=tuple(outputs), not_compared={name: self.apart[name] for name in names})


def same_draws(original: ir.Model, other: ir.Model) -> SameDraws:
    """Return both models with random operators that draw the same numbers; the models themselves where there are none."""
    if not any(map(may_draw, all_nodes(original))) and not any(map(may_draw, all_nodes(other))):
        return SameDraws(original, other, frozenset(), {})
    first, second = original.clone(), other.clone()
    runs = [_runs(model) for model in (first, second)]
    seeded, apart = _give_seeds(*runs)
    followed = [_followers(model, apart) for model in (first, second)]
    reasons = {name: _reason(names) for by_name in reversed(followed) for name, names in by_name.items()}
    changed = {name for model in (first, second) for name in _followers(model, seeded)}
    return SameDraws(first, second, frozenset(changed - reasons.keys()), reasons)


def drawn_outputs(model: ir.Model, constants: Constants | None = None) -> dict[str, str]:
    """Return the outputs of `model` that depend on random numbers, by name with the reason."""
    if not any(map(may_draw, all_nodes(model))):
        return {}
    random = RandomNodes(model, Constants(model) if constants is None else constants)
    return {name: f"it {_follows(names)}" for name, names in _followers(model, random.themselves).items()}


def unsteady_outputs(model: ir.Model) -> frozenset[str]:
    """Return the outputs of `model` that change at random, or at once, where its inputs change a little.

    They depend on a random operator without a seed, or on one that chooses by the size of its operands. Behind all others the same
    numbers are drawn again, so that what an output moves is the effect of the inputs.
    """
    if not any(map(may_draw, all_nodes(model))):
        return frozenset()
    random = RandomNodes(model, Constants(model)).themselves
    unsteady = [node for node in random if node.op_type in _CHOOSING or not has_seed(node)]
    return frozenset(_followers(model, unsteady))


def _followers(model: ir.Model, nodes: Iterable[ir.Node]) -> dict[str, dict[str, None]]:
    """Return the outputs of `model` that depend on one of `nodes`, which may be in bodies and functions, with the names of some."""
    wanted = set(nodes)
    if not wanted:
        return {}
    holds = holders(model, wanted.__contains__)
    values = followers(model.graph, {node for node in model.graph if holds(node)}, _NAMED + 1)
    return {value.name: values[value] for value in model.graph.outputs if value.name and value in values}


def _follows(names: Mapping[str, None]) -> str:
    listed = ", ".join(map(repr, list(names)[:_NAMED])) + (" ..." if len(names) > _NAMED else "")
    return f"follows from {listed}, which draw{'s' * (len(names) == 1)} random numbers"


def _reason(names: Mapping[str, None]) -> str:
    return f"it {_follows(names)}, and not the same ones in both models"


def _runs(model: ir.Model) -> list[ir.Node]:
    """Return the random operators of `model` in the order in which they run, those of a function once for each call.

    Of too many, one more than is paired.
    """
    random = RandomNodes(model, Constants(model))

    def run(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
        for node in nodes:
            if node in random.themselves:
                yield node
            elif node in random:
                for body in bodies_of(node):
                    yield from run(body.graph)
                yield from run(model.functions.get(node.op_identifier(), ()))

    return list(islice(run(model.graph), _MOST + 1))


def _give_seeds(first: list[ir.Node], second: list[ir.Node]) -> tuple[set[ir.Node], set[ir.Node]]:
    """Give one seed to nodes of two models that run in the place of each other, in place; return these nodes, and those left apart.

    A node that has a seed keeps it, and is left alone.
    """
    partners: dict[ir.Node, list[ir.Node]] = {node: [] for node in (*first, *second)}
    for first_node, other in _pairs(first, second):
        partners[first_node].append(other)
        partners[other].append(first_node)
    seeded: set[ir.Node] = set()
    apart: set[ir.Node] = set()
    done: set[ir.Node] = set()
    for node in partners:
        group = _group(node, partners, done)
        seeds = [has_seed(first_node) for first_node in group]
        if len(group) > 1 and not any(seeds):
            _put_seed(group, _STEP * (len(seeded) + 1))
            seeded.update(group)
        elif not all(seeds):
            apart.update(group)
    return seeded, apart


def _group(start: ir.Node, partners: Mapping[ir.Node, list[ir.Node]], done: set[ir.Node]) -> list[ir.Node]:
    """Return the nodes that must have the seed of `start`: its partners, their partners, and so on; none that is `done`."""
    group, pending = [], [start]
    while pending:
        node = pending.pop()
        if node not in done:
            done.add(node)
            group.append(node)
            pending += partners[node]
    return group


def _pairs(first: list[ir.Node], second: list[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Yield the nodes of two models that run in the place of each other: by name, the others by their order where the operators agree."""
    if max(len(first), len(second)) > _MOST:
        return
    named = [_by_name(nodes) for nodes in (first, second)]
    both = {name for name, node in named[0].items() if name in named[1] and node.op_type == named[1][name].op_type}
    yield from ((named[0][name], named[1][name]) for name in named[0] if name in both)
    left = [[node for node in nodes if node.outputs[0].name not in both] for nodes in (first, second)]
    if [node.op_type for node in left[0]] == [node.op_type for node in left[1]]:
        yield from zip(*left, strict=True)


def _by_name(nodes: list[ir.Node]) -> dict[str, ir.Node]:
    """Return the nodes by the names of their results, which no other one has."""
    counts = Counter(node.outputs[0].name for node in nodes)
    return {name: node for node in nodes if (name := node.outputs[0].name) and counts[name] == 1}


def _put_seed(nodes: Iterable[ir.Node], seed: int) -> None:
    for node in nodes:
        node.attributes[SEED] = (
            ir.AttrInt64(SEED, seed) if node.op_type in _WHOLE else ir.AttrFloat32(SEED, float(seed))
        )
