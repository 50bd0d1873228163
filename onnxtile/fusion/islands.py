"""Quantised islands: an operator with the DequantizeLinear nodes that it reads and the QuantizeLinear nodes that read it.

Such nodes compute on quantised tensors as one kernel (Jacob et al., arXiv 1712.05877); what is between them is never stored. A
DequantizeLinear node that several islands read is copied into each: it computes nothing that a kernel would not compute on reading. So are
operators that compute element by element on few quantised tensors, where their floats would be stored for several readers.

A product of integers is an island with the Cast and the Mul that scale its sums, and what follows element by element.
Attention between quantised tensors is one island.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.island_rule import IslandRule
from onnxtile.fusion.metaop import FusedRegion
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import OWN_DOMAINS, dequantises, quantises, quantises_at_run, sums_integers
from onnxtile.model.opset import Opsets
from onnxtile.model.topology import has_body, has_containers, is_read_outside, only_reader
from onnxtile.operators.table import No, factors_of, may_draw, movement_of, operator_of
from onnxtile.shapes.contributed import fits_in_function
from onnxtile.system.dataclass import dataclass

# One quantised island: its nodes, and the region of the graph that becomes its call.


@dataclass(frozen=True)
class Island:
    """`nodes` in the order in which they depend on each other; `operators` are those that neither quantise nor dequantise.

    `copied` operators compute the operands of these, element by element, and may be in other islands, too. `scaling` nodes make and apply
    the scales of a product of integers. Of attention, `query` is Q as it is stored, where the result may be written over it.
    """

    nodes: tuple[ir.Node, ...]
    operators: tuple[ir.Node, ...]
    is_view: bool = False
    copied: tuple[ir.Node, ...] = ()
    scaling: frozenset[ir.Node] = frozenset()
    is_attention: bool = False
    query: ir.Value | None = None

    @property
    def name(self) -> str:
        """The name of its meta-op: Q and the operators in it."""
        if self.is_attention:
            return "QScaledDotProductAttention"
        named = [node for node in (*self.copied, *self.operators) if node not in self.scaling]
        operators = [keys.meta_op(node.op_type) for node in named] or ["Requantize"]
        return f"Q{''.join(operators)}{'View' if self.is_view else ''}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What its function is marked with."""
        return (keys.ISLAND, keys.VIEW) if self.is_view else (keys.ISLAND,)


def island_region(island: Island) -> FusedRegion:
    """Return the region of one meta-op. Every operand is an input, also a constant, so that islands of one structure share a function."""
    members = set(island.nodes)
    results = {value for node in island.nodes for value in node.outputs}
    read = dict.fromkeys(
        value for node in island.nodes for value in node.inputs if value is not None and value not in results
    )
    computing = set(island.operators)
    uncopied = [node for node in island.nodes if node in computing or quantises(node)]
    outputs = [value for node in uncopied for value in node.outputs if is_read_outside(value, members)]
    return FusedRegion(island.nodes, tuple(read), tuple(outputs), (), frozenset(island.nodes) - set(uncopied))


def overwritten(island: Island, part: FusedRegion, rule: IslandRule) -> tuple[int, ...]:
    """Return the places of the operands of `part` that the kernel may write its result over."""
    if island.is_attention:
        return tuple(index for index, value in enumerate(part.inputs) if value is island.query)
    if not island.operators or any(node.op_type not in rule.in_place for node in island.operators):
        return tuple(index for index, value in enumerate(part.inputs) if value in _states(island))
    scales = {value for node in island.nodes if quantises(node) or dequantises(node) for value in node.inputs[1:]}
    return tuple(index for index, value in enumerate(part.inputs) if value not in scales)


def _states(island: Island) -> frozenset[ir.Value]:
    """Return the operands that an island of one operator makes the next value of, as ScatterND of a cache: floats, or stored."""
    if len(island.operators) != 1:
        return frozenset()
    node = island.operators[0]
    row = operator_of(node)
    if row is None or not row.is_standard or isinstance(row.over, No):
        return frozenset()
    states = set[ir.Value]()
    for index in row.state.values():
        value = node.inputs[index]
        if value is None or (row.over is not None and index not in row.over):
            continue
        maker = value.producer()
        stored = maker.inputs[0] if maker in island.nodes and maker is not None and dequantises(maker) else value
        readers = [(reader, at) for reader in island.nodes for at, read in enumerate(reader.inputs) if read is stored]
        if stored is not None and len(readers) == 1:
            states.add(stored)
    return frozenset(states)


# Quantised attention as a whole: both products, and all between them, as one kernel that stores no scores.
#
# Such a kernel reads Q, K and V as stored, and computes its result row by row (Dao et al., arXiv 2205.14135). All three are live with the
# result, which may lie over Q. Node by node, the scores are live with two of them. A site becomes one kernel only where that needs no more
# bytes.

SizesOf: TypeAlias = Callable[[ir.Value], Sequence[int] | None]
"""Gives the sizes of a value; None where one is not known."""

_SOFTMAX = frozenset({"QLinearSoftmax", "Softmax"})
_PRODUCTS = frozenset({"MatMul", "QLinearMatMul"})

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze"})

_MOST_BETWEEN = 64
"""The largest number of nodes between the products."""


@dataclass(frozen=True)
class AttentionCore:
    """The product of the scores, the nodes between, and the product with V, in the order of the file.

    `over_query` says whether result and Q have one shape.
    """

    scores: ir.Node
    between: tuple[ir.Node, ...]
    context: ir.Node
    over_query: bool

    def products(self) -> tuple[tuple[ir.Node, ir.Value], ...]:
        """Return Q, K and V, each after the product that reads it."""
        read = [
            (product, position) for product in (self.scores, self.context) for position in factors_of(product) or ()
        ]
        # The first operand of the second product are the weights that the scores became.
        return tuple(
            (node, value) for node, position in read[:2] + read[3:] if (value := node.inputs[position]) is not None
        )


@dataclass(frozen=True)
class AttentionFinder:
    """Finds attention in one graph; `places` are those of its nodes in the file, `version` that of the standard operators."""

    rule: IslandRule
    constants: Constants
    places: Mapping[ir.Node, int]
    version: int
    sizes_of: SizesOf

    def around(self, softmax: ir.Node) -> AttentionCore | None:
        """Return the attention around `softmax`; None where there is none, or where it might need more bytes as one kernel."""
        if softmax.op_type not in _SOFTMAX or softmax.domain not in OWN_DOMAINS:
            return None
        for scores in self._products_before(softmax):
            between = self._between(scores)
            context = None if between is None or softmax not in between else self._context(between)
            if between is not None and context is not None:
                ordered = sorted(between - {scores}, key=self.places.__getitem__)
                return self._fitting(AttentionCore(scores, tuple(ordered), context, False), softmax)
        return None

    def _products_before(self, softmax: ir.Node) -> Iterator[ir.Node]:
        """Yield the products from which a way leads to `softmax`, the nearest first."""
        seen: dict[ir.Node, None] = {softmax: None}
        for node in (waiting := [softmax]):
            for value in node.inputs:
                maker = None if value is None or value in self.constants else value.producer()
                if maker is None or maker in seen or maker not in self.places:
                    continue
                seen[maker] = None
                if self._multiplies(maker):
                    yield maker
                elif self._may_be_between(maker) and len(waiting) < _MOST_BETWEEN:
                    waiting.append(maker)

    def _between(self, scores: ir.Node) -> set[ir.Node] | None:
        """Return `scores` and all nodes that depend on it, up to the next products; None where others than these depend on it."""
        between = {scores}
        for node in (waiting := [scores]):
            for value in node.outputs:
                if value.is_graph_output():
                    return None
                for reader in {use.node for use in value.uses()} - between:
                    if self._multiplies(reader):
                        continue
                    if not self._may_be_between(reader) or len(between) > _MOST_BETWEEN:
                        return None
                    between.add(reader)
                    waiting.append(reader)
        return between

    def _context(self, between: set[ir.Node]) -> ir.Node | None:
        """Return the only product that reads what `between` makes, as its first operand alone."""
        uses = [use for node in between for value in node.outputs for use in value.uses() if use.node not in between]
        return uses[0].node if len(uses) == 1 and uses[0].idx == 0 else None

    def _multiplies(self, node: ir.Node) -> bool:
        """Return whether `node` is a product of two computed tensors."""
        factors = factors_of(node)
        if (
            factors is None
            or node.op_type not in _PRODUCTS
            or node.domain not in OWN_DOMAINS
            or node not in self.places
        ):
            return False
        operands = (node.inputs[position] for position in factors)
        return all(value is not None and value not in self.constants for value in operands)

    def _may_be_between(self, node: ir.Node) -> bool:
        if node not in self.places or node.domain not in OWN_DOMAINS:
            return False
        return quantises(node) or dequantises(node) or node.op_type in self.rule.attention

    def _fitting(self, core: AttentionCore, softmax: ir.Node) -> AttentionCore | None:
        """Return `core` where its rows stay rows, and one kernel needs no more bytes than its nodes, in elements of one size."""
        results = core.scores.outputs[0], core.context.outputs[0]
        sizes = [self.sizes_of(value) for value in (*(value for _, value in core.products()), *results)]
        if any(shape is None or len(shape) < 2 for shape in sizes):
            return None
        query, keys, values, scores, result = (shape for shape in sizes if shape is not None)
        if not self._runs_along_rows(softmax, len(scores)):
            return None
        for node in core.between:
            moved = self.sizes_of(node.outputs[0]) if node.op_type in _VIEWS else scores
            if moved is None or list(moved[-2:]) != list(scores[-2:]):
                return None
        over_query = list(query) == list(result)
        first, second, third, middle, last = map(math.prod, (query, keys, values, scores, result))
        whole = first + second + third + (0 if over_query else last)
        if whole > max(first + second + middle, middle + third + last):
            return None
        return AttentionCore(core.scores, core.between, core.context, over_query)

    def _runs_along_rows(self, softmax: ir.Node, rank: int) -> bool:
        sizes = self.sizes_of(softmax.outputs[0])
        default = -1 if self.version >= 13 or softmax.op_type != "Softmax" else 1
        return softmax.attributes.get_int("axis", default) in {-1, (rank if sizes is None else len(sizes)) - 1}


_REDUCED_BITS = 8
"""The bits that a stored reduction, such as a mean, takes for each element that is computed with it: a quarter of a float or fewer."""

_MOST_COPIED = 8
"""The largest number of operators that are computed again for each reader of their result."""


def islands(
    model: ir.Model, graph: ir.Graph, rule: IslandRule, constants: Constants, sizes_of: SizesOf | None = None
) -> Iterator[Island]:
    """Yield the islands of `graph`, no two of which share a node that is not copied: attention first, then in the order of the file.

    `sizes_of` gives the sizes of tensors; without it no attention is one island.
    """
    finder = _Finder(model, graph, rule, constants)
    if sizes_of is not None and rule.attention:
        for node in graph:
            island = finder.attention(node, sizes_of)
            if island is not None:
                yield island
    for node in graph:
        island = finder.of_integers(node) if sums_integers(node) else finder.around(node)
        if island is not None:
            yield island
    for node in graph:
        island = finder.requantising(node)
        if island is not None:
            yield island


@dataclass(frozen=True)
class _Computed:
    """The nodes that compute a value from quantised tensors, operands first, and the bits of an element of each of these tensors."""

    nodes: tuple[ir.Node, ...]
    sources: Mapping[ir.Value, int]


class _Finder:
    def __init__(self, model: ir.Model, graph: ir.Graph, rule: IslandRule, constants: Constants) -> None:
        self._model = model
        self._graph = graph
        self._rule = rule
        self._constants = constants
        self._opsets = Opsets(model).opsets_of(graph)
        self._taken: set[ir.Node] = set()
        self._ending_in_floats: set[ir.Node] = set()
        self._places = {node: position for position, node in enumerate(graph)}
        self._copied: dict[ir.Node, _Computed] = {}
        for node in graph:
            computed = self._to_copy(node)
            if computed is not None:
                self._copied[node] = computed

    def around(self, core: ir.Node) -> Island | None:
        """Return the island whose first operator is `core`; None where nothing around it is quantised."""
        if core in self._taken or core in self._copied or not self._may_begin(core):
            return None
        operators, quantisers = self._downwards(core)
        nodes: dict[ir.Node, None] = {}
        for operator in operators:
            nodes |= dict.fromkeys(maker for value in operator.inputs for maker in self._operand(value))
            nodes[operator] = None
        if len(nodes) == len(operators) and not quantisers:
            return None
        nodes |= dict.fromkeys(quantisers)
        self._taken.update(operators, quantisers)
        return self._island(nodes, operators, quantisers)

    def attention(self, softmax: ir.Node, sizes_of: SizesOf) -> Island | None:
        """Return the island of the attention around `softmax`; None where its operands and its result are not all quantised."""
        finder = AttentionFinder(self._rule, self._constants, self._places, self._opsets.get("", 1), sizes_of)
        core = finder.around(softmax)
        if core is None:
            return None
        members = [core.scores, *core.between, core.context]
        computing = [node for node in members if not quantises(node) and not dequantises(node)]
        if self._taken & set(members) or not all(map(self._may_be_inside, computing)):
            return None
        stored = [self._source(product, value) for product, value in core.products()]
        following, quantisers = self._chain([core.context])
        if None in stored or (not quantisers and core.context.op_type == "MatMul"):
            return None
        following = following if quantisers else [core.context]
        operators = [*computing[:-1], *following]
        nodes = self._with_operands([*members[:-1], *following])
        self._taken.update(members, following, quantisers)
        query = stored[0] if core.over_query and stored.count(stored[0]) == 1 else None
        return Island((*nodes, *quantisers), tuple(operators), is_attention=True, query=query)

    def _source(self, product: ir.Node, value: ir.Value) -> ir.Value | None:
        """Return the quantised tensor from which `product` reads `value`; None where it reads floats."""
        if product.op_type != "MatMul":
            return value
        makers = self._dequantisers(value)
        return makers[0].inputs[0] if len(makers) == 1 else None

    def _with_operands(self, members: Sequence[ir.Node]) -> list[ir.Node]:
        """Return `members`, each after the nodes that compute its operands from stored tensors."""
        nodes: dict[ir.Node, None] = {}
        inside = set(members)
        for node in members:
            for value in node.inputs:
                nodes |= dict.fromkeys(maker for maker in self._operand(value) if maker not in inside)
            nodes[node] = None
        return list(nodes)

    def _island(self, nodes: Iterable[ir.Node], operators: Sequence[ir.Node], quantisers: Sequence[ir.Node]) -> Island:
        copied = tuple(node for node in nodes if node in self._copied)
        is_view = not copied and self._is_view(operators, quantisers)
        return Island(tuple(nodes), tuple(operators), is_view, copied)

    def of_integers(self, core: ir.Node) -> Island | None:
        """Return the island of `core`, a product of integers, with the nodes that scale its sums; None where these are not found.

        A DynamicQuantizeLinear that makes an operand is inside only where the floats that it reads stay stored anyway: else the quantised
        tensor, a kernel's result of its own, takes fewer bytes.
        """
        scaled = self._scaled(core)
        if scaled is None:
            return None
        cast, factor, product = scaled
        operators, quantisers = self._chain([core, cast, factor])
        at_run = [maker for value in core.inputs if (maker := self._quantiser_inside(value)) is not None]
        products = () if product is None else (product,)
        inputs = (value for operator in operators[3:] for value in operator.inputs)
        others = dict.fromkeys(maker for value in inputs for maker in self._operand(value))
        self._taken.update(operators, quantisers)
        nodes = tuple(dict.fromkeys([*at_run, *products, *others, *operators, *quantisers]))
        return Island(nodes, tuple(operators), scaling=frozenset((*at_run, *products, cast, factor)))

    def _scaled(self, core: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node | None] | None:
        """Return the Cast that alone reads the sums of `core`, the Mul after it, and the Mul that makes the scale, if one does."""
        if not self._may_be_inside(core):
            return None
        cast = self._only_reader(core.outputs[0], "Cast")
        factor = None if cast is None else self._only_reader(cast.outputs[0], "Mul")
        if cast is None or factor is None or {cast, factor} & self._taken:
            return None
        scale = next((value for value in factor.inputs if value is not cast.outputs[0]), None)
        product = None if scale is None or scale in self._constants else scale.producer()
        if scale is None or (product is None and scale not in self._constants):
            return None
        if product is None or quantises_at_run(product):
            return cast, factor, None
        known = all(
            operand in self._constants or (operand is not None and quantises_at_run(operand.producer()))
            for operand in product.inputs
        )
        fits = product.op_type == "Mul" and product.domain in OWN_DOMAINS and product.graph is self._graph and known
        return (cast, factor, product) if fits and self._may_be_inside(product) else None

    def _only_reader(self, value: ir.Value, op_type: str) -> ir.Node | None:
        reader = only_reader(value)
        if reader is None or reader.op_type != op_type or reader.domain not in OWN_DOMAINS:
            return None
        return reader if self._may_be_inside(reader) else None

    def _quantiser_inside(self, value: ir.Value | None) -> ir.Node | None:
        """Return the DynamicQuantizeLinear that makes `value` where the floats that it reads stay stored until `value` was read."""
        maker = None if value is None else value.producer()
        if maker is None or maker in self._taken or not quantises_at_run(maker) or maker.outputs[0] is not value:
            return None
        if maker.graph is not self._graph or not self._may_be_inside(maker):
            return None
        readers = set(value.consumers())
        if any(result.is_graph_output() for result in maker.outputs):
            return None
        if any(not sums_integers(reader) or self._scaled(reader) is None for reader in readers - self._taken):
            return None
        return maker if self._stays(maker, max(self._places[reader] for reader in readers)) else None

    def _stays(self, reader: ir.Node, last: int) -> bool:
        """Return whether the tensor that `reader` reads is stored beyond the place `last` also without it."""
        value = reader.inputs[0]
        while value is not None:
            others = [consumer for consumer in value.consumers() if consumer is not reader]
            if value.is_graph_output() or any(self._places.get(consumer, last) >= last for consumer in others):
                return True
            maker = value.producer()
            if maker is None:
                return True
            if maker.op_type not in self._rule.views or maker.domain not in OWN_DOMAINS:
                return False
            reader, value = maker, maker.inputs[0]
        return False

    def requantising(self, node: ir.Node) -> Island | None:
        """Return the island of `node`, a QuantizeLinear that reads what is dequantised; None for any other node."""
        if node in self._taken or self._rule.products or not quantises(node) or node.outputs[0] in self._constants:
            return None
        makers = self._operand(node.inputs[0])
        if not makers or node.inputs[0] in self._constants:
            return None
        self._taken.add(node)
        return self._island((*makers, node), [], [node])

    def _to_copy(self, node: ir.Node) -> _Computed | None:
        """Return the way from quantised tensors to the result of `node` where each of its readers computes it by itself, else None.

        These tensors together have at most the bytes of the result, which is then never stored.
        """
        if node.op_type not in self._rule.elementwise or node.domain not in OWN_DOMAINS or len(node.outputs) != 1:
            return None
        if may_draw(node) or not self._may_be_inside(node) or not self._may_be_copied(node.outputs[0]):
            return None
        nodes: dict[ir.Node, None] = {}
        sources: dict[ir.Value, int] = {}
        for value in (source for source in node.inputs if source is not None and source not in self._constants):
            operand = self._computed(value)
            if operand is None:
                return None
            nodes |= dict.fromkeys(operand.nodes)
            sources |= operand.sources
        operators = [member for member in nodes if member in self._copied]
        if not any(map(dequantises, nodes)) or sum(sources.values()) > _FLOAT_BITS or len(operators) >= _MOST_COPIED:
            return None
        if self._chain([node])[1]:
            return None  # one kernel computes it and all that is quantised of it
        weights = (maker for value in node.inputs if value in self._constants for maker in self._dequantisers(value))
        return _Computed((*nodes, *(member for member in weights if member not in nodes), node), sources)

    def _may_be_copied(self, value: ir.Value) -> bool:
        """Return whether each reader of `value` may be in one kernel with the node that makes it."""
        readers = set(value.consumers())
        return not value.is_graph_output() and all(
            reader.graph is self._graph
            and (self._may_be_inside(reader) or (quantises(reader) and value not in reader.inputs[1:]))
            for reader in readers
        )

    def _computed(self, value: ir.Value) -> _Computed | None:
        maker = value.producer()
        if maker in self._copied:
            return self._copied[maker]
        if maker is not None and maker.op_type in self._rule.reductions and maker.domain in OWN_DOMAINS:
            return _Computed((), {value: _REDUCED_BITS})
        makers = self._dequantisers(value)
        source = makers[0].inputs[0] if len(makers) == 1 else None
        bits = _stored_bits(makers[0]) if makers else None
        return None if source is None or bits is None else _Computed(tuple(makers), {source: bits})

    def _operand(self, value: ir.Value | None) -> Sequence[ir.Node]:
        """Return the nodes that compute `value` from stored tensors and may be copied; none where it is stored itself."""
        maker = None if value is None else value.producer()
        return self._copied[maker].nodes if maker in self._copied else self._dequantisers(value)

    def _may_begin(self, node: ir.Node) -> bool:
        """Return whether an island may begin with `node`, as far as the rule names operators for that."""
        named = self._rule.products
        if named and (node.op_type not in named or len(node.inputs) < 2 or node.inputs[1] not in self._constants):
            return False
        return self._may_be_inside(node)

    def _may_be_inside(self, node: ir.Node) -> bool:
        if quantises(node) or dequantises(node) or node.device_configurations or not node.inputs:
            return False
        if any(value in self._constants for value in node.outputs) or not fits_in_function(node, self._opsets):
            return False
        if any(value is not None and keys.STREAM in value.metadata_props for value in node.inputs):
            return False  # rows that come from outside are stored
        if has_containers(node) or has_body(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
            return False
        function = self._model.functions.get(node.op_identifier())
        return function is None or keys.META_OP in function.metadata_props

    def _downwards(self, core: ir.Node) -> tuple[list[ir.Node], list[ir.Node]]:
        """Return `core` with what follows it up to the QuantizeLinear nodes, and these; `core` alone where there is no way to any."""
        if core not in self._ending_in_floats:
            operators, quantisers = self._chain([core])
            if quantisers:
                return operators, quantisers
            self._ending_in_floats.update(operators)
        return [core], [reader for value in core.outputs for reader in self._quantisers(value)]

    def _chain(self, operators: list[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
        """Return `operators` with what follows them in the same kernel, and the QuantizeLinear nodes at the end."""
        while len([value for value in operators[-1].outputs if value.name]) == 1:
            quantisers = self._quantisers(operators[-1].outputs[0])
            if quantisers:
                return operators, quantisers
            following = self._epilogue(operators[-1].outputs[0])
            if following is None:
                break
            operators = [*operators, following]
        return operators, []

    def _quantisers(self, value: ir.Value) -> list[ir.Node]:
        """Return the readers of `value` where all quantise it, and nothing else does."""
        readers = list(dict.fromkeys(value.consumers()))
        fit = all(
            quantises(reader)
            and reader.inputs[0] is value
            and value not in reader.inputs[1:]
            and reader.graph is self._graph
            for reader in readers
        )
        return readers if fit and not value.is_graph_output() else []

    def _epilogue(self, value: ir.Value) -> ir.Node | None:
        """Return the only reader of `value` where it may follow in the same kernel."""
        reader = only_reader(value)
        if reader is None:
            return None
        fits = reader.op_type in self._rule.epilogues and reader.domain in OWN_DOMAINS and reader not in self._taken
        others = [operand for operand in reader.inputs if operand is not None and operand is not value]
        known = all(operand in self._constants or self._operand(operand) for operand in others)
        return reader if fits and known and self._may_be_inside(reader) else None

    def _dequantisers(self, value: ir.Value | None) -> Sequence[ir.Node]:
        """Return the nodes that `value` comes from where these only dequantise, or move what was a stored constant."""
        moves: list[ir.Node] = []
        while value is not None:
            maker = value.producer()
            if maker is None or maker.graph is not self._graph or maker.device_configurations:
                return ()
            if dequantises(maker):
                return (maker, *reversed(moves))
            if movement_of(maker) not in {"renames", "permutes", "converts"} or value not in self._constants:
                return ()
            moves.append(maker)
            value = maker.inputs[0]
        return ()

    def _is_view(self, operators: Sequence[ir.Node], quantisers: Sequence[ir.Node]) -> bool:
        """Return whether all results have bytes of the operands, at most in another shape: all are quantised alike."""
        if len(operators) > 1 or any(node.op_type not in self._rule.views for node in operators):
            return False
        operator = operators[0] if operators else quantisers[0]
        is_cut, is_join = operator.op_type == "Split", operator.op_type == "Concat"
        if len(quantisers) != (len(operator.outputs) if is_cut else 1):
            return False
        operands = operator.inputs if is_join else operator.inputs[:1]
        makers = [None if value is None else value.producer() for value in operands]
        return all(
            maker is not None and dequantises(maker) and self._are_inverse(maker, quantiser)
            for maker in makers
            for quantiser in quantisers
        )

    def _are_inverse(self, dequantiser: ir.Node, quantiser: ir.Node) -> bool:
        """Return whether `quantiser` gives back what `dequantiser` read: one scale, finite and no subnormal, and one zero point."""
        if len(dequantiser.inputs) < 3 or len(quantiser.inputs) < 3:
            return False
        pairs = list(zip(dequantiser.inputs[1:3], quantiser.inputs[1:3], strict=True))
        if any(value is None or value not in self._constants for pair in pairs for value in pair):
            return False
        arrays = [[self._constants.array(value) for value in pair if value is not None] for pair in pairs]
        alike = all(a.size == b.size == 1 and a.dtype == b.dtype and a.ravel()[0] == b.ravel()[0] for a, b in arrays)
        if not alike or arrays[1][0].dtype.kind not in "iu" or arrays[1][0].dtype.itemsize != 1:
            return False
        scale = float(arrays[0][0].ravel()[0])
        return math.isfinite(scale) and scale > float(np.finfo(np.float32).tiny)


_FLOAT_BITS = 32


def _stored_bits(dequantiser: ir.Node) -> int | None:
    """Return the bits of an element that `dequantiser` reads: those of its zero point, by default of type uint8. None where unknown.

    Also None where it gives floats of fewer bits than float32.
    """
    scale, *zero = dequantiser.inputs[1:3]
    if scale is None or scale.dtype != ir.DataType.FLOAT or dequantiser.attributes.get_int("output_dtype", 0) > 1:
        return None
    if not zero or zero[0] is None:
        return ir.DataType.UINT8.bitwidth
    return None if zero[0].dtype is None else zero[0].dtype.bitwidth
