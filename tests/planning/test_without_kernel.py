"""Models with operators that onnxruntime's CPU has no kernel for: planned and checked, and said not to have run."""

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest
from rich.console import Console

import onnxtile
from onnxtile.report import tables
from onnxtile.system.errors import NoKernel
from tests import contributed_models as models

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
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        for part in tables.for_plan(onnxtile.plan(models.packed_heads()).to_dict()):
            console.print(tables.plain(part))
    assert (
        "checked, not run inside the arena: onnxruntime's CPU has no kernel for PackedMultiHeadAttention"
        in capture.get()
    )


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
    assert found.verdict is not None
    assert found.verdict.equal
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
