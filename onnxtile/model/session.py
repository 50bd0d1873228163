"""Sessions of models in memory, without further copies of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.exact_products import exact_session
from onnxtile.model.load import external_tensors, format_of
from onnxtile.model.node_kinds import RandomNodes, dequantises
from onnxtile.model.save import (
    MOST_IN_MEMORY,
    external_folder,
    inline_bytes,
    large_constants,
    proto_bytes,
    to_bytes,
    write_model,
)
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.topology import all_nodes, has_body, is_external
from onnxtile.model.validity import is_small
from onnxtile.operators.table import may_draw, movement_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.files import temporary_folder
from onnxtile.system.runtime import Array, Binding, Feed, Session, aligned, boxed, unboxed

# Sessions of a model with many nodes, in pieces that onnxruntime loads one after another.
#
# onnxruntime loads n nodes that may all run next in about n² steps. In pieces the time is linear. The kernels, and the values they read,
# are those of the whole model.

MOST_WHOLE = 5_000
"""Nodes of the largest model that is loaded whole."""
_PIECE = 1_000
"""Nodes of a piece. Each piece takes about a millisecond besides the time for its nodes."""
_MOST_HELD = 20_000
"""Nodes of the largest model all of whose pieces stay loaded: onnxruntime holds some 4 KB for each node."""
_MOST_COPIED = 2**25
"""Bytes of the constants in memory that the pieces hold, at most: a constant is in each piece that reads it."""
_STRING = "tensor(string)"
_HALVES = frozenset({"tensor(float16)", "tensor(bfloat16)"})


@dataclass(frozen=True)
class _NodeRange:
    """Consecutive nodes, the values that they read and that leave them, and those of the former that nothing reads later."""

    nodes: Sequence[ir.Node]
    reads: Sequence[ir.Value]
    makes: Sequence[ir.Value]
    last_read: Sequence[ir.Value]


@dataclass(frozen=True)
class _ModelPiece:
    """A cut: what returns its session, and the names of its values."""

    load: Callable[[], Session]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    last_read: tuple[str, ...]


class SplitSession:
    """A model in pieces, each of which is loaded here once, to learn the types of its results; where they are many, again for each run.

    Raises ModelError where onnxruntime refuses a piece, and for a value between two pieces that is no tensor, or has strings or floats of
    16 bits. Between nodes of one session, onnxruntime does not round such floats. Load a model for which this raises as a whole.
    """

    def __init__(self, model: ir.Model) -> None:
        self._folder = external_folder(model)
        self._inputs = {value.name or "" for value in model.graph.inputs}
        self._outputs = [value.name or "" for value in model.graph.outputs]
        self._feeds: dict[str, Feed] = {}
        self._submodels = Submodels(model)
        self._are_held = len(model.graph) <= _MOST_HELD
        types = {v: None if v.type is None else ir.serde.serialize_value(v).type for v in model.graph.inputs}
        self._pieces = [self._loaded(cut, types) for cut in _cuts(model.graph)]

    def _loaded(self, cut: _NodeRange, types: dict[ir.Value, onnx.TypeProto | None]) -> _ModelPiece:
        """Return the piece of `cut`, and add to `types` those of its results, as onnxruntime infers them."""
        read = {value: types[value] if value in types else _type(self._feeds[value.name or ""]) for value in cut.reads}
        model = self._submodels.model_of(cut.nodes, read, cut.makes)
        content = proto_bytes(model)

        def load() -> Session:
            return exact_session(content, model, external=self._folder, pooled=False)

        session = load()
        self._feeds |= {feed.name: feed for feed in session.results}
        reads, makes, last_read = (tuple(v.name or "" for v in some) for some in (cut.reads, cut.makes, cut.last_read))
        return _ModelPiece((lambda: session) if self._are_held else load, reads, makes, last_read)

    @property
    def results(self) -> list[Feed]:
        """Names, dimensions and types of the outputs, in order, as onnxruntime infers them."""
        return [self._feeds[name] for name in self._outputs]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once; return the outputs by name, each in its own element type. Raises as `Session.run` does."""
        return self.run_each([feeds])[0]

    def run_each(self, runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run once on the feeds of each of `runs`, as `run` does; a piece that is not held is loaded once for all of them."""
        held = [{name: boxed(value) for name, value in feeds.items()} for feeds in runs]
        self._run(held, {})
        return [{feed.name: unboxed(values[feed.name], feed.type) for feed in self.results} for values in held]

    def run_in_place(self, inputs: Mapping[str, Binding], outputs: Mapping[str, Binding]) -> None:
        """Run once on tensors at given addresses: inputs are read, and outputs written, where the bindings say."""
        self._run([dict(inputs)], outputs)

    def _run(self, runs: Sequence[dict[str, Any]], outputs: Mapping[str, Binding]) -> None:
        """Run all pieces on the values of each of `runs`, which has the outputs at the end."""
        for held in runs:
            if held.keys() != self._inputs:
                lists = (", ".join(sorted(names)) or "nothing" for names in (self._inputs, held))
                raise ModelError("onnxruntime cannot run the model: it takes {} and is given {}".format(*lists))
        for piece in self._pieces:
            session, results = piece.load(), {name: outputs.get(name) for name in piece.makes}
            for held in runs:
                held.update(session.run_on({name: held[name] for name in piece.reads}, results))
                for name in piece.last_read:
                    del held[name]
            del session  # the next is loaded without it


def may_split(model: ir.Model) -> bool:
    """Return whether `model` has more than `MOST_WHOLE` nodes, and operators that compute the same in pieces.

    Those with bodies do not, since the time of their runs is limited as a whole, nor those with random results, which depend on the place
    in the graph. Besides each output is to be the result of a node, each input a tensor that must be fed.
    """
    graph = model.graph
    return (
        len(graph) > MOST_WHOLE
        and all(value.producer() is not None for value in graph.outputs)
        and not any(value.is_initializer() or value.dtype == ir.DataType.STRING for value in graph.inputs)
        and all(value.type is None or isinstance(value.type, ir.TensorType) for value in graph.inputs)
        and not any(has_body(node) or may_draw(node) for node in all_nodes(model))
        and _copied_bytes(graph) <= _MOST_COPIED
    )


def _copied_bytes(graph: ir.Graph) -> int:
    """Return the bytes of the constants in memory that all pieces hold together."""
    constants = (v.const_value for nodes in _batches(graph) for v in _read(nodes) if v.is_initializer())
    return sum(int(t.nbytes) for t in constants if t is not None and not is_external(t))


def _cuts(graph: ir.Graph) -> Iterator[_NodeRange]:
    """Yield the nodes of `graph` in its order, but for cuts whose results nothing reads."""
    last = {value: at for at, nodes in enumerate(_batches(graph)) for value in _read(nodes)}
    last |= dict.fromkeys(graph.outputs, len(graph))
    for at, nodes in enumerate(_batches(graph)):
        results = dict.fromkeys(value for node in nodes for value in node.outputs)
        reads = [value for value in _read(nodes) if value not in results and not value.is_initializer()]
        makes = [value for value in results if last.get(value, -1) > at]
        if makes:
            yield _NodeRange(nodes, reads, makes, [value for value in reads if last[value] == at])


def _batches(graph: ir.Graph) -> Iterator[list[ir.Node]]:
    nodes = list(graph)
    return (nodes[start : start + _PIECE] for start in range(0, len(nodes), _PIECE))


def _read(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    """Return the values that `nodes` read, each once."""
    return dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)


def _type(feed: Feed) -> onnx.TypeProto:
    """Return the type of a value between two pieces. Raises ModelError for one that stays inside a piece."""
    if not feed.type.startswith("tensor(") or feed.type in {_STRING, *_HALVES}:
        raise ModelError(f"{feed.name!r} is a {feed.type}, which stays in one session")
    dtype = ir.DataType[feed.type.removeprefix("tensor(").removesuffix(")").upper()]
    # The shape () means a scalar, or that the rank is not known.
    return tensor_type(dtype, tuple(size if isinstance(size, int) else None for size in feed.shape) or None)


AnySession: TypeAlias = Session | SplitSession
"""A model loaded as a whole, or in pieces."""


class RepeatableSession:
    """A model with random operators, loaded anew for each run but the first.

    The first run of a session of onnxruntime draws the same numbers each time from one seed; a further run draws the next ones.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._unused: AnySession | None = session_of(model)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, as `Session.run`."""
        session, self._unused = self._unused or session_of(self._model), None
        return session.run(feeds)


ModelRunner: TypeAlias = AnySession | RepeatableSession
"""What runs a model."""


def run_each(runner: ModelRunner, runs: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the outputs of `runner` on the feeds of each of `runs`; a model in pieces runs on all of them at once."""
    return iter(runner.run_each(runs)) if isinstance(runner, SplitSession) else map(runner.run, runs)


def repeatable_session(model: ir.Model, file: Path | bytes | None = None) -> ModelRunner:
    """Return a session of `model` in which each run draws the same numbers, where its random operators have seeds.

    `file` is that from which the model was read, or the bytes of one, which says the same.
    """
    is_random = any(map(may_draw, all_nodes(model))) and RandomNodes(model, Constants(model)).themselves
    return RepeatableSession(model) if is_random else session_of(model, file)


def session_of(model: ir.Model, file: Path | bytes | None = None) -> AnySession:
    """Return a session of `model`, which stays as it is; where it is small, of the bytes of the `file` that says the same.

    onnxruntime holds the weights of a model that it is given in memory about four times. Many weights are given to it one by one, and it
    reads them where they are. A model with many nodes is run in pieces where it can be. Raises ModelError with onnxruntime's reason.
    """
    if may_split(model):
        with suppress(ModelError):  # loaded whole, it runs, or the reason is that of the whole
            return SplitSession(model)
    if isinstance(file, bytes) and len(file) <= MOST_IN_MEMORY and b"location" not in file:
        return exact_session(file, model)  # a constant in another file would name its "location"
    folder = external_folder(model)
    if inline_bytes(model) > MOST_IN_MEMORY:
        return _with_weights(model)
    weights = () if folder is None else list(_moved_weights(model))
    if isinstance(file, bytes):
        return exact_session(file, model, external=folder, weights=weights)
    if file is not None and file.is_file() and format_of(file) == "protobuf":
        with suppress(ModelError, OSError):  # written anew, onnxruntime may take what it refuses in the file
            return exact_session(file.read_bytes(), model, external=folder, weights=weights)
    return exact_session(to_bytes(model), model, external=folder, weights=weights)


def _with_weights(model: ir.Model) -> Session:
    """Return a session of `model` that reads its large constants where they are, in the file of the model, too.

    For onnxruntime they are of an external file, which has to be there, and of which it reads nothing.
    """
    with ExitStack() as stack:
        external = external_tensors(model)
        if external:
            folder, name = Path(external[0].base_dir), str(external[0].location)
        else:
            folder, name = stack.enter_context(temporary_folder()), "weights"
            (folder / name).touch()
        content = BytesIO()
        write_model(model, content, beside=name)
        placed = ((value.name or "", tensor.numpy()) for value, tensor in large_constants(model))
        weights = chain(placed, _moved_weights(model))  # the last of a name counts
        return exact_session(content.getvalue(), model, external=folder, weights=weights)


def _moved_weights(model: ir.Model) -> Iterator[tuple[str, Array]]:
    """Yield copies of the constants from which nodes compute others, with their names.

    The copies start at a multiple of 64 bytes, as onnxruntime's own do: it may round sums by that.
    """
    constants = Constants(model)

    def computes(node: ir.Node) -> bool:
        sums = movement_of(node) in {"", "renames"} and not dequantises(node)
        return sums and all(operand is None or operand in constants for operand in node.inputs)

    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING or is_small(tensor):
            continue
        if any(computes(use.node) for use in value.uses()):
            yield value.name or "", aligned(tensor.numpy())
