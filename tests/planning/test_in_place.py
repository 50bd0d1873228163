"""The table of lawful aliases, tried: each operator is run with its output at the address of its operand, and must give the same bits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtile.planning.layout.aliases.lawful import IN_PLACE
from onnxtile.planning.proof.memory import ByteArray
from onnxtile.runtime import Array, Binding, Session
from tests.planning.conftest import Case, aliases, rows

SHAPES = [(3,), (2, 5, 7), (1, 8, 28, 28), (37, 500)]
NORMS = {"GroupNormalization", "InstanceNormalization", "MeanVarianceNormalization", "BatchNormalization"}


@dataclass(frozen=True)
class Trial:
    """A node, the shapes and types of its operands, and which of them its output is to be written over."""

    operator: str
    shapes: Sequence[tuple[int, ...]]
    types: Sequence[int]
    onto: int
    made: int
    opset: int = 20
    attributes: Mapping[str, Any] = field(default_factory=dict)


def trials(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how `operator` is tried on operands of `shape`, and such as are broadcast against it."""
    real, attributes = TensorProto.FLOAT, dict[str, Any]()
    if operator in ROWS:
        return rows_of(operator, shape)
    if operator in PLACED or operator == "Gemm":
        return updates_of(operator, shape)
    if operator == "Where":
        kinds = [TensorProto.BOOL, real, real]
        small = shape[-1:]
        return [
            Trial(operator, [c, *([shape, o] if onto == 1 else [o, shape])], kinds, onto, real)
            for onto in (1, 2)
            for c in (shape, small)
            for o in (shape, small)
        ]
    if operator == "Cast":
        pairs = [
            (TensorProto.INT32, real),
            (TensorProto.INT64, TensorProto.DOUBLE),
            (TensorProto.BOOL, TensorProto.UINT8),
        ]
        pairs += [(b, a) for a, b in pairs] + [(TensorProto.FLOAT16, TensorProto.BFLOAT16)]
        return [Trial(operator, [shape], [a], 0, b, attributes={"to": b}) for a, b in pairs]
    kind, made = TYPES.get(operator, (real, real))
    if IN_PLACE[operator] is not None:
        return [Trial(operator, [shape], [kind], 0, made)]
    if operator == "Mod":
        attributes = {"fmod": 1}
    if operator == "BitShift":
        attributes = {"direction": "LEFT"}
    others: list[tuple[int, ...]] = [shape, shape[-1:], (1,), (*shape[:-1], 1)]
    found = [Trial(operator, [shape, other], [kind] * 2, 0, made, attributes=attributes) for other in others]
    # The slope of PRelu may be broadcast, its operand may not.
    others = [shape] if operator == "PRelu" else others
    found += [Trial(operator, [other, shape], [kind] * 2, 1, made, attributes=attributes) for other in others]
    if operator in {"Sum", "Max", "Min", "Mean"}:
        for onto in range(3):
            mixed = [shape[-1:]] * 3
            mixed[onto] = shape
            found += [Trial(operator, shapes, [kind] * 3, onto, made) for shapes in (mixed, [shape] * 3)]
    return found


ROWS = {"Softmax", "LogSoftmax", "LpNormalization", "LayerNormalization", "RMSNormalization", *NORMS}
PLACED = {"ScatterElements", "ScatterND", "TensorScatter"}
BOOLS = dict.fromkeys(["And", "Or", "Xor", "Not"], (TensorProto.BOOL, TensorProto.BOOL))
COMPARED = dict.fromkeys(
    ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"], (TensorProto.INT8, TensorProto.BOOL)
)
BITS = dict.fromkeys(
    ["BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"], (TensorProto.UINT8, TensorProto.UINT8)
)
TYPES = {**BOOLS, **COMPARED, **BITS, "Equal": (TensorProto.BOOL, TensorProto.BOOL)}


def rows_of(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how an operator is tried that reads rows or channels."""
    real = TensorProto.FLOAT
    if operator in {"Softmax", "LogSoftmax", "LpNormalization"}:
        found = [Trial(operator, [shape], [real], 0, real, attributes={"axis": axis}) for axis in range(len(shape))]
        if operator != "LpNormalization":
            found += [Trial(operator, [shape], [real], 0, real, 11, {"axis": len(shape) - 1})]
        return found
    if operator in {"LayerNormalization", "RMSNormalization"}:
        many = 3 if operator[0] == "L" else 2
        axes = {len(shape) - 1, len(shape) // 2}
        return [
            Trial(operator, [shape, *[shape[a:]] * (many - 1)], [real] * many, 0, real, 23, {"axis": a}) for a in axes
        ]
    if len(shape) < 3 or (operator == "MeanVarianceNormalization" and len(shape) != 4):
        return []
    vectors = {"MeanVarianceNormalization": 0, "BatchNormalization": 4}.get(operator, 2)
    attributes = {"num_groups": 1} if operator == "GroupNormalization" else {}
    return [Trial(operator, [shape, *[shape[1:2]] * vectors], [real] * (vectors + 1), 0, real, 21, attributes)]


def updates_of(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how an operator is tried that updates elements of an operand, or adds a product to all of them."""
    whole, found = TensorProto.INT64, []
    scales: list[dict[str, Any]] = [{}, {"alpha": 0.5, "beta": 2.0}, {"beta": 0.0}]
    for kind in (TensorProto.FLOAT, TensorProto.DOUBLE):
        if operator == "Gemm" and len(shape) == 2:
            found += [
                Trial(operator, [(shape[0], 9), (9, shape[1]), shape], [kind] * 3, 2, kind, attributes=numbers)
                for numbers in scales
            ]
            turned = {"transA": 1, "transB": 1}
            found.append(Trial(operator, [(9, shape[0]), (shape[1], 9), shape], [kind] * 3, 2, kind, attributes=turned))
        if operator == "ScatterND":
            reductions: list[dict[str, Any]] = [{}, {"reduction": "add"}, {"reduction": "max"}]
            shapes = [shape, (2, 1), (2, *shape[1:])] if shape[0] > 1 else [shape, (1, 1), shape]
            found += [Trial(operator, shapes, [kind, whole, kind], 0, kind, attributes=r) for r in reductions]
        if operator == "ScatterElements":
            for axis in range(len(shape)):
                some = tuple(max(1, size // 2) for size in shape)
                attributes: list[dict[str, Any]] = [{"axis": axis}, {"axis": axis, "reduction": "mul"}]
                found += [
                    Trial(operator, [shape, some, some], [kind, whole, kind], 0, kind, attributes=a) for a in attributes
                ]
        if operator == "TensorScatter" and len(shape) > 2:
            some = (*shape[:-2], 1, shape[-1])
            modes: list[dict[str, Any]] = [{"mode": "linear"}, {"mode": "circular"}]
            found += [
                Trial(operator, [shape, some, shape[:1]], [kind, kind, whole], 0, kind, 24, mode) for mode in modes
            ]
    return found


def overwritten(trial: Trial, repeats: int = 3) -> bool:
    """Return whether the output is the same in memory of its own and over the operand, each time, also barely aligned."""
    names = [f"i{k}" for k in range(len(trial.shapes))]
    node = helper.make_node(trial.operator, names, ["o"], **trial.attributes)
    inputs = [helper.make_tensor_value_info(n, t, s) for n, t, s in zip(names, trial.types, trial.shapes, strict=True)]
    graph = helper.make_graph([node], "alone", inputs, [onnx.ValueInfoProto(name="o")])
    opsets = [helper.make_opsetid("", trial.opset)]
    session = Session(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    for seed in range(repeats):
        arrays = drawn(trial, seed)
        item = arrays[trial.onto].itemsize
        places = [placed(array, shift=item * (seed % 2)) for array in arrays]
        fed = {
            name: Binding(int(place.ctypes.data), array.shape, kind)
            for name, place, array, kind in zip(names, places, arrays, trial.types, strict=True)
        }
        target = places[trial.onto]
        apart = placed(np.zeros(len(target), np.uint8), shift=item * (seed % 2))
        shape = trial.shapes[trial.onto]
        session.run_in_place(fed, {"o": Binding(int(apart.ctypes.data), shape, trial.made)})
        session.run_in_place(fed, {"o": Binding(int(target.ctypes.data), shape, trial.made)})
        if not np.array_equal(apart, target):
            return False
    return True


def drawn(trial: Trial, seed: int) -> list[Array]:
    draw = np.random.default_rng(seed)
    found = []
    for shape, kind in zip(trial.shapes, trial.types, strict=True):
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        if dtype == np.bool_:
            found.append(draw.random(shape) < 0.5)
        elif trial.operator in PLACED and kind == TensorProto.INT64:
            # Places of the first axis, or of the axis that is scattered over, each once where that is possible.
            most = trial.shapes[0][trial.attributes.get("axis", -2 if trial.operator == "TensorScatter" else 0)]
            found.append(np.resize(draw.permutation(most), shape).astype(np.int64))
        elif dtype.kind in "iu":
            found.append(draw.integers(0, 100, shape).astype(dtype))
        else:
            found.append((draw.standard_normal(shape) * 2).astype(dtype))
    return [np.asarray(array) for array in found]


def placed(array: Array, shift: int) -> ByteArray:
    """Return the bytes of `array`, `shift` bytes after a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    data = memory[start : start + array.nbytes]
    data[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return data


@pytest.mark.parametrize("operator", IN_PLACE)
def test_an_operator_of_the_table_computes_in_place(operator: str) -> None:
    tried = [trial for shape in SHAPES for trial in trials(operator, shape)]
    assert tried
    assert [trial for trial in tried if not overwritten(trial)] == []


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("Hardmax", {"axis": -1}), ("Gelu", {"approximate": "tanh"}), ("Transpose", {"perm": [1, 0]})],
)
def test_what_reads_what_it_has_overwritten_is_not_in_the_table(operator: str, attributes: dict[str, Any]) -> None:
    real = TensorProto.FLOAT
    assert not all(
        overwritten(Trial(operator, [s], [real], 0, real, attributes=attributes)) for s in ((9, 9), (64, 64))
    )
    text = f"""
    no (float[9,9] x) => (float[9,9] y) {{ a = Relu(x) y = {operator}<{attribute(attributes)}>(a) }}
    """
    assert aliases(Case.of(text).plan()) == {}


def attribute(attributes: Mapping[str, Any]) -> str:
    return ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in attributes.items())


def planned(text: str, **options: Any) -> dict[str, str]:
    """Return who owns whose bytes in a plan that a run inside the arena has confirmed."""
    case = Case.of(text)
    result = case.plan(**options)
    verdict = case.run(result)
    assert verdict.equal, verdict
    return aliases(result)


def test_a_dead_operand_is_written_over_and_a_live_one_is_not() -> None:
    assert planned("""
    dead (float[2,3] x) => (float[2,3] y) {
      a = Exp(x)
      b = Relu(a)
      c = Sigmoid(b)
      y = Add(b, c)
    }
    """) == {"b": "a", "y": "a"}


@pytest.mark.parametrize(
    ("node", "owner"),
    [
        ("Add(a, s)", {"y": "a"}),
        ("Add(s, a)", {"y": "a"}),
        ("Where(m, a, s)", {"y": "a"}),
        ("Sum(s, a, s)", {"y": "a"}),
        ("Clip(a, zero, one)", {"y": "a"}),
        ("Softmax(a)", {"y": "a"}),
        ("LayerNormalization(a, s, s)", {"y": "a"}),
        ("MatMul(a, q)", {}),
        ("Gemm(a, q, a)", {}),
        ("Gemm(w, w, a)", {"y": "a"}),
        ("Gemm(a, w, w)", {}),
        ("Gemm(w, w, s)", {}),
        ("Gemm(w, w, eye)", {}),
        ("ScatterND(a, place, top)", {"y": "a"}),
        ("ScatterND(a, place, part)", {"y": "a"}),
        ("ScatterElements(a, places, w)", {"y": "a"}),
        ("ScatterElements(eye, places, w)", {}),
        ("Transpose<perm = [1, 0]>(a)", {}),
        ("Expand(s, big)", {}),
        ("CumSum(a, zeroth)", {}),
        ("Hardmax(a)", {}),
    ],
)
def test_which_operators_write_over_which_operand(node: str, owner: dict[str, str]) -> None:
    text = f"""
    one (float[3,3] x, bool[3,3] m, float[3,3] w) => (float[3,3] y)
      <int64[2] big = {{3, 3}}, int64 zeroth = {{0}}, int64[1,1] place = {{2}}, int64[3,3] places = {{0, 1, 2, 2, 1, 0, 1, 2, 0}},
       int64[1] from = {{0}}, int64[1] to = {{1}}, float[3,3] eye = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}> {{
      zero = Constant<value = float {{0.0}}>()
      one = Constant<value = float {{1.0}}>()
      row = Constant<value = int64[1] {{0}}>()
      a = MatMul(x, x)
      r = ReduceSum<keepdims = 0>(w, row)
      s = Exp(r)
      q = MatMul(w, w)
      top = Slice(w, from, to)
      part = Slice(a, from, to)
      y = {node}
    }}
    """
    found = planned(text)
    assert {name: found[name] for name in found if name == "y"} == owner


def test_a_broadcast_into_the_small_operand_is_refused() -> None:
    assert planned("small (float[3] x, float[2,3] z) => (float[2,3] y) { a = Exp(x) y = Add(a, z) }") == {}


def test_a_row_that_is_also_the_scale_is_not_overwritten() -> None:
    assert planned("scale (float[8] x) => (float[8] y) { a = Exp(x) y = LayerNormalization(a, a) }") == {}
    text = "scale (float[8] x) => (float[8] y) { a = Exp(x) b = Identity(a) y = LayerNormalization(a, b) }"
    assert planned(text) == {"b": "a"}


def test_an_operand_given_twice_is_overwritten() -> None:
    assert planned("twice (float[8] x) => (float[8] y) { a = Exp(x) y = Mul(a, a) }") == {"y": "a"}


def test_inputs_constants_and_outputs_are_never_overwritten() -> None:
    text = """
    kept (float[8] x) => (float[8] y, float[8] z, float[8] w) <float[8] c = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}> {
      y = Add(x, c)
      z = Exp(y)
      w = Neg(z)
    }
    """
    assert planned(text) == {}


def test_a_cast_of_another_width_needs_bytes_of_its_own() -> None:
    text = "cast (float[8] x) => (int32[8] y, double[8] z) { a = Exp(x) b = Relu(a) z = Cast<to = 11>(a) y = Cast<to = 6>(b) }"
    assert planned(text) == {"y": "b"}


def test_a_function_of_the_name_of_an_operator_is_not_in_the_table() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
    calls (float[9,9] x) => (float[9,9] y) { a = Relu(x) y = local.Neg(a) }
    <domain: "local", opset_import: ["" : 20]> Neg (u) => (v) { v = Transpose(u) }
    """
    case = Case.of(onnx.parser.parse_model(text))
    assert aliases(case.plan()) == {}
    assert case.run(case.plan()).equal


def test_an_operand_that_is_still_read_is_seen_by_the_run() -> None:
    case = Case.of("late (float[2,3] x) => (float[2,3] y) { a = Exp(x) b = Sigmoid(a) c = Neg(b) y = Add(a, c) }")
    result = case.plan()
    assert case.run(result).equal
    wrong = tuple(
        b if b.name != "b" else type(b)(**{**vars(b), "offset": rows(result)["a"].offset}) for b in result.buffers
    )
    assert not case.run(type(result)(**{**vars(result), "buffers": wrong})).equal
