"""The map of each operator: run on the slice of its operands that the map names, an operator gives the slice of its result."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink
from onnxtile.operators.table import axis_links
from onnxtile.shapes.resolve import resolve
from tests import build
from tests.draws import draws
from tests.fitting.networks import cut_into_strips, model, run


def facts_of(proto: onnx.ModelProto) -> NodeView:
    """Return the facts of the first node of a model."""
    made = load(proto)
    return NodeView(made.graph[0], resolve(made, run=True), Constants(made), proto.opset_import[0].version)


def _input(proto: onnx.ModelProto) -> Any:
    return proto.graph.input[0].type.tensor_type.shape.dim


def _one(op: str, rows: int, weights: tuple[int, ...] | None = None, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one operator on a tensor of `rows` rows and 5 columns."""
    constants = []
    if weights is not None:
        array = np.random.default_rng(0).standard_normal(weights).astype(np.float32)
        constants.append(numpy_helper.from_array(array, "w"))
    node = helper.make_node(op, ["x", *(one.name for one in constants)], ["y"], name="one", **attributes)
    return build.model([node], {"x": [1, 2, rows, 5]}, {"y": ["n", "c", "h", "w"]}, constants)


@draws(30, 120)
@given(
    op=st.sampled_from(["Conv", "ConvTranspose", "MaxPool", "AveragePool"]),
    rows=st.integers(4, 12),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    pads=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    ceil=st.booleans(),
    counted=st.booleans(),
    ends=st.tuples(st.integers(0, 40), st.integers(1, 40)),
)
def test_windows_read_what_the_operator_reads(
    op: str,
    rows: int,
    kernel: int,
    stride: int,
    pads: tuple[int, int],
    ceil: bool,
    counted: bool,
    ends: tuple[int, int],
) -> None:
    """Rows outside of the window that a map names have no influence; NaN there would show it."""
    before, after = (min(pad, kernel - 1) for pad in pads)
    given_: dict[str, Any] = {"kernel_shape": [kernel, 1], "strides": [stride, 1], "pads": [before, 0, after, 0]}
    if op.endswith("Pool"):
        given_["ceil_mode"] = int(ceil)
    if op == "AveragePool":
        given_["count_include_pad"] = int(counted)
    proto = _one(op, rows, (2, 2, kernel, 1) if op.startswith("Conv") else None, **given_)
    try:
        facts = facts_of(proto)
        link = axis_links(facts, 2)[0]
    except NotApplicable:
        return
    assert isinstance(link, AxisLink) and link.axis == 2
    out = facts.result[2]
    start = ends[0] % out
    stop = start + 1 + ends[1] % (out - start)
    window = link.reads(start, stop)
    if window.stop <= window.start:
        return
    x = np.random.default_rng(2).standard_normal((1, 2, rows, 5)).astype(np.float32)
    hidden = np.full_like(x, np.nan)
    hidden[:, :, window.start : window.stop] = x[:, :, window.start : window.stop]
    whole, part = run(proto, x), run(proto, hidden)
    assert np.array_equal(whole[:, :, start:stop], part[:, :, start:stop], equal_nan=False)


@draws(20, 80)
@given(
    rows=st.integers(2, 12),
    numbers=st.tuples(st.integers(-14, 14), st.integers(-14, 14), st.integers(1, 4)),
    is_slice=st.booleans(),
    ends=st.tuples(st.integers(0, 40), st.integers(1, 40)),
)
def test_moved_rows_are_those_that_the_operator_reads(
    rows: int, numbers: tuple[int, int, int], is_slice: bool, ends: tuple[int, int]
) -> None:
    first, second, step = numbers
    proto = _one("Slice" if is_slice else "Pad", rows)
    given_ = [[first], [second], [2], [step]] if is_slice else [[0, 0, abs(first), 0, 0, 0, abs(second), 0]]
    for place, one in enumerate(given_):
        proto.graph.node[0].input.append(f"c{place}")
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(one), f"c{place}"))
    x = np.random.default_rng(2).standard_normal((1, 2, rows, 5)).astype(np.float32)
    whole = run(proto, x)
    out = whole.shape[2]
    if not out:
        return
    link = axis_links(facts_of(proto), 2)[0]
    assert link is not None
    start = ends[0] % out
    stop = start + 1 + ends[1] % (out - start)
    window = link.reads(start, stop)
    hidden = np.full_like(x, np.nan)
    hidden[:, :, window.start : window.stop] = x[:, :, window.start : window.stop]
    assert np.array_equal(whole[:, :, start:stop], run(proto, hidden)[:, :, start:stop], equal_nan=False)


CHAINS = {
    "ceil": "[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] y = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(h)",
    "average": "[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(h)",
    "counted": """[a] h = Conv<pads=[1,1,1,1]>(x, w)
        [b] y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1], count_include_pad=1>(h)""",
    "transposed": """[a] h = Conv<pads=[1,1,1,1]>(x, w)
        [b] i = ConvTranspose<kernel_shape=[2,2], strides=[2,2]>(h, v) [c] y = MaxPool<kernel_shape=[2,2], strides=[4,4]>(i)""",
    "same": '[a] h = Conv<auto_pad="SAME_UPPER">(x, w) [b] y = Conv<auto_pad="SAME_LOWER", strides=[3,3]>(h, u)',
    "dilated": "[a] h = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, w) [b] y = Conv<strides=[3,3]>(h, u)",
    "skip": "[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] i = Conv<pads=[1,1,1,1]>(h, u) [c] j = Add(h, i) [d] y = Conv<strides=[4,4]>(j, u)",
    "concat": """[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] i = Relu(h) [c] j = Concat<axis=1>(h, i)
        [d] y = MaxPool<kernel_shape=[3,3], strides=[3,3]>(j)""",
    "split": """[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] i, j = Split<axis=1>(h) [c] k = Mul(i, j)
        [d] y = MaxPool<kernel_shape=[3,3], strides=[3,3]>(k)""",
    "scaled": """[a] h = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
        [b] i = Resize<mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric">(h, none, scales)
        [c] j = Conv<pads=[1,1,1,1]>(i, w) [d] y = MaxPool<kernel_shape=[4,4], strides=[4,4]>(j)""",
    "turned": """[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] i = Transpose<perm=[0,1,3,2]>(h) [c] j = Conv<pads=[1,1,1,1]>(i, u)
        [d] k = Transpose<perm=[0,1,3,2]>(j) [e] l = Mul(h, k) [f] y = MaxPool<kernel_shape=[4,4], strides=[4,4]>(l)""",
    "spread": """[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] i = SpaceToDepth<blocksize=2>(h) [c] j = DepthToSpace<blocksize=4>(i)
        [d] k = Mul(j, j) [e] y = MaxPool<kernel_shape=[5,5], strides=[5,4]>(k)""",
    "map": "[a] h = Conv<pads=[1,1,1,1]>(x, w) [b] i = Mul(h, field) [c] y = MaxPool<kernel_shape=[4,4], strides=[4,4]>(i)",
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_in_strips_is_equal_bit_for_bit(name: str) -> None:
    weights = {"w": (8, 3, 3, 3), "u": (8, 8, 3, 3), "v": (8, 8, 2, 2), "field": (1, 8, 20, 12)}
    used: dict[str, Any] = {one: shape for one, shape in weights.items() if f" {one})" in CHAINS[name]}
    if name == "scaled":
        used |= {"scales": np.asarray([1, 1, 2, 2], np.float32), "none": np.zeros(0, np.float32)}
    proto = model(f"g (float[1,3,20,12] x) => (float[n,c,h,w1] y) {{ {CHAINS[name]} }}", **used)
    _require_equal_strips(proto, 1.0)


def _require_equal_strips(proto: onnx.ModelProto, share: float) -> None:
    """Assert that strips of one and of four rows give the same bits, in less than this share of the arena."""
    x = np.random.default_rng(1).standard_normal([dim.dim_value for dim in _input(proto)]).astype(np.float32)
    cuts = [cut_into_strips(proto, step, exact=True)[0] for step in (1, 4)]
    assert all(np.array_equal(run(proto, x), run(cut, x)) for cut in cuts)
    least, whole = (min(onnxtile.plan(one, verify=False).plan.arena_size for one in some) for some in (cuts, [proto]))
    assert least < share * whole


MOVES = {
    "focus": """h = Conv<pads=[1,1,1,1]>(x, w)
        a = Slice(h, {0,0}, {99,99}, {2,3}, {2,2}) b = Slice(h, {1,0}, {99,99}, {2,3}, {2,2})
        c = Slice(h, {0,1}, {99,99}, {2,3}, {2,2}) d = Slice(h, {1,1}, {99,99}, {2,3}, {2,2})
        i = Concat<axis=1>(a, b, c, d) y = MaxPool<kernel_shape=[3,3], strides=[3,3]>(i)""",
    "a part of the rows": """h = Conv<pads=[1,1,1,1]>(x, w) i = Slice(h, {3}, {-2}, {2}) j = Slice(h, {0}, {15}, {2}) k = Mul(i, j)
        y = MaxPool<kernel_shape=[3,3], strides=[3,3]>(k)""",
    "padded": """h = Conv<pads=[1,1,1,1]>(x, w) i = Pad(h, {0,1,2,1,0,0,1,2}, half) y = MaxPool<kernel_shape=[3,3], strides=[3,3]>(i)""",
    "padded with the border": """h = Conv<pads=[1,1,1,1]>(x, w) i = Pad<mode="edge">(h, {0,0,2,1,0,0,1,2})
        y = MaxPool<kernel_shape=[3,3], strides=[3,3]>(i)""",
    "flattened": """h = Conv<pads=[1,1,1,1]>(x, w) i = Reshape(h, {1,8,-1}) j = Transpose<perm=[0,2,1]>(i) k = Mul(j, half)
        l = Softmax<axis=-1>(k) y = ReduceMean<axes=[2]>(l)""",
    "pixels shuffled": """h = Conv<pads=[1,1,1,1]>(x, w) i = Reshape(h, {1,2,2,2,20,12}) j = Transpose<perm=[0,1,4,2,5,3]>(i)
        k = Reshape(j, {1,2,40,24}) y = MaxPool<kernel_shape=[8,8], strides=[8,8]>(k)""",
    "cut into windows": """h = Conv<pads=[1,1,1,1]>(x, w) i = Reshape(h, {1,8,5,4,3,4}) j = Transpose<perm=[0,2,4,3,5,1]>(i)
        y = ReduceMax<axes=[3,4], keepdims=0>(j)""",
    "one axis": """r = Reshape(x, {1,3,240}) h = Conv<kernel_shape=[5], pads=[2,2]>(r, v) i = Relu(h)
        j = Conv<kernel_shape=[5], pads=[0,4], strides=[3], dilations=[2]>(i, u) y = MaxPool<kernel_shape=[4], strides=[4]>(j)""",
    "expanded": """h = Conv<pads=[1,1,1,1]>(x, w) i = ReduceMax<axes=[1], keepdims=1>(h) j = Expand(i, {1,8,20,12}) k = Mul(h, j)
        y = MaxPool<kernel_shape=[4,4], strides=[4,4]>(k)""",
    "gathered": """h = Conv<pads=[1,1,1,1]>(x, w) i = Gather<axis=1>(h, {3,1})
        j = Gather<axis=1>(h, three) k = Unsqueeze(j, {1}) l = Mul(i, k)
        y = MaxPool<kernel_shape=[4,4], strides=[4,4]>(l)""",
    "chosen": """h = Conv<pads=[1,1,1,1]>(x, w) i = ArgMax<axis=1, keepdims=0>(h) y = Slice(i, {0,0}, {99,99}, {1,2}, {4,4})""",
}


def _moved(name: str) -> onnx.ModelProto:
    """Return a chain of `MOVES`; numbers in braces are constants."""
    numbers = list(dict.fromkeys(re.findall(r"\{[-\d,]+\}", MOVES[name])))
    text = MOVES[name]
    for place, one in enumerate(numbers):
        text = text.replace(one, f"c{place}")
    kind = {"chosen": "int64[n,h,v]", "flattened": "float[n,c,h]", "one axis": "float[n,c,h]"}.get(
        name, "float[n,c,h,v]"
    )
    constants = {f"c{place}": [int(number) for number in one[1:-1].split(",")] for place, one in enumerate(numbers)}
    weights = {"w": (8, 3, 3, 3), "v": (8, 3, 5), "u": (8, 8, 5), "half": np.float32(0.5), "three": 3}
    return model(f"g (float[1,3,20,12] x) => ({kind} y) {{ {text} }}", **weights, **constants)


@pytest.mark.parametrize("name", MOVES)
def test_moved_elements_in_strips_are_equal_bit_for_bit(name: str) -> None:
    _require_equal_strips(_moved(name), 0.75)


REFUSED = {
    "interpolated": ('Resize<mode="linear">(x, none, scales)', 2, "several axes at once"),
    "along the axis": ("Softmax<axis=2>(x)", 2, "normalises along this axis"),
    "neighbours": ("LRN<size=3>(x)", 1, "neighbouring channels"),
    "joined": ("Concat<axis=2>(x, x)", 2, "joins"),
    "reduced": ("ReduceMean<axes=[2], keepdims=1>(x)", 2, "reduces this axis"),
    "unknown": ("Trilu(x)", 2, "no rule"),
    "mixed": ("Reshape(x, shape)", 1, "mixes this axis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_that_is_not_cut_says_why(name: str) -> None:
    text, axis, reason = REFUSED[name]
    text = f"g (float[1,3,20,12] x) => (float[n,c,h,w1] y) {{ [a] y = {text} }}"
    proto = model(text, scales=np.asarray([1, 1, 2, 2], np.float32), none=np.zeros(0, np.float32), shape=[1, 6, 10, 12])
    with pytest.raises(NotApplicable, match=reason):
        axis_links(facts_of(proto), axis)


EINSUMS = {
    ("bhid,bhjd->bhij", 0): ((0,), (0,)),
    ("bhid,bhjd->bhij", 2): ((2,), ()),
    ("bhid, bhjd -> bhij", 3): ((), (2,)),
    ("bhid,hjd->jbhi", 0): ((), (1,)),
    ("bhid,id->bhi", 1): ((1,), ()),
}


@pytest.mark.parametrize(("equation", "axis"), EINSUMS)
def test_rows_of_an_einsum_come_from_the_operands_that_have_their_index(equation: str, axis: int) -> None:
    sizes = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6}
    left, right, result = ([sizes[index] for index in term.strip()] for term in equation.replace("->", ",").split(","))
    node = helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)
    links = axis_links(facts_of(build.model([node], {"x": left, "w": right}, {"y": result})), axis)
    assert tuple(() if link is None else (link.axis,) for link in links) == EINSUMS[equation, axis]


def test_attention_by_einsums_is_cut_into_rows() -> None:
    proto = build.parsed(
        """g (float[1,64,32] q, float[1,64,32] k) => (float[1,64,32] y) {
            [scores] s = Einsum<equation = "bid,bjd->bij">(q, k) p = Softmax<axis = -1>(s)
            [values] y = Einsum<equation = "bij,bjd->bid">(p, k) }"""
    )
    fitted = onnxtile.fit(proto, capacity=64 * 32 * 4 + 64 * 64 * 4 // 2, io="outputs")
    assert fitted.before.arena == 64 * 64 * 4 + 64 * 32 * 4
    assert fitted.verdict is not None and fitted.verdict.equal


@pytest.mark.parametrize("equation", ["ii->i", "...i,...i->...i"])
def test_an_einsum_that_names_no_single_axis_is_not_cut(equation: str) -> None:
    count = equation.count(",") + 1
    node = helper.make_node("Einsum", ["x"] * count, ["y"], equation=equation)
    facts = facts_of(build.model([node], {"x": [4, 4]}, {"y": [None] * count}))
    with pytest.raises(NotApplicable, match=r"does not name every axis|reads a diagonal"):
        axis_links(facts, 0)


CONTRIBUTED = {
    "gelu": "i = com.microsoft.Gelu(h)",
    "biased": "i = com.microsoft.BiasGelu(h, b)",
    "fast": "i = com.microsoft.FastGelu(h, b)",
    "quick": "i = com.microsoft.QuickGelu<alpha = 1.702>(h)",
    "scaled": "i = com.microsoft.ScaledSiLU(h)",
    "summed": "i = com.microsoft.SkipLayerNormalization(h, h, b, b)",
    "two results": "k, m, n, l = com.microsoft.SkipSimplifiedLayerNormalization(h, h, b) i = Mul(k, l)",
    "gated": "g = Tanh(h) i = com.microsoft.GatedRMSNorm(h, b, g)",
    "rotated": "i = RotaryEmbedding<num_heads = 2>(h, turns, turns)",
    "accumulated": "i = CumSum(h, last)",
    "repeated": "i = Tile(h, twice)",
}


@pytest.mark.parametrize("name", CONTRIBUTED)
def test_operators_of_onnxruntime_are_cut_between_products(name: str) -> None:
    """Between a product that makes wide rows and one that makes them narrow, so that a part of the rows saves much."""
    wide = 128 if name == "repeated" else 64
    text = f"""
    <ir_version: 11, opset_import: ["" : 23, "com.microsoft" : 1]>
    g (float[1,96,16] x) => (float[1,96,4] y) <int64 last = {{2}}, int64[3] twice = {{1, 1, 2}}> {{
      h = MatMul(x, w) {CONTRIBUTED[name]} y = MatMul(i, v)
    }}"""
    proto = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    shapes = {"w": (16, 64), "v": (wide, 4), "b": (64,), "turns": (1, 96, 16)}
    used = {one for node in proto.graph.node for one in node.input}
    for constant in used & shapes.keys():
        array = draw.standard_normal(shapes[constant]).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, constant))
    for node in proto.graph.node:
        node.output[:] = ["" if one in {"m", "n"} else one for one in node.output]
    whole = onnxtile.plan(proto, verify=False).plan.arena_size
    fitted = onnxtile.fit(proto, capacity=whole // 2 - 1)
    assert fitted.verdict is not None and fitted.verdict.equal
    assert fitted.after.arena < fitted.before.arena / 2


def test_a_transposed_convolution_whose_output_shape_reaches_further_than_its_input_is_not_cut() -> None:
    text = "g (float[1,1,3,3] x) => (float[n,c,h,v] y) { a = Relu(x) y = ConvTranspose<output_shape = [10, 8], strides = [3, 2]>(a, w) }"
    proto = model(text, w=(1, 2, 3, 3))
    made = load(proto)
    with pytest.raises(NotApplicable, match="output_shape"):
        axis_links(NodeView(made.graph[1], resolve(made, run=True), Constants(made), 17), 2)
    with pytest.raises(onnxtile.Infeasible):
        onnxtile.fit(proto, capacity=100)


# Rows that Resize and Pad take from neighbours: strips of every mode and size give what onnxruntime gives for the
# whole.


WAYS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


def _chain(op: str, constants: dict[str, Any], rows: int, opset: int = 19, **attributes: Any) -> onnx.ModelProto:
    """Return a convolution, a Resize or Pad of its result, and a pooling."""
    weights = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32) / 4
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node(op, ["h", *constants], ["i"], name="one", **attributes),
        helper.make_node("MaxPool", ["i"], ["y"], kernel_shape=[3, 3], strides=[3, 3]),
    ]
    arrays = [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items() if name]
    return build.model(
        nodes,
        {"x": [1, 2, rows, 9]},
        {"y": ["n", "c", "h", "w"]},
        [numpy_helper.from_array(weights, "w"), *arrays],
        opset=opset,
    )


@draws(20, 80)
@given(
    mode=st.sampled_from(["linear", "cubic", "nearest"]),
    way=st.sampled_from(WAYS),
    nearest=st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
    rows=st.integers(12, 24),
    scale=st.tuples(st.sampled_from([1.0, 0.5, 1.3, 2.0, 2.5, 4.0]), st.sampled_from([1.0, 1.7, 2.0])),
    gives_sizes=st.booleans(),
    step=st.integers(1, 4),
    opset=st.sampled_from([11, 13, 17, 19]),
)
def test_resized_strips_are_equal(
    mode: str, way: str, nearest: str, rows: int, scale: tuple[float, float], gives_sizes: bool, step: int, opset: int
) -> None:
    sizes = [1, 4, int(rows * scale[0]), int(9 * scale[1])]
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, *scale], np.float32)
    given_ = {"": none, "sizes": sizes} if gives_sizes else {"scales": scales}
    constants = {"roi" if opset < 13 else "": none, **given_}
    more = {"nearest_mode": nearest} if mode == "nearest" else {}
    way = way if opset > 18 or way != "half_pixel_symmetric" else "half_pixel"
    proto = _chain("Resize", constants, rows, opset, mode=mode, coordinate_transformation_mode=way, **more)
    if gives_sizes:
        proto.graph.node[1].input[:] = ["h", *(["roi", "roi"] if opset < 13 else ["", ""]), "sizes"]
    cut, _ = cut_into_strips(proto, step, exact=mode == "nearest")
    assert [node.op_type for node in cut.graph.node].count("Conv") > 1
    x = np.random.default_rng(1).standard_normal((1, 2, rows, 9)).astype(np.float32)
    whole, part = run(proto, x), run(cut, x)
    assert np.array_equal(whole, part) if mode == "nearest" else np.allclose(whole, part, rtol=1e-5, atol=1e-5)


@draws(15, 60)
@given(
    rows=st.integers(12, 20),
    pads=st.tuples(*[st.integers(0, 5)] * 4),
    step=st.integers(1, 4),
)
def test_mirrored_strips_are_equal_bit_for_bit(rows: int, pads: tuple[int, int, int, int], step: int) -> None:
    given_ = np.asarray([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64)
    proto = _chain("Pad", {"pads": given_}, rows, mode="reflect")
    cut, _ = cut_into_strips(proto, step, exact=True)
    assert [node.op_type for node in cut.graph.node].count("Conv") > 1
    x = np.random.default_rng(1).standard_normal((1, 2, rows, 9)).astype(np.float32)
    assert np.array_equal(run(proto, x), run(cut, x))


def test_extra_macs_of_resized_strips_are_those_of_the_written_products() -> None:
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, 2, 2], np.float32)
    cut, cost = cut_into_strips(_chain("Resize", {"roi": none, "scales": scales}, 20, mode="linear"), 4, exact=False)
    assert any(node.op_type == "MatMul" for node in cut.graph.node)
    assert cost.macs == onnxtile.inspect(cut).to_dict()["macs"]["total"]


def test_exact_leaves_interpolated_rows_whole() -> None:
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, 2, 2], np.float32)
    cut, _ = cut_into_strips(_chain("Resize", {"roi": none, "scales": scales}, 20, mode="linear"), 4, exact=True)
    assert [node.op_type for node in cut.graph.node].count("Resize") == 1


def test_a_part_that_is_resized_says_why() -> None:
    roi, scales = np.asarray([0, 0, 0, 0, 1, 1, 0.5, 1], np.float32), np.asarray([1, 1, 2, 1], np.float32)
    constants = {"roi": roi, "scales": scales}
    proto = _chain("Resize", constants, 20, mode="linear", coordinate_transformation_mode="tf_crop_and_resize")
    del proto.graph.node[0]
    proto.graph.node[0].input[0] = "x"
    with pytest.raises(NotApplicable, match="a part of its operand"):
        axis_links(facts_of(proto), 2)


def test_whole_rows_in_chunks_of_channels_are_mirrored() -> None:
    pads = np.asarray([0, 0, 2, 2, 0, 0, 2, 2], np.int64)
    proto = _chain("Pad", {"pads": pads}, 16, mode="reflect")
    weights = np.random.default_rng(1).standard_normal((2, 4, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "v"))
    proto.graph.node[2].CopyFrom(helper.make_node("Conv", ["i", "v"], ["y"]))
    cut, cost = cut_into_strips(proto, 0, exact=False, chunks=((0, 2),))
    assert cost.cut.chunks and [node.op_type for node in cut.graph.node].count("Pad") == 4
    x = np.random.default_rng(1).standard_normal((1, 2, 16, 9)).astype(np.float32)
    assert np.allclose(run(proto, x), run(cut, x), rtol=1e-5, atol=1e-5)
