"""What runs of onnx's own examples show of operators, against the tables that say it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.table import No, axis_links, operators
from onnxtile.shapes.bodies import shape_operands
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import OnnxtileError
from onnxtile.system.runtime import Binding, Session
from tests.operators.schemas import Example, Tensor, examples

pytestmark = pytest.mark.filterwarnings("ignore")


def session(example: Example) -> Session | None:
    """Return the session of an example; None where onnxruntime does not take it."""
    try:
        return Session(example.model.SerializeToString())
    except OnnxtileError:
        return None


def placed(array: Tensor) -> Tensor:
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memory[start : start + array.nbytes]


def binding(memory: Tensor, array: Tensor) -> Binding:
    return Binding(int(memory.ctypes.data), array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))


def run_over(example: Example, run: Session, operands: list[Tensor], result: int, over: int | None) -> list[Tensor]:
    """Return the bytes of the results, that of `result` written over an operand, or all in memory of their own."""
    memory = [placed(array) for array in operands]
    made = [placed(np.zeros_like(array)) for array in example.results]
    if over is not None:
        made[result] = memory[over]
    names = [[value.name for value in values] for values in (example.model.graph.input, example.model.graph.output)]
    given = {name: binding(data, array) for name, data, array in zip(names[0], memory, operands, strict=True)}
    wanted = {name: binding(data, array) for name, data, array in zip(names[1], made, example.results, strict=True)}
    run.run_in_place(given, wanted)
    return made


def by_element(example: Example, run: Session, result: int, operand: int) -> bool:
    """Return whether an element of the operand changes no other element of the result."""
    draw, own = np.random.default_rng(0), list(example.operands)
    size = own[operand].size
    before = run_over(example, run, own, result, None)[result].reshape(size, -1)
    for place in draw.integers(size, size=4):
        other = own[operand].copy()
        flat = other.reshape(-1)
        flat[place] = not flat[place] if flat.dtype == bool else flat[(place + 1) % size] + np.ones(1, flat.dtype)[0]
        changed = [*own[:operand], other, *own[operand + 1 :]]
        after = run_over(example, run, changed, result, None)[result].reshape(size, -1)
        if set(np.nonzero((before != after).any(axis=1))[0]) - {place}:
            return False
    return True


def alike(example: Example) -> list[tuple[int, int]]:
    """Return results and operands of one shape and element size, with more than one element."""
    return [
        (result, operand)
        for result, made in enumerate(example.results)
        for operand, given in enumerate(example.operands)
        if made.shape == given.shape and made.dtype.itemsize == given.dtype.itemsize and made.size > 1
    ]


@pytest.fixture(scope="module")
def shown() -> dict[tuple[str, int], set[str]]:
    """Return by operator and operand what runs show of it: "same" or "other" bits over it, "near" or "far" reads."""
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for example in examples():
        pairs = alike(example)
        run = session(example) if pairs else None
        if run is None:
            continue
        for result, operand in pairs:
            place = list(example.node.input).index(example.model.graph.input[operand].name)
            if result:
                continue
            try:
                apart, over = (run_over(example, run, list(example.operands), result, o) for o in (None, operand))
                near = by_element(example, run, result, operand)
            except OnnxtileError:
                continue
            found[example.name, place].add("same" if np.array_equal(apart[result], over[result]) else "other")
            found[example.name, place].add("near" if near else "far")
    return found


def _writes_over(name: str, place: int) -> bool:
    over = operators()[name].over
    return over is None or (not isinstance(over, No) and place in over)


def test_what_the_table_allows_no_run_refutes(shown: dict[tuple[str, int], set[str]]) -> None:
    wrong = [(name, place) for (name, place), what in shown.items() if "other" in what and _writes_over(name, place)]
    assert wrong == []
    assert len({name for name, _ in shown}) > 100


def test_what_runs_element_by_element_over_its_operand_is_in_the_table(shown: dict[tuple[str, int], set[str]]) -> None:
    """A hole would be an operator that each run shows to be one, without a reason that these runs do not refute."""
    # Their examples have so few elements, or such attributes, that more than one reading is possible.
    few = {
        "ReduceSum": "with noop_with_empty_axes it copies",
        "Transpose": "one axis of the example is longer than 1",
        "LSTM": "the last state: a plan of states writes it over the one before (onnxtile/kernels/states)",
        "GRU": "as LSTM",
        "RNN": "as LSTM",
        "Scan": "a body writes it",
        "Loop": "a body writes it",
        "If": "a body writes it",
        "LayerNormalization": "scale and bias are read again for the next row",
        "RMSNormalization": "as LayerNormalization",
        "MaxPool": "a window of one element",
        "CausalConvWithState": "windows of few elements",
        "Attention": "one key",
        "LinearAttention": "one token",
        "com.microsoft::MultiHeadAttention": "one key",
    }
    holes = [
        (name, place)
        for (name, place), what in shown.items()
        if what == {"same", "near"}
        and not (operators()[name].same == "view" or _writes_over(name, place))
        and name not in few
        and not name.startswith("ai.onnx.ml")
    ]
    assert holes == []


def test_a_part_of_a_result_reads_what_the_rule_says() -> None:
    """All that a rule does not name is hidden, by numbers that are none and by others: the part stays the same."""
    tried: set[str] = set()
    for example in examples():
        facts = _facts(example)
        run = session(example) if facts is not None else None
        if facts is None or run is None:
            continue
        try:
            whole = run.run(example.feeds)
        except OnnxtileError:
            continue
        for axis in range(len(example.results[0].shape)):
            tried.update([example.name] if _is_right(example, facts, run, whole, axis) else [])
    assert len(tried) > 115


def _facts(example: Example) -> NodeView | None:
    """Return the facts of the node, whose operands that say sizes are constants; None where fit would not look at it."""
    texts = [one.s for one in example.node.attribute if one.type == onnx.AttributeProto.STRING]
    if example.name == "Pad" and b"edge" in texts:
        return None  # rows of padding alone are copies of the nearest one, which the window leaves out
    proto = onnx.ModelProto()
    proto.CopyFrom(example.model)
    kept: list[onnx.ValueInfoProto] = []
    for value, array in zip(list(proto.graph.input), example.operands, strict=True):
        if (array.dtype.kind == "i" and array.ndim <= 1) or (
            kept and example.name in {"Dropout", "Pad", "Resize", "Upsample"}
        ):
            proto.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            kept.append(value)
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    try:
        model = load(proto)
        found = NodeView(model.graph[0], resolve(model, run=True), Constants(model), proto.opset_import[0].version)
        return found if found.result == example.results[0].shape else None
    except (OnnxtileError, NotApplicable):
        return None


def _is_right(example: Example, facts: NodeView, run: Session, whole: dict[str, Any], axis: int) -> bool:
    """Return whether the rule cuts the result along `axis`; then parts of it must not read what the rule does not name."""
    try:
        found = axis_links(facts, axis)
    except NotApplicable:
        return False
    name, size = example.model.graph.output[0].name, facts.result[axis]
    unit = max((link.factor for link in found if link is not None), default=1)
    for start, stop in {(0, unit), (size // 2 // unit * unit, size), (max(size - unit, 0) // unit * unit, size)}:
        if not start < stop <= size:
            continue
        feeds = example.feeds
        for operand, link in zip(example.node.input, found, strict=True):
            if operand and link is not None:
                read = link.reads(start, stop)
                feeds[operand] = _hidden(feeds[operand], link.axis, slice(read.start, read.stop))
        part = tuple(slice(start, stop) if place == axis else slice(None) for place in range(len(facts.result)))
        same = np.array_equal(whole[name][part], run.run(feeds)[name][part], equal_nan=whole[name].dtype.kind == "f")
        assert same, f"{example.model.graph.name}: {start} to {stop} along {axis}"
    return True


def _hidden(array: Tensor, axis: int, read: slice) -> Tensor:
    kept = tuple(read if place == axis else slice(None) for place in range(array.ndim))
    found = np.full_like(array, np.nan) if array.dtype.kind == "f" else np.flip(array).copy()
    found[kept] = array[kept]
    return found


def test_the_operands_that_say_shapes_are_those_without_which_onnx_knows_none() -> None:
    missing = set()
    for example in examples():
        numbers = {name: array for name, array in example.feeds.items() if array.dtype.kind in "if"}
        small = {name: array for name, array in numbers.items() if array.size <= 64 and array.ndim <= 1}
        known = _inferred(example, small) if small else None
        if known is None:
            continue
        told = shape_operands(ir.from_proto(example.model).graph.node(0))
        for name in small:
            place = list(example.node.input).index(name)
            if _inferred(example, {n: a for n, a in small.items() if n != name}) != known and place not in told:
                missing.add((example.name, place))
    # It is the shape of its second operand that counts, which onnx reads from the elements.
    assert missing <= {("ai.onnx.ml::ArrayFeatureExtractor", 1)}


def _inferred(example: Example, constants: dict[str, Tensor]) -> list[list[int]] | None:
    proto = onnx.ModelProto()
    proto.CopyFrom(example.model)
    kept = [value for value in proto.graph.input if value.name not in constants]
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        made = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph.output
    except onnx.shape_inference.InferenceError:
        return None
    return [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in made]
