"""Names, roles, marks and shared weights after tiling, and the reasons for skipped nodes."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxtile import api
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.graph_writer import Names
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import UsageError
from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.choose import MOST_NODES
from onnxtile.tiling.limits import Limits, TilingPolicy, WindowBounds
from onnxtile.tiling.tile import tile
from tests.tiling.conftest import Bench, Tiled

FOUR = Limits.of(max=4)


def model(text: str, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """Return the model that is written as ONNX text; `w`, `v` ... that it declares without a value are filled with numbers."""
    parsed = parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>\n{text}')
    random = np.random.default_rng(0)
    for info in parsed.graph.value_info:
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        weight = random.standard_normal(dims).astype(np.float32)
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(weight, info.name))
    del parsed.graph.value_info[:]
    return parsed


def require_same(source: onnx.ModelProto, tiled: Tiled) -> None:
    """Assert that both compute the same on random inputs."""
    session = Session(source.SerializeToString())
    random = np.random.default_rng(1)
    feeds: dict[str, Array] = {
        feed.name: random.standard_normal([d for d in feed.shape if isinstance(d, int)]).astype(np.float32)
        for feed in session.inputs
        if "float" in feed.type
    }
    feeds |= {feed.name: np.asarray(True) for feed in session.inputs if "bool" in feed.type}
    expected, got = session.run(feeds), tiled.run(feeds)
    assert list(expected) == list(got)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-5 * (1 + np.abs(array).max()))


def places(tiled: Tiled) -> list[dict[str, int]]:
    """Return the place in the grid of each MatMul, in the order of the graph."""
    return [json.loads(n.metadata_props[keys.TILE])["at"] for n in tiled.nodes if n.op_type == "MatMul"]


def test_products_stand_in_loop_order_with_their_marks(bench: Bench) -> None:
    tiled = bench.tile(bench.case(m=7, k=9, n=5).model(), FOUR)
    (site,) = tiled.result.tiled
    assert places(tiled) == [{"m": m, "k": k, "n": n} for _, m, k, n in site.grid.positions()]
    for node in tiled.nodes:
        mark = json.loads(node.metadata_props[keys.TILE])
        assert {"node": "fc", "op": "Gemm", "m": 7, "k": 9, "n": 5, "grid": [2, 3, 2]}.items() <= mark.items()
        assert node.name is not None and node.name.startswith("fc/")
    first = next(node for node in tiled.nodes if node.op_type == "MatMul")
    assert first.name == first.outputs[0].name == "fc/tile_m0_k0_n0"


def test_the_result_object(bench: Bench) -> None:
    tiled = bench.tile(bench.case(m=7, k=9, n=5).model(), FOUR)
    sizes = {"m": 7, "k": 9, "n": 5, "grid": [2, 3, 2], "matmuls": 12, "tile": [4, 4, 4], "order": "mnk"}
    # Tiles, sums, a Split and Slices of each operand, Concats; a Slice is saved at each turn of the loops.
    nodes = 12 + 4 * 2 + (1 + 12 - 2) + (1 + 12 - 1) + 3
    cost = {"accumulate": "chain", "accumulate_type": None, "nodes": nodes, "choice": None}
    assert tiled.result.to_dict() == {
        "tiled": [{"node": "fc", "module": "", "op": "Gemm", **sizes, **cost}],
        "skipped": [],
    }
    json.dumps(tiled.result.to_dict())


def test_the_same_model_gives_the_same_bytes(bench: Bench) -> None:
    source = bench.case(m=7, k=9, n=5, bias=(5,), alpha=0.5, constants="bc").model()
    first, second = (to_bytes(bench.tile(source, FOUR).model) for _ in range(2))
    assert first == second


def test_output_name_documentation_and_metadata_survive(bench: Bench) -> None:
    source = bench.case(m=7, k=9, n=5, bias=(5,)).model()
    source.ir_version = 10
    source.graph.node[0].doc_string = "the last layer"
    onnx.helper.set_model_props(source, {"origin": "test"})
    entry = source.graph.node[0].metadata_props.add()
    entry.key, entry.value = "scope", "model.fc"
    entry = source.graph.output[0].metadata_props.add()
    entry.key, entry.value = "unit", "logit"
    source.graph.output[0].doc_string = "scores"
    tiled = bench.tile(source, FOUR)
    last, output = tiled.nodes[-1], tiled.model.graph.outputs[0]
    assert output.producer() is last and output.name == "y"
    assert last.doc_string == "the last layer" and last.metadata_props["scope"] == "model.fc"
    assert keys.TILE in last.metadata_props
    assert output.doc_string == "scores" and output.metadata_props["unit"] == "logit"
    assert output.dtype == ir.DataType.FLOAT and output.shape == ir.Shape([7, 5])


def test_a_result_that_is_both_output_and_input_of_the_next_node(bench: Bench) -> None:
    source = model(
        "g (float[5,6] x) => (float[5,7] h, float[5,3] y) <float[6,7] w, float[7,3] v> {"
        "  h = MatMul(x, w)  r = Relu(h)  [second] y = Gemm(r, v) }"
    )
    tiled = bench.tile(source, FOUR)
    assert [site.node for site in tiled.result.tiled] == ["h", "second"]
    require_same(source, tiled)
    assert all(verdict.passed for verdict in tiled.verdicts())


def test_chained_products_are_judged_by_their_names(bench: Bench) -> None:
    source = model(
        "g (float[5,6] x) => (float[5,5] y) <float[6,6] w> {"
        "  h = MatMul(x, w)  t = Transpose<perm = [1, 0]>(h)  y = MatMul(h, t) }"
    )
    tiled = bench.tile(source, FOUR)
    require_same(source, tiled)
    assert len(tiled.verdicts()) == 2 and all(verdict.passed for verdict in tiled.verdicts())


def test_names_that_the_model_uses_are_not_taken(bench: Bench) -> None:
    source = model(
        'g (float[2,8] x) => (float[2,8] y, float[2,8] z) <float[8,8] w, float[1] "fc/b_k0_n0"> {'
        '  [fc] "p" = MatMul(x, w)  [other] "fc/tile_m0_k0_n0" = Relu(x)  ["fc/sum_m0_n0_k1"] z = Neg("fc/tile_m0_k0_n0")'
        '  y = Mul(p, "fc/b_k0_n0") }'
    )
    tiled = bench.tile(source, FOUR)
    require_same(source, tiled)
    names = [node.name for node in tiled.nodes]
    assert len(names) == len(set(names))
    assert "fc/tile_m0_k0_n0_1" in names and "fc/sum_m0_n0_k1_1" in names


def test_nodes_without_a_name_of_their_own_go_by_their_first_output(bench: Bench) -> None:
    source = model(
        "g (float[2,8] x) => (float[2,8] y) <float[8,8] w> {"
        "  h = MatMul(x, w)  [twice] i = MatMul(h, w)  [twice] j = MatMul(i, w)  [once] y = MatMul(j, w) }"
    )
    tiled = bench.tile(source, FOUR)
    assert [site.node for site in tiled.result.tiled] == ["h", "i", "j", "once"]
    for node in source.graph.node:
        node.name = ""  # onnxruntime refuses repeated names
    require_same(source, tiled)
    (verdict,) = tiled.verdicts()
    assert verdict.passed and verdict.also == ("i", "j", "once"), "equal sites are judged once"


def test_a_node_called_as_the_output_of_another(bench: Bench) -> None:
    source = model("g (float[2,8] x) => (float[2,8] y) <float[8,8] w> {  h = MatMul(x, w)  [h] y = MatMul(h, w) }")
    tiled = bench.tile(source, FOUR)
    assert len(tiled.result.tiled) == 2
    require_same(source, tiled)


def test_sites_that_cut_a_weight_the_same_way_share_its_blocks(bench: Bench) -> None:
    source = model(
        "g (float[2,8] x) => (float[2,8] y) <float[8,8] w> {"
        "  h = MatMul(x, w)  i = Gemm(h, w)  y = Gemm<transB = 1>(i, w) }"
    )
    tiled = bench.tile(source, FOUR)
    require_same(source, tiled)
    blocks = [name for name in tiled.model.graph.initializers if "/b_" in name]
    assert len(blocks) == 4 + 4, "the transposed weight has blocks of its own"
    assert "w" not in tiled.model.graph.initializers


def test_a_weight_that_another_node_uses_stays(bench: Bench) -> None:
    source = model("g (float[2,8] x) => (float[8,8] n, float[2,8] y) <float[8,8] w> { n = Neg(w)  y = Gemm(x, w) }")
    tiled = bench.tile(source, FOUR)
    assert "w" in tiled.model.graph.initializers
    require_same(source, tiled)


def test_blocks_are_views_of_the_weight(bench: Bench) -> None:
    tiled = bench.tile(bench.case(k=40, n=50, constants="b").model(), FOUR)
    blocks = [v.const_value for name, v in tiled.model.graph.initializers.items() if "/b_k" in name]
    assert len(blocks) == 10 * 13
    arrays = [block.numpy() for block in blocks if block is not None]
    assert all(array.base is not None and array.base is arrays[0].base for array in arrays)


def test_constants_that_operators_compute_are_folded_and_removed(bench: Bench) -> None:
    source = model(
        "g (float[2,8] x) => (float[2,6] y) <float[6,8] w, float[8,8] v> {"
        "  n = Neg(w)  t = Transpose<perm = [1, 0]>(n)  folded = MatMul(v, t)  unused_too = Relu(folded)"
        "  y = MatMul(x, folded) }"
    )
    del source.graph.node[3]
    tiled = bench.tile(source, FOUR)
    require_same(source, tiled)
    assert {node.op_type for node in tiled.nodes} == {"Slice", "MatMul", "Add", "Concat"}
    assert {"w", "v"}.isdisjoint(tiled.model.graph.initializers)
    assert [site.node for site in tiled.result.tiled] == ["y"]
    assert [(skip.node, "constant operand" in skip.reason) for skip in tiled.result.skipped] == [("folded", True)]


def test_alpha_goes_into_the_constant_operand(bench: Bench) -> None:
    constant, computed = (
        bench.judge(bench.case(m=7, k=9, n=5, alpha=0.3, constants=constants), FOUR) for constants in ("b", "")
    )
    assert constant.count("Mul") == 0 and computed.count("Mul") == 1


def test_alpha_stays_outside_where_the_weight_would_lose_digits(bench: Bench) -> None:
    case = bench.case(m=7, k=9, n=5, alpha=2.0**-13, constants="b", dtype=np.float16)
    assert bench.judge(case, FOUR).count("Mul") == 1


def test_a_bias_that_beta_switches_off_is_gone(bench: Bench) -> None:
    tiled = bench.judge(bench.case(m=7, k=9, n=5, bias=(7, 5), beta=0.0, constants="c"), FOUR)
    assert tiled.count("Add") == 2 * 2 * 2 and tiled.count("Mul") == 0, "the sums alone"
    assert "c" not in tiled.model.graph.initializers


def test_limits_on_one_axis_cut_only_that_axis(bench: Bench) -> None:
    case = bench.case(m=7, k=9, n=5)
    for limits, op, grid in (
        (Limits(m=4), "Concat", [2, 1, 1]),
        (Limits(k=4), "Add", [1, 3, 1]),
        (Limits(n=4), "Concat", [1, 1, 2]),
    ):
        tiled = bench.judge(case, limits)
        assert tiled.result.to_dict()["tiled"][0]["grid"] == grid
        assert tiled.nodes[-1].op_type == op
        assert tiled.count("Add") + tiled.count("Concat") == max(grid) - 1


@pytest.mark.parametrize("ir_version", [3, 4, 9, 10, 13])
def test_ir_versions(bench: Bench, ir_version: int) -> None:
    source = model("g (float[2,8] x) => (float[2,8] y) <float[8,8] w> { y = Gemm(x, w) }", 11, ir_version)
    if ir_version < 4:
        source.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [8, 8]))
    tiled = bench.tile(source, FOUR)
    assert tiled.model.ir_version == max(10, ir_version)
    assert [value.name for value in tiled.model.graph.inputs] == ["x"]
    require_same(source, tiled)


def test_a_default_that_the_user_may_override_is_not_cut_beforehand(bench: Bench) -> None:
    source = model("g (float[2,8] x) => (float[2,8] y) <float[8,8] w> { y = Gemm(x, w) }")
    source.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [8, 8]))
    tiled = bench.tile(source, FOUR)
    assert "w" in tiled.model.graph.initializers and tiled.count("Split") == 1
    require_same(source, tiled)
    assert tiled.verdicts()[0].passed


def test_bodies_of_if_are_tiled_in_their_place(bench: Bench) -> None:
    source = model(
        "g (float[2,8] x, bool cond) => (float[2,8] y) <float[8,8] w> {"
        "  y = If(cond) <then_branch = t () => (float[2,8] p) { p = MatMul(x, w) },"
        "                else_branch = e () => (float[2,8] q) { r = Neg(x)  q = Gemm(r, w) }> }"
    )
    tiled = bench.tile(source, FOUR)
    assert [site.node for site in tiled.result.tiled] == ["p", "q"] and tiled.count("MatMul") == 0
    assert "w" not in tiled.model.graph.initializers
    require_same(source, tiled)
    assert all(verdict.passed for verdict in tiled.verdicts())


REASONS = {
    "unknown": ("(float[?,8] x) => (float[r,s] y) <float[8,8] w> { y = MatMul(x, w) }", "axis 0 of 'x' is not known"),
    "symbolic": ("(float[batch,8] x) => (float[r,s] y) <float[8,8] w> { y = Gemm(x, w) }", "--dim batch=N"),
    "computed size": (
        "(float[batch,8] x) => (float[r,s] y) <float[8,8] w> { d = Concat<axis = 0>(x, x)  y = MatMul(d, w) }",
        "--dim batch=N",
    ),
    "symbolic sequence": (
        "(float[batch,seq,8] x) => (float[b,s,8] y) <float[8,8] w> { y = MatMul(x, w) }",
        "axis 1 of 'x' has the size 'seq': bind it with --dim seq=N",
    ),
    "symbolic columns": (
        "(float[batch,4,8] x, float[batch,8,seq] z) => (float[b,4,s] y) { y = MatMul(x, z) }",
        "axis 2 of 'z' has the size 'seq': bind it with --dim seq=N",
    ),
    "symbolic columns of a transposed operand": (
        "(float[4,8] x, float[wide,8] z) => (float[4,s] y) { y = Gemm<transB = 1>(x, z) }",
        "axis 0 of 'z' has the size 'wide': bind it with --dim wide=N",
    ),
    "symbolic sum": (
        "(float[4,deep] x, float[deep,8] z) => (float[4,8] y) { y = MatMul(x, z) }",
        "axis 1 of 'x' has the size 'deep': bind it with --dim deep=N",
    ),
    "symbolic sum known by one operand": (
        "(float[4,?] x, float[deep,8] z) => (float[4,8] y) { y = MatMul(x, z) }",
        "axis 0 of 'z' has the size 'deep': bind it with --dim deep=N",
    ),
    "unknown beside a symbol": (
        "(float[batch,?,8] x) => (float[b,s,8] y) <float[8,8] w> { y = MatMul(x, w) }",
        "the size of axis 1 of 'x' is not known; it may be once all is bound with --shape x=NxNx8",
    ),
    "unknown beside an input whose sizes have names": (
        "(float[?,8] x, float[batch,8] z) => (float[s,8] y, float[b,8] u) <float[8,8] w> { y = MatMul(x, w) u = Relu(z) }",
        "the size of axis 0 of 'x' is not known; it may be once all is bound with --dim batch=N --shape x=Nx8",
    ),
    "within, in batches": (
        "(float[batch,2,4] x) => (float[b,2,3] y) <float[4,3] w> { y = MatMul(x, w) }",
        "within the limits",
    ),
    "empty batch": ("(float[0,2,8] x) => (float[0,2,8] y) <float[8,8] w> { y = MatMul(x, w) }", "without elements"),
    "within": ("(float[2,4] x) => (float[r,s] y) <float[4,3] w> { y = MatMul(x, w) }", "within the limits"),
    "empty": ("(float[0,8] x) => (float[r,s] y) <float[8,8] w> { y = MatMul(x, w) }", "without elements"),
    "unknown bias": (
        "(float[2,8] x, float[b,8] c) => (float[r,s] y) <float[8,8] w> { y = Gemm(x, w, c) }",
        "--dim b=N",
    ),
    "tiny alpha": (
        "(float16[2,8] x, float16[8,8] w) => (float16[r,s] y) { y = Gemm<alpha = 1e-6>(x, w) }",
        "alpha = 1e-06 is out of the range of float16",
    ),
    "integer alpha": (
        "(int32[2,8] x, int32[8,8] w) => (int32[r,s] y) { y = Gemm<alpha = 0.5>(x, w) }",
        "alpha = 0.5 of an integer",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_what_is_skipped_says_why_and_is_left_as_it_was(bench: Bench, case: str) -> None:
    graph, reason = REASONS[case]
    source = load(model(f"g {graph}"))
    before = to_bytes(source)
    result = tile(source, FOUR, resolve(source), Constants(source))
    assert not result.tiled
    assert reason in result.skipped[0].reason and result.skipped[0].node == "y"
    assert to_bytes(source) == before, "nothing is written where nothing is tiled"
    assert bench.tile(source, FOUR).result == result


def test_a_bias_that_is_itself_a_product_of_constants(bench: Bench) -> None:
    source = model(
        "g (float[2,8] x) => (float[2,8] y) <float[8,8] w, float[1,8] v> {  bias = MatMul(v, w)  y = Gemm(x, w, bias) }"
    )
    tiled = bench.tile(source, FOUR)
    assert [site.node for site in tiled.result.tiled] == ["bias", "y"]
    require_same(source, tiled)
    assert len(tiled.verdicts()) == 2 and all(verdict.passed for verdict in tiled.verdicts())


def test_an_unknown_rank_and_an_old_opset_are_skipped(bench: Bench) -> None:
    source = model(
        "g (float[2,8] x, int64[n] s) => (float[r,8] y) <float[8,8] w> { r = Reshape(x, s)  y = MatMul(r, w) }"
    )
    (skip,) = bench.tile(source, FOUR).result.skipped
    assert "the shape of 'r' is not known" in skip.reason
    old = load(bench.case(m=7, opset=7, bias=(4,)).model())
    old.graph.opset_imports[""] = 6
    result = tile(old, FOUR, resolve(old), Constants(old))
    assert not result.tiled and "opset 6 is too old" in result.skipped[0].reason


def test_products_inside_local_functions_are_tiled_or_listed(bench: Bench) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2,8] x, float[8,8] w) => (float[2,8] y) { [call] y = local.Linear(x, w) }
    <domain: "local", opset_import: ["" : 17]> Linear (a, b) => (c) { [inner] c = MatMul(a, b) }"""
    assert [site.node for site in bench.tile(parser.parse_model(text), FOUR).result.tiled] == ["Linear/inner"]
    result = bench.tile(parser.parse_model(text.replace("float[2,8] x", "float[n,8] x")), Limits.of(m=2)).result
    assert [(s.node, s.reason) for s in result.skipped] == [
        ("Linear/inner", "axis 0 of 'a' has the size 'n': bind it with --dim n=N")
    ]


def test_an_integer_gemm_is_added_up_by_add(bench: Bench) -> None:
    case = bench.case(m=7, k=9, n=5, bias=(7, 1), dtype=np.int32, constants="b")
    tiled = bench.judge(case, FOUR)
    assert tiled.count("Sum") == 0 and tiled.count("Add") == 2 * 2 * 2 + 1
    assert tiled.verdicts()[0].passed


def test_a_tiling_of_too_many_nodes_is_refused_before_anything_changes() -> None:
    source = load(model("g (float[200,100] x) => (float[200,80] y) <float[100,80] w> { y = MatMul(x, w) }"))
    before = to_bytes(source)
    limits = Limits(m=1, k=1, n=1)
    with pytest.raises(UsageError, match=r"4,800,202 nodes.*'y'; the most is 250,000") as refusal:
        tile(source, limits, resolve(source), Constants(source))
    assert refusal.value.hint == (
        "raise M of --max (now 1), which cuts 200 into 200 there; --max 4800202nodes allows them"
    )
    assert to_bytes(source) == before
    assert MOST_NODES == 250_000


def test_more_nodes_are_written_where_the_options_allow_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtile.tiling.tile.MOST_NODES", 3)
    source = model("g (float[8,8] x) => (float[8,8] y) <float[8,8] w> { y = MatMul(x, w) }")
    with pytest.raises(UsageError, match="the most is 3") as refusal:
        bench.tile(source, Limits(m=2))
    allowed = re.findall(r"--max (\d+)nodes allows them", str(refusal.value.hint))
    assert bench.tile(source, Limits(m=2), TilingPolicy(nodes_at_most=int(*allowed))).count("MatMul") == 4


def test_the_number_of_nodes_is_foreseen(bench: Bench) -> None:
    from onnxtile.tiling.write import most_nodes

    bounds = (FOUR, Limits(m=4), Limits(k=4), Limits(n=4))
    factors: Any = ((1.0, 1.0, None), (0.5, 0.5, (5,)), (0.5, 0.0, (5,)), (1.0, 2.0, (7, 1)))
    for (number, constants), (i, limits), (j, (alpha, beta, bias)) in product(
        enumerate(("", "a", "b", "ab", "c", "abc")), enumerate(bounds), enumerate(factors)
    ):
        turned = (number + i // 2 + j // 2) % 2 == 1
        if (number + i + j) % 2 == 0:  # each bound, each factor and each turn with all constants
            case = bench.case(
                m=7, k=9, n=5, constants=constants, alpha=alpha, beta=beta, bias=bias, trans_a=turned, trans_b=turned
            )
            tiled = bench.tile(case.model(), limits)
            (site,) = tiled.result.tiled
            folded = alpha != 1.0 and ("a" in constants or "b" in constants)
            assert len(tiled.nodes) == most_nodes(site.contraction, site.grid) - folded


# Names for what tile writes: free ones, found without a search from the start.


_MODEL = "g (float[2] x) => (float[2] y) { a = Exp(x) a_2 = Exp(a) y = Exp(a_2) }"


def _names() -> Names:
    text = f'<ir_version: 8, opset_import: ["": 17]> {_MODEL}'
    return Names(ir.from_proto(onnx.parser.parse_model(text)))


def test_a_name_gets_the_first_free_number() -> None:
    names = _names()
    assert [names.fresh(wanted) for wanted in ("a", "a", "b", "b", "a_1")] == ["a_1", "a_3", "b", "b_1", "a_1_1"]


def test_each_further_name_takes_a_few_looks() -> None:
    class CountedSet(set[str]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            CountedSet.looks += 1
            return super().__contains__(name)

    names = _names()
    names._taken = CountedSet()
    assert len({names.fresh("tile") for _ in range(1_000)}) == 1_000
    assert CountedSet.looks <= 2_000


# What tile has no rule for is named.


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ('[one] y = Einsum<equation = "ij,jk->ik">(a, b)', "tile does not cut Einsum"),
        ("[one] y = com.microsoft.FusedMatMul(a, b)", "tile does not cut FusedMatMul"),
    ],
)
def test_it_is_listed_with_the_reason(bench: Bench, node: str, reason: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[8,8] a, float[8,8] b) => (float[8,8] y) {{ {node} }}"""
    model: onnx.ModelProto = parser.parse_model(text)
    (skip,) = bench.tile(model, Limits.of(max=4)).result.skipped
    assert (skip.node, skip.reason) == ("one", reason)


@pytest.mark.parametrize(
    ("node", "ends"),
    [
        ("MatMul(a, w)", "float[8,8] a"),
        ("Gemm(a, a, w)", "float[8,8] a"),
        ("Conv(a, w)", "float[1,8,4,4] a"),
    ],
)
def test_operands_of_different_element_types_are_not_cut(node: str, ends: str) -> None:
    shape = "8,8,1,1" if "Conv" in node else "8,8"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g ({ends}, string[{shape}] w) => (float y) {{ [one] y = {node} }}"""
    result = api.tile(parser.parse_model(text), Limits.of(max=4, window=WindowBounds()), verify=False)
    assert [skip["reason"] for skip in result.to_dict()["skipped"]] == ["'w' has another element type than float"]


@pytest.mark.parametrize(("rows", "reason"), [(2**63 - 1, "more than any machine"), (2**50, "would write")])
def test_a_product_of_enormous_size_is_refused_at_once(rows: int, reason: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{rows},4] a, float[4,3] b) => (float[{rows},3] y) {{ y = MatMul(a, b) }}"""
    try:
        said = str(
            [skip["reason"] for skip in api.tile(parser.parse_model(text), max=3, verify=False).to_dict()["skipped"]]
        )
    except UsageError as error:
        said = str(error)
    assert reason in said
