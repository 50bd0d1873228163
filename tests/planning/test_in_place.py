"""The table of lawful aliases, tried: each operator is run with its output at the address of its operand, and must give the same bits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxtile.arena.memory import ByteArray
from onnxtile.operators.table import No, operators
from onnxtile.system.runtime import Array, Binding, Session
from tests import build
from tests.planning.conftest import Case, aliases, proved, rows

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
    results: Mapping[int, int] = field(default_factory=lambda: {0: -1})
    """The outputs of the node, each with the operand that it is written over; -1 stands for `onto`, -2 for memory of its own."""


def trials(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how `operator` is tried on operands of `shape`, and such as are broadcast against it."""
    if "::" in operator:
        return contributed(operator.split("::")[1], shape)
    by_kind: dict[str, Callable[[str, tuple[int, ...]], list[Trial]]] = {
        **dict.fromkeys(ROWS, rows_of),
        **dict.fromkeys({*PLACED, "Gemm"}, updates_of),
    }
    by_kind |= dict.fromkeys(CONVERTED, converted)
    if operator in by_kind:
        return by_kind[operator](operator, shape)
    if operator == "Where":
        return chosen(operator, shape)
    return unary(operator, shape) if operators()[operator].over is not None else broadcast(operator, shape)


def chosen(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    real, small = TensorProto.FLOAT, shape[-1:]
    return [
        Trial(operator, [c, *([shape, o] if onto == 1 else [o, shape])], [TensorProto.BOOL, real, real], onto, real)
        for onto in (1, 2)
        for c in (shape, small)
        for o in (shape, small)
    ]


def unary(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    kind, made = TYPES.get(operator, (TensorProto.FLOAT, TensorProto.FLOAT))
    found = [Trial(operator, [shape], [kind], 0, made, opset=24)]
    if operator in HALVES:
        halves = (TensorProto.FLOAT16, TensorProto.DOUBLE)
        found += [Trial(operator, [shape], [half], 0, half, opset=24) for half in halves]
    if operator in {"Swish", "Celu", "LeakyRelu"}:
        found.append(Trial(operator, [shape], [kind], 0, made, opset=24, attributes={"alpha": 1.7}))
    return found


def broadcast(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    kind, made = TYPES.get(operator, (TensorProto.FLOAT, TensorProto.FLOAT))
    needed: dict[str, dict[str, Any]] = {"Mod": {"fmod": 1}, "BitShift": {"direction": "LEFT"}}
    attributes = needed.get(operator, {})
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
ROWS |= {"SimplifiedLayerNormalization"}
PLACED = {"Scatter", "ScatterElements", "ScatterND", "TensorScatter"}
CONVERTED = {"BitCast", "Cast", "CastLike", "DequantizeLinear", "EyeLike", "IsInf", "IsNaN", "QuantizeLinear", "Trilu"}
HALVES = {"Abs", "Neg", "Relu", "Sigmoid", "Swish", "Tanh"}
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
    if operator.endswith(("LayerNormalization", "RMSNormalization")):
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
        if operator in {"Scatter", "ScatterElements"}:
            old = operator == "Scatter"
            for axis in range(len(shape)):
                some = tuple(max(1, size // 2) for size in shape)
                ways: list[dict[str, Any]] = [{"axis": axis}, {"axis": axis, "reduction": "mul"}]
                found += [
                    Trial(operator, [shape, some, some], [kind, whole, kind], 0, kind, 10 if old else 20, a)
                    for a in ways[: 2 - old]
                ]
        if operator == "TensorScatter" and len(shape) > 2:
            some = (*shape[:-2], 1, shape[-1])
            modes: list[dict[str, Any]] = [{"mode": "linear"}, {"mode": "circular"}]
            found += [
                Trial(operator, [shape, some, shape[:1]], [kind, kind, whole], 0, kind, 24, mode) for mode in modes
            ]
    return found


def converted(operator: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how an operator is tried whose result has another element type of the same width, or only some elements of its operand."""
    real, whole, half, short = TensorProto.FLOAT, TensorProto.INT32, TensorProto.FLOAT16, TensorProto.INT16
    double, large = TensorProto.DOUBLE, TensorProto.INT64
    if operator in {"EyeLike", "Trilu"}:
        square = [] if len(shape) < 2 or (operator == "EyeLike" and len(shape) > 2) else [shape]
        sides: list[dict[str, Any]] = [{}, {"upper": 0}] if operator == "Trilu" else [{}, {"k": 1}]
        kinds = (real, large, double)
        return [Trial(operator, [s], [kind], 0, kind, attributes=a) for s in square for kind in kinds for a in sides]
    if operator.startswith("Is"):
        eighths = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2)
        return [Trial(operator, [shape], [kind], 0, TensorProto.BOOL) for kind in eighths]
    if operator in {"DequantizeLinear", "QuantizeLinear"}:
        last = {"axis": len(shape) - 1}
        undone, done = [(whole, real), (short, half)], [(half, short)]
        pairs = undone if operator[0] == "D" else done
        kinds_of = [([a, b] if operator[0] == "D" else [a, a, b], b) for a, b in pairs]
        return [
            Trial(operator, [shape, *[scale] * (len(kinds) - 1)], kinds, 0, made, 21, attributes)
            for kinds, made in kinds_of
            for scale, attributes in (((), {}), (shape[-1:], last))
        ]
    pairs = [(whole, real), (large, double), (TensorProto.BOOL, TensorProto.UINT8)]
    pairs += [(b, a) for a, b in pairs] + [(half, TensorProto.BFLOAT16)]
    if operator == "BitCast":
        narrow = [(whole, real), (real, whole), (half, TensorProto.BFLOAT16)]
        return [Trial(operator, [shape], [a], 0, b, 26, {"to": b}) for a, b in narrow]
    if operator == "CastLike":
        return [Trial(operator, [shape, (1,)], [a, b], 0, b) for a, b in pairs]
    return [Trial(operator, [shape], [a], 0, b, attributes={"to": b}) for a, b in pairs]


def contributed(name: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how an operator of onnxruntime's domain is tried."""
    if name.startswith("QLinear"):
        return quantised(name, shape)
    operator, real, half = f"com.microsoft::{name}", TensorProto.FLOAT, TensorProto.FLOAT16
    if name in CONVERTED:
        return [replace(trial, operator=operator) for trial in converted(name, shape)]
    row = shape[-1:]
    if name.startswith("Skip"):
        norms = 2 if name == "SkipLayerNormalization" else 1
        whole = (2, 5, *row)
        # Both results over operands, each over either, or one of them; with and without the bias.
        ways = [{0: 0}, {0: 1}, {0: 0, 3: 1}, {0: 1, 3: 0}, {0: -2, 3: 0}, {0: -2, 3: 1}]
        return [
            Trial(operator, [whole] * 2 + [row] * more, [kind] * (2 + more), 0, kind, results=way)
            for way in ways
            for more in (norms, norms + 1)
            for kind in (real, half)
        ]
    if name in {"FusedConv", "FusedGemm"}:
        return products(name, shape)
    if name == "MurmurHash3":
        return [Trial(operator, [shape], [kind], 0, TensorProto.UINT32) for kind in (TensorProto.INT32, real)]
    if name == "NGramRepeatBlock":
        attributes = {"ngram_size": 2}
        return [Trial(operator, [(2, 6), (2, 128)], [TensorProto.INT64, real], 1, real, attributes=attributes)]
    if name == "LinearAttentionGate":
        heads = shape[-1:]
        return [Trial(operator, [(2, 7, *heads), heads, heads], [kind, real, real], 0, kind) for kind in (real, half)]
    given = {
        "BiasGelu": [([shape, row], [0])],
        "BranchwiseRMSNorm": [([(3, 5, *row)], [0]), ([(3, 5, *row), row], [0])],
        "GatedAdd": [([shape, shape, (*shape[:-1], 1)], [0, 1])],
        "GatedRMSNorm": [([shape, row, shape], [0, 2])],
    }
    kinds = [real, half] + ([TensorProto.DOUBLE] if name == "QuickGelu" else [])
    ways_of = given.get(name, [([shape], [0])])
    return [
        Trial(operator, shapes, [kind] * len(shapes), onto, kind)
        for shapes, places in ways_of
        for onto in places
        for kind in kinds
    ]


def products(name: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how a product with an activation is tried: written over what it adds."""
    operator, real = f"com.microsoft::{name}", TensorProto.FLOAT
    attributes: dict[str, Any] = {"activation": "Relu"}
    if name == "FusedGemm":
        rows, columns = (*shape, *shape)[:2]
        shapes = [(rows, 9), (9, columns), (rows, columns)]
        return [Trial(operator, shapes, [real] * 3, 2, real, attributes=attributes)]
    side = shape[-1]
    found = []
    for kernel in (1, 3):
        ends = [kernel // 2] * 4
        shapes_of = [(1, 4, 5, side), (8, 4, kernel, kernel), (8,), (1, 8, 5, side)]
        how = attributes | {"pads": ends, "kernel_shape": [kernel] * 2}
        found.append(Trial(operator, shapes_of, [real] * 4, 3, real, attributes=how))
    return found


def quantised(name: str, shape: tuple[int, ...]) -> list[Trial]:
    """Return how an operator on quantised operands is tried; the others may be broadcast."""
    operator, real, found = f"com.microsoft::{name}", TensorProto.FLOAT, list[Trial]()
    for kind in (TensorProto.UINT8, TensorProto.INT8):
        scale: list[tuple[tuple[int, ...], int]] = [((), real), ((), kind)]
        wholes = {"QLinearAdd": (0, 3), "QLinearMul": (0, 3), "QLinearWhere": (1, 4)}.get(name, (0,))
        for onto in wholes:
            for other in (shape, shape[-1:]):
                operands: list[tuple[tuple[int, ...], int]] = []
                if name == "QLinearWhere":
                    operands.append((other, TensorProto.BOOL))
                for place in wholes:
                    operands += [(shape if place == onto else other, kind), *scale]
                shapes, types = zip(*operands, *scale, strict=True)
                softmax = {"axis": -1, "opset": 13} if name == "QLinearSoftmax" else {}
                found.append(Trial(operator, shapes, types, onto, kind, attributes=softmax))
    return found


def overwritten(trial: Trial, repeats: int = 2) -> bool:
    """Return whether the results are the same in memory of their own and over operands, each time, also barely aligned."""
    names = [f"i{k}" for k in range(len(trial.shapes))]
    domain, _, operator = trial.operator.rpartition("::")
    results = {f"o{place}": trial.onto if onto == -1 else onto for place, onto in trial.results.items()}
    made = [f"o{place}" if place in trial.results else "" for place in range(max(trial.results) + 1)]
    node = helper.make_node(operator, names, made, domain=domain, **trial.attributes)
    inputs = {n: (t, s) for n, t, s in zip(names, trial.types, trial.shapes, strict=True)}
    model = build.model(
        [node], inputs, [onnx.ValueInfoProto(name=name) for name in results], opset=trial.opset, com_microsoft=1
    ).SerializeToString()
    sessions = [Session(model, threads=threads) for threads in (1, 2)]
    cases = [(seed, drawn(trial, seed)) for seed in range(repeats)]
    return all(_is_same(trial, session, results, *case) for session in sessions for case in cases)


def _is_same(trial: Trial, session: Session, results: Mapping[str, int], seed: int, arrays: list[Array]) -> bool:
    shift = arrays[trial.onto].itemsize * (seed % 2)
    found = []
    for is_over in (False, True):
        places = [placed(array, shift=array.itemsize * (seed % 2)) for array in arrays]
        fed = {
            f"i{k}": Binding(int(place.ctypes.data), array.shape, kind)
            for k, (place, array, kind) in enumerate(zip(places, arrays, trial.types, strict=True))
        }
        size = places[trial.onto].size
        memory = {
            name: places[onto] if is_over and onto >= 0 else placed(np.zeros(size, np.uint8), shift=shift)
            for name, onto in results.items()
        }
        shape = trial.shapes[trial.onto]
        session.run_in_place(
            fed, {name: Binding(int(data.ctypes.data), shape, trial.made) for name, data in memory.items()}
        )
        found.append(memory)
    return all(np.array_equal(found[0][name], found[1][name]) for name in results)


def drawn(trial: Trial, seed: int) -> list[Array]:
    draw = np.random.default_rng(seed)
    found: list[Any] = []
    for shape, kind in zip(trial.shapes, trial.types, strict=True):
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        if dtype == np.bool_:
            found.append(draw.random(shape) < 0.5)
        elif trial.operator.endswith("NGramRepeatBlock") and kind == TensorProto.INT64:
            found.append(draw.integers(0, 4, shape))
        elif trial.operator in PLACED and kind == TensorProto.INT64:
            # Places of the first axis, or of the axis that is scattered over, each once where that is possible.
            most = trial.shapes[0][trial.attributes.get("axis", -2 if trial.operator == "TensorScatter" else 0)]
            found.append(np.resize(draw.permutation(most), shape).astype(np.int64))
        elif dtype.kind in "iu":
            found.append(draw.integers(0, 100, shape).astype(dtype))
        else:
            numbers = draw.standard_normal(shape) * 2
            # The scales of a quantised operand, and of what is quantised, are positive.
            found.append((abs(numbers) + 0.1 if is_scaled(trial.operator) else numbers).astype(dtype))
    return [np.asarray(array) for array in found]


def is_scaled(operator: str) -> bool:
    return "QLinear" in operator or operator.endswith("izeLinear")


def placed(array: Array, shift: int) -> ByteArray:
    """Return the bytes of `array`, `shift` bytes after a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    data = memory[start : start + array.nbytes]
    data[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return data


@pytest.mark.parametrize("operator", sorted(n for n, row in operators().items() if not isinstance(row.over, No)))
def test_an_operator_of_the_table_computes_in_place(operator: str) -> None:
    tried = [trial for shape in SHAPES for trial in trials(operator, shape)]
    assert tried
    assert [trial for trial in tried if not overwritten(trial)] == []


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("Hardmax", {"axis": -1}),
        ("Gelu", {"approximate": "tanh"}),
        ("Transpose", {"perm": [1, 0]}),
        ("com.microsoft::FastGelu", {}),
        ("com.microsoft::QuickGelu", {"alpha": 1.702}),
    ],
)
def test_what_reads_what_it_has_overwritten_is_not_in_the_table(operator: str, attributes: dict[str, Any]) -> None:
    real = TensorProto.FLOAT
    assert not all(
        overwritten(Trial(operator, [s], [real], 0, real, attributes=attributes)) for s in ((9, 9), (64, 64))
    )
    text = f"""
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    no (float[9,9] x) => (float[9,9] y) {{ a = Relu(x) y = {operator.replace("::", ".")}{attribute(attributes)}(a) }}
    """
    assert aliases(Case.of(onnx.parser.parse_model(text)).plan()) == {}


def attribute(attributes: Mapping[str, Any]) -> str:
    given = ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in attributes.items())
    return f"<{given}>" if given else ""


def planned(text: str, **options: Any) -> dict[str, str]:
    """Return who owns whose bytes in a plan that a run inside the arena has confirmed."""
    return aliases(proved(text, **options))


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


@pytest.mark.parametrize(("kind", "owner"), [("float", {"y": "a"}), ("double", {})])
def test_a_log_softmax_of_doubles_reads_what_it_has_overwritten(kind: str, owner: dict[str, str]) -> None:
    number = TensorProto.DataType.Value(kind.upper())
    assert overwritten(Trial("LogSoftmax", [(3, 33)], [number], 0, number, attributes={"axis": 1})) == bool(owner)
    assert planned(f"rows ({kind}[3,33] x) => ({kind}[3,33] y) {{ a = Abs(x) y = LogSoftmax(a) }}") == owner


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
    wrong = tuple(b if b.name != "b" else replace(b, offset=rows(result)["a"].offset) for b in result.buffers)
    assert not case.run(replace(result, buffers=wrong)).equal


@pytest.mark.parametrize(
    ("node", "owner"),
    [
        ("y = Swish(a)", {"y": "a"}),
        ("y = Gelu(a)", {}),
        ("y = com.microsoft.Gelu(a)", {}),
        ("y = com.microsoft.ScaledSiLU(a)", {"y": "a"}),
        ("y = com.microsoft.BiasGelu(a, s)", {"y": "a"}),
        ("y = com.microsoft.QuickGelu(a)", {}),
        ("y = com.microsoft.FastGelu(a)", {}),
        ("y = com.microsoft.GatedRMSNorm(w, s, a)", {"y": "a"}),
        ('y = com.microsoft.FusedGemm<activation = "Relu">(w, w, a)', {"y": "a"}),
        ('y = com.microsoft.FusedGemm<activation = "Relu">(w, a, w)', {}),
        ("y = Trilu(a)", {"y": "a"}),
        ("n = Cast<to = 6>(a) y = CastLike(n, w)", {"n": "a", "y": "a"}),
        ("n = Cast<to = 6>(a) y = DequantizeLinear(n, one)", {"n": "a", "y": "a"}),
        ("y = com.microsoft.SkipLayerNormalization(w, a, s, s)", {"y": "a"}),
        ("b = Sin(w) y, p, q, z = com.microsoft.SkipSimplifiedLayerNormalization(a, b, s)", {"y": "a", "z": "b"}),
        ("b = Sin(w) y, p, q, z = com.microsoft.SkipLayerNormalization(a, w, s, s)", {"y": "a"}),
    ],
)
def test_operators_of_new_opsets_and_of_onnxruntime_write_over_operands(node: str, owner: dict[str, str]) -> None:
    dims = "8,8" if "FusedGemm" in node else "4,8,8"
    second = f", float[{dims}] z" if " z =" in node else ""
    model = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>
    one (float[{dims}] x, float[{dims}] w, float[8] s) => (float[{dims}] y{second}) {{
      one = Constant<value = float {{0.5}}>()
      a = Neg(x)
      {node}
    }}
    """)
    for given in model.graph.node:  # the text has no results that are left out
        given.output[:] = ["" if name in {"p", "q"} else name for name in given.output]
    case = Case.of(model)
    result = case.plan()
    assert case.run(result).equal
    assert {name: found for name, found in aliases(result).items() if name in {"n", "y", "z"}} == owner
