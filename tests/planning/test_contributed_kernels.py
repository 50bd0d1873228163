"""Models as onnxruntime-genai's builder writes them: operators that only onnxruntime knows, in opsets that ONNX does not pair them with."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtile
from onnxtile import api
from onnxtile.report.plan_tables import for_plan
from onnxtile.report.table import plain
from onnxtile.system.errors import CheckFailed, ModelWarning, NoKernel
from tests import build
from tests import contributed_models as models

HEADS, GROUPS, HEAD, WIDTH = 4, 2, 16, 32
SIZES = {"batch": 1, "length": 4, "total": 12, "past": 8}


def _layer() -> onnx.ModelProto:
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((generator.standard_normal(shape) / 8).astype(np.float32), name)

    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["h", "g"], ["n"], axis=-1, epsilon=1e-5, stash_type=1),
        *(helper.make_node("MatMul", ["n", f"w{one}"], [one]) for one in "qkv"),
        helper.make_node("ReduceSum", ["mask", "one"], ["s"], keepdims=1),
        helper.make_node("Sub", ["s", "one"], ["s1"]),
        helper.make_node("Cast", ["s1"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "last"], ["all"], axis=0),
        helper.make_node("Cast", ["all"], ["total_length"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "seqlens", "total_length", "cos", "sin"],
            ["a", "present_k", "present_v"], domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1, name="gqa",
        ),
        helper.make_node("MatMul", ["a", "wo"], ["o"]),
        helper.make_node(
            "SkipSimplifiedLayerNormalization", ["h", "o", "g"], ["y", "", "", "sum"], domain="com.microsoft", epsilon=1e-5
        ),
    ]  # fmt: skip
    held = [
        weight("g", WIDTH), weight("wq", WIDTH, HEADS * HEAD), weight("wk", WIDTH, GROUPS * HEAD),
        weight("wv", WIDTH, GROUPS * HEAD), weight("wo", HEADS * HEAD, WIDTH), weight("cos", 64, HEAD // 2), weight("sin", 64, HEAD // 2),
        numpy_helper.from_array(np.asarray([1], np.int64), "one"), numpy_helper.from_array(np.asarray(1, np.int64), "last"),
    ]  # fmt: skip

    def info(name: str, *dims: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    given = [
        info("h", "batch", "length", WIDTH),
        info("mask", "batch", "total", kind=TensorProto.INT64),
        *(info(f"past_{one}", "batch", GROUPS, "past", HEAD) for one in "kv"),
    ]
    made = [
        info("y", "batch", "length", WIDTH),
        *(info(f"present_{one}", "batch", GROUPS, "total", HEAD) for one in "kv"),
    ]
    return build.model(nodes, given, made, held, opset=14, com_microsoft=1)


def test_a_layer_with_a_cache_is_planned_and_run() -> None:
    """onnxruntime infers the length of the past for the present keys, and would refuse the memory that the run needs."""
    with pytest.warns(
        ModelWarning, match="ONNX has no operator SimplifiedLayerNormalization in opset 14; onnxruntime takes it"
    ):
        planned = api.plan(_layer(), dims=SIZES)
    shapes = {buffer.name: buffer.shape for buffer in planned.plan.tensors}
    assert shapes["present_k"] == (1, GROUPS, 12, HEAD)
    assert planned.plan.unplanned == ()
    assert planned.verdict is not None and planned.verdict.equal


def test_grouped_attention_is_counted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        result = api.inspect(_layer(), dims=SIZES).to_dict()
    layer = next(one for one in result["nodes"] if one["node"] == "gqa")
    # 4 queries of 4 heads against 12 keys of 16 elements, then as many products with the values.
    assert layer["macs"] == 2 * 4 * 4 * 12 * 16


def _sliding(window: int) -> onnx.ModelProto:
    """Return attention whose cache of keys slides in a window."""
    given = {
        "qkv": [1, 4, 4 * HEAD],
        **{name: [1, 1, 33, HEAD] for name in ("keys", "values")},
        "mask": (TensorProto.INT64, [1, "all"]),
    }
    held = {"one": np.asarray([1]), "axis": np.asarray(1)}
    nodes = [
        helper.make_node("Shape", ["mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "axis"], ["all"]),
        helper.make_node("Cast", ["all"], ["total"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["mask", "one"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", ["qkv", "", "", "keys", "values", "lengths", "total"], ["y", "k", "v"],
            domain="com.microsoft", num_heads=2, kv_num_heads=1, sliding_window_cache=1, local_window_size=window,
        ),
    ]  # fmt: skip
    made = {"y": [1, 4, 2 * HEAD], **{name: [1, 1, 33, HEAD] for name in "kv"}}
    return build.model(nodes, given, made, held, com_microsoft=1)


def test_a_full_cache_that_slides_is_planned_and_run() -> None:
    planned = api.plan(_sliding(33), dims={"all": 41})
    assert planned.verdict is not None and planned.verdict.equal


def test_bytes_that_a_kernel_leaves_unwritten_are_the_reason_of_the_refusal() -> None:
    """With 13 tokens a cache of 33 is filled in part; the rest is as the memory was."""
    with pytest.raises(CheckFailed, match="with these sizes GroupQueryAttention leaves some of its bytes unwritten"):
        api.plan(_sliding(33), dims={"all": 13})
    assert api.plan(_sliding(33), dims={"all": 13}, verify=False).plan.unplanned == ()


# Models with operators that onnxruntime's CPU has no kernel for: planned and checked, and said not to have run.


Make = Callable[[], onnx.ModelProto]

ON_GPUS = {
    "PackedMultiHeadAttention": models.packed_heads,
    "PagedAttention": models.paged_attention,
    "GroupNorm": models.group_norm,
}


@pytest.mark.parametrize(("operator", "make"), ON_GPUS.items(), ids=ON_GPUS)
def test_it_is_planned_and_checked_and_not_run(operator: str, make: Make, tmp_path: Path) -> None:
    found = onnxtile.plan(make())
    reason = f"onnxruntime's CPU has no kernel for {operator}"
    assert (found.verdict, found.not_run) == (None, reason)
    assert found.plan.unplanned == ()
    assert found.plan.optimal
    assert found.summary.endswith(f"checked, not run: {reason}")
    assert found.to_dict()["not_run"] == reason
    assert onnxtile.check_plan(make(), found.plan).sound
    found.save(tmp_path / "planned.onnx")
    assert onnxtile.check_plan(tmp_path / "planned.onnx", tmp_path / "planned.onnx").sound


def test_the_report_says_so() -> None:
    rows = [row for part in for_plan(onnxtile.plan(models.packed_heads()).to_dict()) for row in plain(part)]
    reason = "onnxruntime's CPU has no kernel for PackedMultiHeadAttention"
    assert any(f"checked, not run inside the arena: {reason}" in row for row in rows)


def test_a_plan_that_was_run_says_nothing_of_it() -> None:
    assert "not_run" not in onnxtile.plan(models.experts()).to_dict()


def test_results_have_the_shapes_of_the_operators_page() -> None:
    sizes = {row.name: row.shape for row in onnxtile.plan(models.paged_attention()).plan.buffers}
    assert sizes == {"a": (10, 32), "y": (10, 32), "keys1": (8, 16, 2, 8), "values1": (8, 16, 2, 8)}
    assert {row.name: row.shape for row in onnxtile.plan(models.packed_heads()).plan.buffers}["a"] == (10, 32)


def test_a_length_that_data_decide_is_unplanned_unless_bounded() -> None:
    found = onnxtile.plan(models.packed_attention())
    assert {row.name for row in found.plan.unplanned} == {"p", "a"}
    assert found.not_run == "onnxruntime's CPU has no kernel for RemovePadding"
    sizes = {row.name: row.shape for row in onnxtile.plan(models.packed_attention(), dims={"p": ":12"}).plan.buffers}
    assert (sizes["p"], sizes["a"], sizes["y"]) == ((12, 32), (12, 32), (2, 6, 32))


def test_over_a_range_of_sizes() -> None:
    found = onnxtile.plan(models.packed_heads("tokens"), dims={"tokens": (1, 10)})
    assert found.not_run == "onnxruntime's CPU has no kernel for PackedMultiHeadAttention"
    assert found.plan.arena_size_at({"tokens": 1}) < found.plan.arena_size_at({"tokens": 10})


@pytest.mark.parametrize("verb", ["fuse", "tile"])
def test_a_rewrite_says_that_it_needs_a_run(verb: str) -> None:
    options = {"max": 16} if verb == "tile" else {}
    with pytest.raises(NoKernel, match="onnxruntime's CPU has no kernel for PackedMultiHeadAttention") as error:
        getattr(onnxtile, verb)(models.packed_heads(), **options)
    assert error.value.hint == "add verify=False to go on without a run"
    found = getattr(onnxtile, verb)(models.packed_heads(), verify=False, **options)
    assert onnxtile.plan(found.model).not_run is not None


@pytest.mark.parametrize(
    ("make", "macs"),
    [
        (models.experts, {"MatMul": 768, "com.microsoft::MoE": 6 * 2 * 2 * 64 * 32}),
        (lambda: models.experts(gated=True, k=1), {"MatMul": 768, "com.microsoft::MoE": 6 * 3 * 64 * 32}),
        (lambda: models.experts(bits=4), {"MatMul": 768, "com.microsoft::QMoE": 6 * 2 * 2 * 64 * 32}),
        (lambda: models.experts(bits=8), {"MatMul": 768, "com.microsoft::QMoE": 6 * 2 * 2 * 64 * 32}),
        (models.quantised_attention, {"com.microsoft::QAttention": 6 * 32 * 96 + 6 * 6 * 64}),
    ],
    ids=["MoE", "gated", "QMoE4", "QMoE8", "QAttention"],
)
def test_their_work_is_counted(make: Make, macs: dict[str, int]) -> None:
    found = onnxtile.inspect(make()).to_dict()["macs"]
    assert (found["by_operator"], found["unknown"]) == (macs, [])
    assert "?" not in found["by_operand_types"]


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_experts_are_planned_and_run(bits: int) -> None:
    found = onnxtile.plan(models.experts(bits))
    assert found.verdict is not None and found.verdict.equal
    assert found.plan.optimal


UNKNOWN = {
    "my.ops.Magic": '<ir_version: 9, opset_import: ["": 18, "my.ops": 1]>'
    "g (float[4] x) => (float[4] y) <float[4] a> { a = my.ops.Magic(x) y = Relu(a) }",
    "opset 99": '<ir_version: 9, opset_import: ["": 99]> g (float[4] x) => (float[4] y) { y = Relu(x) }',
}


@pytest.mark.parametrize("missing", UNKNOWN)
def test_what_onnxruntime_has_never_heard_of_is_planned_and_named_in_one_short_line(missing: str) -> None:
    model = onnx.parser.parse_model(UNKNOWN[missing])
    assert missing in str(onnxtile.plan(model).not_run)
    with pytest.raises(NoKernel, match=rf"^onnxruntime's CPU has no kernels? for {missing}[^:]*$") as error:
        onnxtile.fuse(model)
    assert error.value.hint == "add verify=False to go on without a run"
    assert onnxtile.fuse(model, verify=False).fused == 0


def test_an_attention_whose_bias_is_an_input_runs_in_the_arena() -> None:
    """Of an open length of the bias onnxruntime infers a result of no columns."""
    text = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[2, 3, 8] x, float[8, 24] w, float[24] b) => (float[2, 3, 8] y) {
      a = com.microsoft.Attention <num_heads = 2> (x, w, b) y = Relu(a)
    }"""
    verdict = onnxtile.plan(onnx.parser.parse_model(text)).verdict
    assert verdict is not None and verdict.equal
