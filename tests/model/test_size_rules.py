"""Sizes that the rules of operators say as formulas, where onnx has numbers alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile.model.binding import bind
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
from onnxtile.model.submodel import exposing
from onnxtile.shapes.resolve import resolve

Text = Callable[..., onnx.ModelProto]


def test_a_plan_of_fixed_sizes_executes_no_sympy(tmp_path: Path, text: Text) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(text("g (float[2, 3] x) => (float[2, 3] y) { h = Relu (x) y = Neg (h) }"), file)
    code = (
        "import sys, onnxtile.cli as cli\n"
        "try: cli.main()\n"
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
