"""Rules that replace those of onnx-shape-inference."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile.model.load import load
from onnxtile.shapes.infer import _largest_of, _symbol_names
from onnxtile.shapes.resolve import resolve

Text = Callable[..., onnx.ModelProto]


def test_names_of_symbols_are_those_that_the_library_collects(text: Text) -> None:
    model = load(
        text("""g (float[N, 3] x, bool c, float[A, B] w) => (float[P, 3] y) {
            y = If (c) <then_branch = a () => (float[K, 3] p) { p = Relu (x) }, else_branch = b () => (float[K, 3] q) { q = Neg (x) }>
            z = Relu (w)
        }""")
    )
    model.graph.inputs[2].shape = ir.Shape(["2*M + 1", None])
    spec = importlib.util.find_spec("onnx_shape_inference._constraints")
    assert spec is not None and spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    assert _symbol_names(model.graph) == library.collect_symbol_names(model.graph) >= {"N", "M"}


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


def test_a_symbol_that_is_no_expression_is_a_name() -> None:
    value = ir.Value(name="x", shape=ir.Shape(["batch", 3, None]), type=ir.TensorType(ir.DataType.FLOAT))
    assert _symbol_names(ir.Graph([value], [], nodes=[])) == {"batch"}


@pytest.mark.parametrize(
    ("operator", "given", "results", "sizes"),
    [("Split", "{1, 2}", ["r", "t"], [(1, 1, 5), (2, 1, 5)]), ("Squeeze", "{1}", ["r"], [(3, 5)])],
)
def test_what_an_operand_of_a_function_says_is_open(
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
    """A residual stream of a hundred sums had a text of a hundred operands, and sympy took seconds to read it."""
    model = load(
        text("""g (float[A, 3] x, float[B, 3] w, float[C, 1] u) => (float[P, 3] y) {
            a = Add (x, w)  b = Add (a, x)  c = Mul (u, b)  d = Sub (c, w)  s = Concat <axis = 0> (x, x)  e = Add (s, d)  y = Neg (e)
        }""")
    )
    shapes = resolve(model)
    sizes = {node.outputs[0].name: str((shapes.dims(node.outputs[0]) or ("",))[0]) for node in model.graph}
    assert [sizes[name] for name in "abcde"] == [
        *("Max(A, B)", "Max(A, B)", "Max(C, A, B)", "Max(C, A, B)"),
        "Max(2*A, C, A, B)",
    ]


def test_the_largest_of_many_sizes_has_a_name(text: Text) -> None:
    """Sympy compares each with each other: it took twenty seconds for a decoder of twelve meta-ops."""
    model = load(
        text("""g (float[A] a, float[B] b, float[C] c, float[D] d, float[E] e) => (float[P] y, float[Q] z) {
            ab = Add (a, b)  abc = Add (ab, c)  abcd = Add (abc, d)  y = Add (abcd, e)
            z = Mul (abcd, e)
        }""")
    )
    shapes = resolve(model)
    first, second = ((shapes.dims(value) or ("",))[0] for value in (model.graph.outputs[0], model.graph.outputs[1]))
    assert first == second and re.fullmatch("_largest_[0-9a-f]+", str(first))


@pytest.mark.parametrize(
    ("size", "found"),
    [
        ("seq", ("seq",)),
        ("Max(a, b + f(c, d), a)", ("a", "b + f(c, d)")),
        ("Max(a, b) + Max(c, d)", ("Max(a, b) + Max(c, d)",)),
        ("Max(a, b", ("Max(a, b",)),
    ],
)
def test_the_operands_of_a_largest_size(size: str, found: tuple[str, ...]) -> None:
    assert _largest_of(size) == found
