"""Sizes that the rules of operators say as formulas, where onnx has numbers alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxtile.model.binding import bind, free_inputs, symbols
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.formula import SizeFormula, SizePieces, extreme, is_at_least, product_of, read_size, read_sizes
from onnxtile.model.load import load
from onnxtile.model.submodel import exposing
from onnxtile.shapes.propagation import Interval, keeps_its_sign
from onnxtile.shapes.propagation import interval_results as results
from onnxtile.shapes.resolve import resolve
from onnxtile.system.runtime import Array
from tests import build
from tests.build import Text


def test_a_plan_of_fixed_sizes_executes_no_sympy(tmp_path: Path, text: Text) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(text("g (float[2, 3] x) => (float[2, 3] y) { h = Relu (x) y = Neg (h) }"), file)
    code = (
        "import sys; from onnxtile.__main__ import main\n"
        "try: main()\n"
        "finally: print('sympy.core' in sys.modules, 'onnxtile.shapes.infer' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "plan", str(file), "--no-verify", "--dry-run", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["False", "True"]


@pytest.mark.parametrize(
    ("operator", "given", "results", "sizes"),
    [("Split", "{1, 2}", ["r", "t"], [(1, 1, 5), (2, 1, 5)]), ("Squeeze", "{1}", ["r"], [(3, 5)])],
)
def test_what_an_operand_of_a_function_says_is_open_or_right(
    operator: str, given: str, results: list[str], sizes: list[tuple[int, ...]]
) -> None:
    made, outputs = ", ".join(results), ", ".join(f"float[{name}0] {name}" for name in results)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1, "own": 1]>
        g (float[3,1,5] x) => ({outputs}) {{
            s = Constant<value = int64[{given.count(",") + 1}] {given}>()
            o = com.microsoft.FastGelu(x)
            {made} = own.Parts(o, s)
        }}
        <domain: "own", opset_import: ["": 18]> Parts (p, q) => ({made}) {{ {made} = {operator}(p, q) }}"""
    )
    for value, found in zip(model.graph.output, sizes, strict=True):
        value.type.tensor_type.shape.CopyFrom(
            onnx.helper.make_tensor_value_info("", 1, [None] * len(found)).type.tensor_type.shape
        )
    loaded = load(model)
    call = loaded.graph[-1]
    assert [resolve(loaded, run=True).sizes(value) for value in call.outputs] == sizes
    known = [resolve(loaded).sizes(value) for value in call.outputs]
    assert all(one in {None, right} for one, right in zip(known, sizes, strict=True))


def test_the_largest_of_sizes_names_each_once(text: Text) -> None:
    """A residual stream of a hundred sums had a text of a hundred operands."""
    model = load(
        text("""g (float[A, 3] x, float[B, 3] w, float[C, 1] u) => (float[P, 3] y) {
            a = Add (x, w)  b = Add (a, x)  c = Mul (u, b)  d = Sub (c, w)  s = Concat <axis = 0> (x, x)  e = Add (s, d)  y = Neg (e)
        }""")
    )
    shapes = resolve(model)
    sizes = {node.outputs[0].name: str((shapes.dims(node.outputs[0]) or ("",))[0]) for node in model.graph}
    assert [sizes[name] for name in "abcde"] == [
        *("max(A, B)", "max(A, B)", "max(A, B, C)", "max(A, B, C)"),
        "max(2*A, B, C)",
    ]


def test_the_largest_of_many_sizes_is_one_size(text: Text) -> None:
    """A decoder of twelve meta-ops once took twenty seconds."""
    model = load(
        text("""g (float[A] a, float[B] b, float[C] c, float[D] d, float[E] e) => (float[P] y, float[Q] z) {
            ab = Add (a, b)  abc = Add (ab, c)  abcd = Add (abc, d)  y = Add (abcd, e)
            z = Mul (abcd, e)
        }""")
    )
    shapes = resolve(model)
    first, second = ((shapes.dims(value) or ("",))[0] for value in (model.graph.outputs[0], model.graph.outputs[1]))
    assert first == second == "max(A, B, C, D, E)"


_VALUES = (
    "float[3, 4, 3, 3] w = {" + ", ".join(["0.5"] * 108) + "}, float[4, 3, 3, 3] t = {" + ", ".join(["0.5"] * 108) + "}"
)

GRAPHS = {
    "a convolution": "y = Conv <strides = [2, 3], pads = [1, 0, 1, 2]> (x, w)",
    "a convolution with equal padding": 'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)',
    "a dilated convolution": 'y = Conv <auto_pad = "VALID", dilations = [2, 1]> (x, w)',
    "a transposed convolution": "y = ConvTranspose <strides = [2, 2], output_padding = [1, 0], pads = [1, 1, 0, 0]> (x, t)",
    "a pooling": "y = MaxPool <kernel_shape = [3, 2], strides = [2, 2]> (x)",
    "a pooling that rounds up": "y = MaxPool <kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1> (x)",
    "a pooling that rounds up over padding": """
        y = AveragePool <kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1> (x)""",
    "a padding": "p = Constant <value = int64[8] {0, 1, 2, 0, 0, 1, 1, 3}> () y = Pad (x, p)",
    "a padding of chosen axes": "p = Constant <value = int64[2] {1, 2}> () a = Constant <value = int64[1] {-1}> () y = Pad (x, p, , a)",
    "depth to space": "y = DepthToSpace <blocksize = 2> (x)",
    "a flattening": "y = Flatten <axis = 2> (x)",
    "a concatenation and a split": "c = Concat <axis = 2> (x, x) y, z = Split <axis = 2, num_outputs = 2> (c)",
    "an uneven split": "y, z = Split <axis = 3, num_outputs = 2> (x)",
    "a split by given sizes": "s = Constant <value = int64[2] {1, 3}> () y, z = Split <axis = 1> (x, s)",
    "a repetition": "r = Constant <value = int64[4] {1, 2, 3, 1}> () y = Tile (x, r)",
    "a slice with steps": """f = Constant <value = int64[2] {1, -4}> () e = Constant <value = int64[2] {1000000000, -1}> ()
        a = Constant <value = int64[2] {2, 3}> () k = Constant <value = int64[2] {2, 1}> () y = Slice (x, f, e, a, k)""",
    "a reshaping by sizes": """d = Shape <start = 2> (x) p = Constant <value = int64[2] {0, -1}> () q = Concat <axis = 0> (p, d)
        s = Shape <start = 2, end = 3> (x) m = Mul (s, s) y = Reshape (x, q)""",
    "a resizing to sizes": """d = Shape (x) h = Constant <value = int64[4] {1, 1, 2, 3}> () m = Mul (d, h)
        y = Resize <mode = "nearest"> (x, , , m)""",
    "a resizing by scales": """h = Constant <value = float[4] {1, 1, 2, 0.5}> () y = Resize <mode = "nearest"> (x, , h)""",
    "a choice among sizes": """
        d = Shape <start = 2> (x) m = Constant <value = int64[2] {-1, 1}> () o = Constant <value = int64[2] {-1, -1}> ()
        e = Equal (m, o) r = Where (e, d, m) v = Constant <value = float[1, 1] {2}> () y = Expand (v, r)""",
    "the largest elements": """k = Constant <value = int64[1] {2}> () y, z = TopK <axis = 1> (x, k)""",
    "a reshaping by what is left": "p = Constant <value = int64[3] {0, 2, -1}> () y = Reshape (x, p)",
    "a list with an element that only data know": """n = NonZero (x) c = Shape <start = 1> (n) o = Constant <value = int64[1] {1}> ()
        l = Min (c, o) s = Shape <end = 2> (x) q = Concat <axis = 0> (s, l) v = Constant <value = float[1, 1, 1] {2}> ()
        e = Expand (v, q) a = Constant <value = int64[1] {2}> () y = ReduceSum <keepdims = 0> (e, a)""",
    "a product of broadcast matrices": "k = Transpose <perm = [0, 1, 3, 2]> (x) y = MatMul (x, k)",
    "a range": """s = Shape <start = 2, end = 3> (x) l = Squeeze (s) z = Constant <value = int64 {0}> () o = Constant <value = int64 {1}> ()
        y = Range (z, l, o)""",
}
"""Nodes that read the picture x of sizes N, 4, H, W."""
RANKS = {
    "a flattening": 2,
    "a reshaping by what is left": 3,
    "a list with an element that only data know": 2,
    "a choice among sizes": 2,
    "a range": 1,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_formula_has_the_size_of_a_run(text: Text, name: str) -> None:
    rank, kind = RANKS.get(name, 4), "int64" if "Range" in GRAPHS[name] else "float"
    result = f"{kind}[{', '.join('PQRS'[:rank])}] y"
    graph = f"g (float[N, 4, H, W] x) => ({result}) <{_VALUES}> {{ {GRAPHS[name]} }}"
    proto = text(graph, opset=18)
    model = load(proto)
    shapes = resolve(model, ranges={"N": (1, 4), "H": (6, 64), "W": (6, 64)})
    formulas = shapes.formulas(model.graph.outputs[0])
    assert formulas is not None
    for sizes in ({"N": 1, "H": 6, "W": 6}, {"N": 2, "H": 7, "W": 12}, {"N": 3, "H": 10, "W": 9}):
        bound = load(proto)
        bind(bound, sizes, {})
        seen = exposing(bound, ["y"]).run(sample_feeds(bound, resolve(bound).sizes))["y"]
        assert tuple(size.at(sizes) for size in formulas) == seen.shape


def test_the_sizes_of_a_call_are_formulas(text: Text) -> None:
    """onnx carries names through a function, and loses their sum."""
    body = '<domain: "local", opset_import: ["": 17]> up <axis> (a, b) => (c) { j = Concat <axis: int = @axis> (a, b) c = Neg (j) }'
    model = load(
        text(
            "g (float[N, 3] x, float[M, 3] w) => (float[P, 3] y) { h = local.up <axis = 0> (x, w) y = Abs (h) }",
            functions=body,
        )
    )
    assert resolve(model).dims(model.graph.outputs[0]) == ("M + N", 3)


def test_sizes_that_only_data_decide_are_told_apart(text: Text) -> None:
    model = load(
        text(
            "g (float[4] x, float[4] w) => (int64[1, A] y, int64[1, B] z) { n = NonZero (x) y = Neg (n) z = NonZero (w) }"
        )
    )
    shapes = resolve(model)
    made: dict[str | None, ir.Value] = {value.name: value for node in model.graph for value in node.outputs}
    assert shapes.dims(made["n"]) == shapes.dims(made["y"]) != shapes.dims(made["z"])


def test_a_call_that_is_opened_for_its_sizes_adds_no_reader(text: Text) -> None:
    body = '<domain: "local", opset_import: ["": 17]> up (a, b) => (c) { c = Concat <axis = 0> (a, b) }'
    model = load(text("g (float[N, 3] x, float[M, 3] w) => (float[P, 3] y) { y = local.up (x, w) }", functions=body))
    resolve(model)
    assert [len(list(value.uses())) for value in model.graph.inputs] == [1, 1]


# Formulas of sizes: their normal form, their limits, and comparisons that hold over whole ranges.


RANGES = {"batch": (1, 8), "seq": (2, 512)}
BATCH, SEQ = SizeFormula.symbol("batch"), SizeFormula.symbol("seq")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2*seq", "2*seq"),
        ("seq*2 + batch - seq", "batch + seq"),
        ("floor(seq/2) + 1", "((seq) // 2) + 1"),
        ("floor(seq/2 + 1/2)", "((seq + 1) // 2)"),
        ("(4*seq + 2) // 2", "2*seq + 1"),
        ("(8*seq + 63) // 64", "((seq + 7) // 8)"),
        ("ceiling(seq/3)", "((seq + 2) // 3)"),
        ("seq**2", "seq**2"),
        ("Min(64, seq)", "min(64, seq)"),
        ("Min(600, seq)", "seq"),
        ("Max(0, seq - 1)", "seq - 1"),
        ("(2*seq + 4)/2", "seq + 2"),
        ("64", "64"),
    ],
)
def test_sizes_have_one_normal_form(text: str, written: str) -> None:
    found = read_size(text, RANGES)
    assert found is not None and str(found) == written


@pytest.mark.parametrize("text", ["other", "seq +", "seq/2", "f(seq)", "seq**-1", "2//0", "seq**99", None])
def test_other_texts_are_no_sizes(text: str | None) -> None:
    assert read_size(text, RANGES) is None
    assert read_sizes((2, text), RANGES) is None


def test_limits_of_a_polynomial_that_grows_are_reached() -> None:
    formula = BATCH * SEQ * SEQ * 4 + 64
    assert formula.limits(RANGES) == (1 * 4 * 4 + 64, 8 * 512 * 512 * 4 + 64)
    assert formula.at({"batch": 2, "seq": 3}) == 136


def test_the_largest_is_found_where_it_is_so_at_all_sizes() -> None:
    assert is_at_least(SEQ * SEQ, SEQ * 2, RANGES), "seq is at least 2"
    assert not is_at_least(SEQ * SEQ, SEQ * 3, RANGES), "seq may be 2"
    assert is_at_least(SEQ * 64, (SEQ // 2) * 128, RANGES)
    assert not is_at_least((SEQ // 2) * 128, SEQ * 64, RANGES)
    assert extreme("max", [SEQ, BATCH * SEQ], RANGES) == BATCH * SEQ


sizes = st.recursive(
    st.sampled_from([BATCH, SEQ, SizeFormula.number(3), SizeFormula.number(64)]),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, n: a // n, inner, st.integers(1, 9)),
        st.builds(lambda a, b: extreme("min", [a, b], RANGES), inner, inner),
    ),
    max_leaves=5,
)
points = st.fixed_dictionaries({"batch": st.integers(1, 8), "seq": st.integers(2, 512)})


@given(sizes, sizes, points)
def test_what_is_said_of_a_range_holds_at_each_of_its_sizes(a: SizeFormula, b: SizeFormula, at: dict[str, int]) -> None:
    assert eval(str(a), {"min": min, "max": max}, at) == a.at(at)
    low, high = a.limits(RANGES)
    assert low <= a.at(at) <= high
    assert (a + b).at(at) == a.at(at) + b.at(at)
    assert product_of([a, b, 2]).at(at) == 2 * a.at(at) * b.at(at)
    assert (a - b).at(at) == a.at(at) - b.at(at)
    if is_at_least(a, b, RANGES):
        assert a.at(at) >= b.at(at)
    assert SizePieces.from_formulas([a, b]).at(at) == max(a.at(at), b.at(at))
    assert read_size(str(a), RANGES) is None or read_size(str(a), RANGES).at(at) == a.at(at)  # type: ignore[union-attr]


def test_a_size_is_divided_by_a_number_of_at_least_1() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SEQ // 0


# Intervals: whatever the operands are between their bounds, the results are between theirs.


_COUNTS = {"Where": 3, "Neg": 1, "Not": 1, "Identity": 1, "ReduceSum": 1, "ReduceMax": 1, "ReduceProd": 1}
_NAMES = (
    *("Add", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min"),
    *("Mul", "Neg", "ReduceMax", "ReduceProd", "ReduceSum", "Sub", "Where"),
)


def evaluate(operator: str, operands: Sequence[Array | None]) -> list[Array]:
    names = [f"i{place}" for place in range(len(operands))]
    attributes: dict[str, Any] = {"axis": 0} if operator == "Concat" else {}
    node = helper.make_node(operator, names, ["y"], **attributes)
    infos = [helper.make_value_info(name, helper.make_tensor_type_proto(7, None)) for name in (*names, "y")]
    model = build.model([node], infos[:-1], infos[-1:])
    return list(map(np.asarray, ReferenceEvaluator(model).run(None, dict(zip(names, operands, strict=True)))))


@given(
    st.sampled_from(_NAMES),
    st.lists(st.lists(st.integers(-3, 9), min_size=9, max_size=9), min_size=3, max_size=3),
)
def test_results_lie_in_their_intervals(operator: str, drawn: list[list[int]]) -> None:
    operands, actual = [], []
    for place, numbers in enumerate(drawn[: _COUNTS.get(operator, 2)]):
        rows = np.sort(np.asarray(numbers).reshape(3, 3), axis=0)
        if operator == "Where" and not place:
            rows = rows > 3
        operands.append((rows[0], rows[2]))
        actual.append(rows[1])
    found = results(operator, operands, lambda numbers: evaluate(operator, numbers))
    if found is None:
        assert operator in {"Div", "Mul", "ReduceProd"}
        return
    (least, most), (result,) = found[0], evaluate(operator, actual)
    assert (least <= result).all()
    assert (result <= most).all()


@pytest.mark.parametrize(
    ("operator", "operands"),
    [
        ("Mod", [([1], [5]), ([3], [3])]),
        ("Gather", [([1, 2], [1, 2]), ([0], [1])]),
        ("Range", [([0], [1]), ([4], [4]), ([1], [1])]),
        ("Div", [([1], [5]), ([0], [3])]),
    ],
)
def test_nothing_is_said_where_nothing_is_known(operator: str, operands: list[tuple[list[int], list[int]]]) -> None:
    intervals: list[Interval | None] = [(np.asarray(low), np.asarray(high)) for low, high in operands]
    assert results(operator, intervals, lambda _: pytest.fail("nothing is to be computed")) is None


def test_elements_that_may_not_be_there_count_as_0() -> None:
    ends = iter([[np.asarray([2])], [np.asarray([2, 3])]])
    (found,) = results("Slice", [(np.asarray([2, 3]), np.asarray([2, 3]))], lambda _: next(ends)) or []
    assert [end.tolist() for end in found] == [[0, 0], [2, 3]]


def test_a_sign_is_kept_or_not() -> None:
    assert keeps_its_sign((np.asarray([0, -4]), np.asarray([3, -1])))
    assert not keeps_its_sign((np.asarray([-1]), np.asarray([0])))


# Sizes that a model computes from its inputs' sizes are known without a run, and none is known that depends on data.


def _computed(model: ir.Model) -> list[ir.Value]:
    return [value for node in model.graph for value in node.outputs if value.name]


@pytest.mark.parametrize("name", ["bert_ts14", "gpt2_ts14", "gpt2_ts14dyn", "t5_encoder_ts14", "llama-sdpa_ts14"])
def test_every_size_is_that_of_a_run(zoo: Callable[[str], Path], name: str) -> None:
    """The engines alone leave hundreds of values of these exports open."""
    model = load(zoo(name))
    bind(model, {symbol: 3 + place for place, symbol in enumerate(symbols(free_inputs(model)))}, {})
    shapes = resolve(model)
    values = _computed(model)
    seen = exposing(model, [value.name or "" for value in values]).run(sample_feeds(model, shapes.sizes))
    assert {value.name: shapes.sizes(value) for value in values} == {name: array.shape for name, array in seen.items()}


def test_a_shape_through_where_and_scatter(text: Text) -> None:
    """Eight by two by three, made of the numbers of x's shape in a way that no engine follows."""
    graph = """g (float[8,6] x) => (float[a,b,c] y) <int64[1] minus = {-1}, int64[3] s = {-1, 2, 3}, int64[1,1] at = {{0}}> {
        d = Shape(x)  e = Slice(d, z, o)  w = Equal(s, minus)  b = Expand(e, t)  r = Where(w, b, s)  y = Expand(u, r) }"""
    constants = ", int64[1] z = {0}, int64[1] o = {1}, int64[1] t = {3}, float[1] u = {1}> {"
    model = load(text(graph.replace(", int64[1,1] at = {{0}}> {", constants)))
    assert resolve(model).sizes(model.graph.outputs[0]) == (8, 2, 3)


def test_what_depends_on_data_stays_open(text: Text) -> None:
    model = load(
        text(
            "g (float[8] x) => (float[a] y, int64[b] c) { n = NonZero(x)  c = Shape(n)  s = Squeeze(n)  y = Gather(x, s) }"
        )
    )
    shapes = resolve(model)
    assert shapes.sizes(model.graph.outputs[0]) is None
    assert shapes.sizes(model.graph.outputs[1]) == (2,)


def test_a_number_that_the_user_feeds_is_not_known(text: Text) -> None:
    model = load(text("g (int64[2] s, float[1] x) => (float[a,b] y) { y = Expand(x, s) }"))
    assert resolve(model).sizes(model.graph.outputs[0]) is None


def test_nothing_large_is_computed(text: Text) -> None:
    """A range of 10¹² numbers, whose length is known all the same."""
    graph = """g (float[1000,1000,1000,1000] x) => (int64[a] y) <int64 z = {0}, int64 o = {1}, int64[1] f = {1}>
        { n = Size(x)  w = Where(c, n, z)  y = Range(z, w, o) }"""
    model = load(text(graph.replace("int64[1] f = {1}", "bool c = {1}")))
    shapes = resolve(model)
    assert shapes.sizes(model.graph.outputs[0]) == (10**12,)


def test_calls_are_followed(text: Text) -> None:
    body = '<opset_import: ["": 17], domain: "local"> Two (a, s) => (y) { y = Expand(a, s) }'
    graph = """g (float[8,1] x) => (float[a,b] y) <int64[2] s = {-1, 4}, int64 m = {-1}, int64[1] z = {0}, int64[1] o = {1}>
        { d = Shape(x)  e = Slice(d, z, o)  q = Equal(s, m)  r = Where(q, e, s)  h = local.Two(x, r)  y = Neg(h) }"""
    model = load(text(graph, functions=body))
    assert resolve(model).sizes(model.graph.outputs[0]) == (8, 4)
