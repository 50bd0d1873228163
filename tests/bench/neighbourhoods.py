"""Queries made from the neighbourhoods of real nodes, in Aidge's names, so that most of them match somewhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import onnx


@dataclass(frozen=True)
class Link:
    """An edge of the graph: output `output` of `source` is input `input` of `target`."""

    source: str
    output: int
    target: str
    input: int


class Neighbourhoods:
    """The graph of a model by the names of its nodes and constants, and the queries that can be told from it."""

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, str], seed: int) -> None:
        self._types = types
        self._draw = random.Random(seed)
        made = {name: (node.name, i) for node in model.graph.node for i, name in enumerate(node.output)}
        made |= {tensor.name: (tensor.name, 0) for tensor in model.graph.initializer}
        self._forward: dict[str, list[Link]] = {}
        self._backward: dict[str, list[Link]] = {}
        for node in model.graph.node:
            for position, name in enumerate(node.input):
                if name in made:
                    link = Link(*made[name], node.name, position)
                    self._forward.setdefault(link.source, []).append(link)
                    self._backward.setdefault(link.target, []).append(link)
        self._nodes = [node.name for node in model.graph.node if types.get(node.name, "Producer") != "Producer"]

    def queries(self, kind: str, count: int) -> list[str]:
        """Return up to `count` different queries of one of KINDS."""
        found: dict[str, None] = {}
        for _ in range(40 * count):
            if len(found) == count:
                break
            query = KINDS[kind](self)
            if query is not None:
                found.setdefault(query)
        return list(found)

    # Parts

    def _node(self) -> str:
        return self._draw.choice(self._nodes)

    def _links(self, node: str, *, forward: bool) -> list[Link]:
        if forward:
            return self._forward.get(node, [])
        return [link for link in self._backward.get(node, []) if self._types.get(link.source) != "Producer"]

    def _edge(self, link: Link, *, forward: bool) -> str:
        alone = sum(other.output == link.output for other in self._forward[link.source]) == 1
        sign = "-" if alone and self._draw.random() < 0.8 else "~"
        output, input_ = str(link.output), str(link.input)
        if self._draw.random() < 0.3:
            input_ = "*"
        full = output != "0" or self._draw.random() < 0.1
        if forward:
            return f"{sign}{output}-{input_}>" if full else f"{sign}{input_ if input_ != '0' else ''}>"
        return f"<{input_}-{output}{sign}" if full else f"<{input_ if input_ != '0' else ''}{sign}"

    def _path(self, length: int, *, forward: bool | None = None) -> tuple[str, list[tuple[str, str]]] | None:
        """Return a node and the steps away from it, each an edge and the node it leads to, no node twice."""
        start = self._node()
        seen, here, steps = {start}, start, []
        for _ in range(length):
            onward = self._draw.random() < 0.6 if forward is None else forward
            links = [link for link in self._links(here, forward=onward) if {link.source, link.target} - {here} - seen]
            if not links:
                return None
            link = self._draw.choice(links)
            here = link.target if onward else link.source
            seen.add(here)
            steps.append((self._edge(link, forward=onward), here))
        return start, steps

    def _written(self, start: str, steps: list[tuple[str, str]], *, anchors: bool = False) -> str:
        numbers: dict[str, str] = {}
        for position, node in enumerate([start, *(node for _, node in steps)]):
            numbers[node] = f"{self._types[node]}#{position}" if anchors else self._types[node]
        return numbers[start] + "".join(edge + numbers[node] for edge, node in steps)

    # Kinds

    def forward(self) -> str | None:
        """Return a walk along the data."""
        path = self._path(self._draw.randint(1, 4), forward=True)
        return path and self._written(*path)

    def backward(self) -> str | None:
        """Return a walk against it."""
        path = self._path(self._draw.randint(1, 4), forward=False)
        return path and self._written(*path)

    def zigzag(self) -> str | None:
        """Return a walk that turns."""
        path = self._path(self._draw.randint(2, 5))
        return path and self._written(*path)

    def closed(self) -> str | None:
        """Return a walk whose later clause closes a circle between two of its nodes, all of them anchored."""
        path = self._path(self._draw.randint(2, 6), forward=True)
        if path is None:
            return None
        start, steps = path
        nodes = [start, *(node for _, node in steps)]
        walked = set(pairwise(nodes))
        closing = [
            link
            for node in nodes
            for link in self._links(node, forward=True)
            if link.target in nodes and (node, link.target) not in walked
        ]
        if not closing:
            return None
        link = self._draw.choice(closing)
        source, target = (f"{self._types[node]}#{nodes.index(node)}" for node in (link.source, link.target))
        onward = self._draw.random() < 0.6
        edge = self._edge(link, forward=onward)
        clause = f"{source}{edge}{target}" if onward else f"{target}{edge}{source}"
        end = f";{source}~>$" if self._draw.random() < 0.3 else ""
        return f"{self._written(start, steps, anchors=True)};{clause}{end}"

    def misled(self) -> str | None:
        """Return a walk whose later clause leads to a node of the same type as one of the walk's, but perhaps to another."""
        path = self._path(self._draw.randint(2, 5), forward=True)
        if path is None:
            return None
        start, steps = path
        nodes = [start, *(node for _, node in steps)]
        links = [
            (link, node)
            for source in nodes
            for link in self._links(source, forward=True)
            for node in nodes
            if link.target not in nodes and self._types[link.target] == self._types[node] and node != source
        ]
        if not links:
            return None
        link, node = self._draw.choice(links)
        source, target = (f"{self._types[x]}#{nodes.index(x)}" for x in (link.source, node))
        return f"{self._written(start, steps, anchors=True)};{source}{self._edge(link, forward=True)}{target}"

    def producer(self) -> str | None:
        """Return a walk with constants at its nodes."""
        path = self._path(self._draw.randint(1, 3), forward=True)
        if path is None:
            return None
        start, steps = path
        clauses = []
        for position, node in enumerate([start, *(node for _, node in steps)]):
            constants = [x for x in self._backward.get(node, []) if self._types.get(x.source) == "Producer"]
            if constants:
                edge = self._edge(self._draw.choice(constants), forward=False)
                clauses.append(f"{self._types[node]}#{position}{edge}Producer")
        return ";".join([self._written(start, steps, anchors=True), *clauses]) if clauses else None

    def end(self) -> str | None:
        """Return a walk with `$` at its end or at one of its nodes."""
        path = self._path(self._draw.randint(1, 4))
        if path is None:
            return None
        start, steps = path
        nodes = [start, *(node for _, node in steps)]
        position = self._draw.randrange(len(nodes))
        edge = self._draw.choice(["->", "~>", "~*>", "~1>", "<~", "<1~", "<*~"])
        return f"{self._written(start, steps, anchors=True)};{self._types[nodes[position]]}#{position}{edge}$"

    def quantifier(self) -> str | None:
        """Return a walk of which a step is optional or repeated, or has an optional step before it that need not be there."""
        path = self._path(self._draw.randint(2, 4), forward=self._draw.random() < 0.7)
        if path is None:
            return None
        start, steps = path
        changed = self._draw.randrange(len(steps))
        text = self._types[start]
        for position, (edge, node) in enumerate(steps):
            name = self._types[node]
            if position == changed:
                sign = self._draw.choice(["?", "*", "+", "{2}", "other", "block"])
                other = self._types[self._node()]
                written = {"other": f"{edge}{other}?{edge}{name}", "block": f"{edge}({name}{edge}{other})?"}
                text += written.get(sign, f"{edge}{name}{sign}")
            else:
                text += f"{edge}{name}"
        return text

    def repeated(self) -> str | None:
        """Return a walk whose second part, in a block, is optional or repeated."""
        path = self._path(self._draw.randint(2, 5), forward=self._draw.random() < 0.7)
        if path is None:
            return None
        start, steps = path
        cut = self._draw.randrange(len(steps))
        edge, first = steps[cut]
        sign = self._draw.choice("?*+")
        return f"{self._written(start, steps[:cut])}{edge}({self._written(first, steps[cut + 1 :])}){sign}"

    def alternative(self) -> str | None:
        """Return a walk of which a step may be another operator."""
        path = self._path(self._draw.randint(1, 4), forward=self._draw.random() < 0.7)
        if path is None:
            return None
        start, steps = path
        changed = self._draw.randrange(len(steps))
        text = self._types[start]
        for position, (edge, node) in enumerate(steps):
            pair = [self._types[node], self._types[self._node()]]
            self._draw.shuffle(pair)
            text += f"{edge}({'|'.join(pair)})" if position == changed else f"{edge}{self._types[node]}"
        return text

    def parallel(self) -> str | None:
        """Return a node with two of its consumers, or two of its sources, at once, and perhaps what follows the second."""
        forward = self._draw.random() < 0.7
        start = self._node()
        ends = list(dict.fromkeys((x.target if forward else x.source) for x in self._links(start, forward=forward)))
        if len(ends) < 2:
            return None
        first, second = self._draw.sample(ends, 2)
        edge = "~*>" if forward else "<*~"
        text = f"{self._types[start]}{edge}({self._types[first]}&{self._types[second]})"
        links = self._links(second, forward=forward)
        if links and self._draw.random() < 0.5:
            link = self._draw.choice(links)
            text += self._edge(link, forward=forward) + self._types[link.target if forward else link.source]
        return text

    def anything(self) -> str | None:
        """Return a walk of which one node is `.`."""
        path = self._path(self._draw.randint(1, 3))
        if path is None:
            return None
        start, steps = path
        dotted = self._draw.randrange(len(steps) + 1)
        names = ["." if i == dotted else self._types[node] for i, (_, node) in enumerate([("", start), *steps])]
        return names[0] + "".join(edge + name for (edge, _), name in zip(steps, names[1:], strict=True))

    def all(self, each: int) -> Iterator[tuple[str, str]]:
        """Yield `each` queries of every kind, with the kind."""
        for kind in KINDS:
            yield from ((kind, query) for query in self.queries(kind, each))


KINDS: dict[str, Callable[[Neighbourhoods], str | None]] = {
    "forward walk": Neighbourhoods.forward,
    "backward walk": Neighbourhoods.backward,
    "walk that turns": Neighbourhoods.zigzag,
    "closed by an anchor": Neighbourhoods.closed,
    "closed by its type": Neighbourhoods.misled,
    "with constants": Neighbourhoods.producer,
    "$": Neighbourhoods.end,
    "quantifier": Neighbourhoods.quantifier,
    "repeated block": Neighbourhoods.repeated,
    "alternative": Neighbourhoods.alternative,
    "parallel": Neighbourhoods.parallel,
    "any node": Neighbourhoods.anything,
}
