"""Pins, places and kept tensors of a model: in the plan, its metadata, its check and its run."""

from dataclasses import replace
from itertools import product
from typing import Any

import onnx
import onnx.parser
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import onnxtile
from onnxtile.declare.layout_rules import FixedRules
from onnxtile.declare.plan_document import PlannedBuffer
from onnxtile.planning.offsets.effort import Effort
from onnxtile.planning.offsets.problem import PinOverlap
from onnxtile.planning.planners import planners
from onnxtile.planning.result import PlanResult
from onnxtile.report.format import RenderOptions
from onnxtile.report.formats.pictures import content
from onnxtile.report.plan_tables import for_plan
from onnxtile.report.table import plain
from onnxtile.system.errors import Infeasible, UsageError
from tests import build
from tests.draws import draws
from tests.planning.conftest import Case

BLOCK = """
g (float[8,16] x) => (float[8,16] y) <int64[2] s = {16, 8}, int64[2] t = {8, 16}> {
  a = Relu(x)
  b = Sigmoid(a)
  c = Reshape(b, s)
  d = Tanh(c)
  e = Reshape(d, t)
  f = Concat<axis=0>(e, a)
  h, i = Split<axis=0, num_outputs=2>(f)
  j = Mul(h, i)
  y = Add(j, a)
}"""
TENSORS = tuple("abcdefhijy")


def model(text: str = BLOCK) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}')


def marked(**marks: dict[str, str]) -> onnx.ModelProto:
    """Return the model with metadata on its tensors: by tensor, the texts of `pin`, `place_in` and `keep`."""
    found = onnx.shape_inference.infer_shapes(model())
    for info in (*found.graph.value_info, *found.graph.output):
        for key, text in marks.get(info.name, {}).items():
            info.metadata_props.add(key=f"pkg.onnxtile.{key}", value=text)
    return found


def rows(plan: PlanResult) -> dict[str, PlannedBuffer]:
    return {row.name: row for row in plan.buffers}


def planned(source: onnx.ModelProto | None = None, **options: Any) -> PlanResult:
    """Return a plan that was checked, and run inside its arena."""
    found = onnxtile.plan(source or model(), **build.with_layout(options))
    assert found.verdict is not None and found.verdict.equal
    return found.plan


def test_a_pinned_tensor_has_its_offset_and_the_plan_is_the_smallest_with_it() -> None:
    plan = planned(pins={"b": 4096})
    assert rows(plan)["b"].offset == rows(plan)["c"].offset == 4096
    assert (plan.bound, plan.optimal, plan.arena_size) == ("pin", True, 4608)
    assert plan.to_dict()["pins"] == {"b": 4096}


def test_an_offset_may_be_a_text() -> None:
    assert rows(planned(pins={"b": "4KiB"}))["b"].offset == 4096


def test_a_plan_without_pins_names_none() -> None:
    assert not {"pins", "places", "keeps"} & planned().to_dict().keys()


def test_a_placed_tensor_is_in_its_memory() -> None:
    plan = planned(places={"b": "dram", "a": "sram"}, capacity={"sram": 4096, "dram": 8192})
    arenas = {name: row.arena for name, row in rows(plan).items()}
    assert (arenas["a"], arenas["b"], arenas["c"]) == ("sram", "dram", "dram")


def test_two_memories_never_share_a_tensor() -> None:
    """Tensors of two devices never share bytes, however small both are."""
    plan = planned(places={name: "ab"[i % 2] for i, name in enumerate("abdfhijy")}, capacity={"a": 8192, "b": 8192})
    found = rows(plan)
    assert {name: found[name].arena for name in "abdfhijy"} == {n: "ab"[i % 2] for i, n in enumerate("abdfhijy")}
    for row in plan.buffers:
        assert row.alias is None or found[row.alias].arena == row.arena


def test_a_kept_tensor_shares_bytes_with_nothing() -> None:
    plan = planned(keep=("b", "f"))
    last = max(plan.steps)
    for name in ("b", "f"):
        kept = rows(plan)[name]
        assert (kept.first, kept.last, kept.alias) == (0, last, None)
        others = [r for r in plan.buffers if r.name != name]
        assert all(r.alias != name for r in others)
        assert all(r.offset >= kept.offset + kept.size or r.offset + r.size <= kept.offset for r in others)


@pytest.mark.parametrize("planner", list(planners()))
@pytest.mark.parametrize("order", ["model", "any"])
def test_every_planner_and_order_honours_them(planner: str, order: str) -> None:
    plan = planned(pins={"a": 1024, "y": 0}, keep=("d",), search=planner, order=order)
    found = rows(plan)
    assert (found["a"].offset, found["y"].offset) == (1024, 0)
    assert (found["d"].first, found["d"].last) == (0, max(plan.steps))


def test_an_input_inside_the_arena_can_be_pinned_and_kept() -> None:
    plan = planned(pins={"x": 512}, keep=("x",), io="overwrite")
    assert rows(plan)["x"].offset == 512
    assert rows(plan)["x"].last == max(plan.steps)


def test_a_shared_buffer_is_pinned_as_a_whole() -> None:
    """Two operands of a Concat, one after the other; the second is pinned, so its whole starts before it."""
    text = """g (float[1,16] x) => (float[1,16] y) {
      a = Relu(x)  b = Sigmoid(x)  c = Concat<axis=0>(a, b)  d = ReduceSum<keepdims=1>(c)  y = Mul(x, d)
    }"""
    plan = planned(model(text), pins={"b": 640})
    found = rows(plan)
    assert (found["b"].offset, found["a"].offset, found["c"].offset) == (640, 576, 576)
    # Without room before it, it is copied into its whole.
    assert rows(planned(model(text), pins={"b": 0}))["c"].offset != 0


def test_a_result_is_not_written_over_an_operand_with_another_pin() -> None:
    plan = planned(pins={"b": 0, "d": 1024})
    found = rows(plan)
    assert (found["b"].offset, found["d"].offset) == (0, 1024)


def test_tensors_pinned_to_the_same_bytes_at_different_times() -> None:
    text = "g (float[64] x) => (float[64] y) { a = Softmax(x)  b = Hardmax(a)  c = Hardmax(b)  y = Relu(c) }"
    found = rows(planned(model(text), pins={"a": 256, "c": 256}))
    assert found["a"].offset == found["c"].offset == 256


def test_another_order_is_taken_where_the_pins_need_it() -> None:
    """In the order of the file both branches are live together; `auto` runs one after the other."""
    text = """g (float[64] x) => (float[64] y) {
      a = Hardmax(x)  b = Softmax(x)  c = ReduceSum<keepdims=1>(a)  d = ReduceSum<keepdims=1>(b)  e = Add(c, d)  y = Mul(x, e)
    }"""
    with pytest.raises(PinOverlap, match=r"'a' at 0 \(256 bytes\) and 'b' at 0 \(256 bytes\)"):
        onnxtile.plan(model(text), layout={"pins": {"a": 0, "b": 0}}, order="model")
    found = rows(planned(model(text), pins={"a": 0, "b": 0}))
    assert found["a"].offset == found["b"].offset == 0


def test_a_workspace_can_be_pinned_and_placed() -> None:
    text = "g (float[64] x) => (float[64] y) { [soft] a = Softmax(x)  y = Relu(a) }"
    plan = planned(model(text), workspaces={"Softmax": "128"}, pins={"soft (workspace)": 1024})
    assert rows(plan)["soft (workspace)"].offset == 1024


def test_metadata_of_the_tensors_says_the_same() -> None:
    source = marked(b={"pin": "4096", "keep": "true"}, y={"place_in": "dram"}, a={"keep": "false"})
    plan = planned(source, capacity={"sram": 8192, "dram": 8192}, places={"b": "sram"})
    found = rows(plan)
    assert (found["b"].offset, found["b"].arena, found["y"].arena) == (4096, "sram", "dram")
    assert (plan.pins, plan.places, plan.keeps) == ({"b": 4096}, {"y": "dram", "b": "sram"}, ("b",))


def test_an_option_replaces_the_metadata() -> None:
    assert rows(planned(marked(b={"pin": "4096"}), pins={"b": 1024}))["b"].offset == 1024


def test_pins_hold_at_all_sizes_of_a_range() -> None:
    text = "g (float[N,16] x) => (float[N,16] y) { a = Relu(x)  b = Hardmax(a)  c = Hardmax(b)  y = Add(a, c) }"
    plan = planned(model(text), pins={"b": 8192}, keep=("a",), dims={"N": (1, 8)})
    assert rows(plan)["b"].offset == 8192
    assert plan.formulas is not None and plan.formulas[0].scaled is None
    assert plan.arena_size_at({"N": 2}) == 8192 + 128


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"pins": {"a": 0, "b": 256}},
            "the pins of two tensors that are live together overlap: 'a' at 0 (512 bytes) and",
            None,
        ),
        ({"pins": {"b": 65}}, "the pin 65 of 'b' is not aligned to 64", "pin it to 128"),
        ({"pins": {"b": 64}, "capacity": 512}, "'b' pinned at 64 ends at 576, beyond the capacity of 512 bytes", None),
        ({"pins": {"bb": 0}}, "unknown tensor 'bb'", "did you mean 'b'?"),
        ({"pins": {"b": 0, "c": 64}}, "'b' and 'c' are views of one another, and cannot be at 0 and 64", None),
        ({"places": {"b": "m", "c": "n"}, "capacity": {"m": 4096, "n": 4096}}, "cannot be at m and n", None),
        ({"places": {"b": "flash"}}, "the place 'flash' of 'b' has no capacity", "choose arena"),
        (
            {"places": {"b": "sran"}, "capacity": {"sram": 9999}},
            "the place 'sran' of 'b' has no capacity",
            "did you mean 'sram'?",
        ),
        (
            {"pins": {"b": 0}, "capacity": {"m": 4096, "n": 4096}},
            "the pin of 'b' is an offset in one of several memories",
            "choose m, n",
        ),
        ({"keep": ("q",)}, "unknown tensor 'q'", None),
        ({"keep": ("s",)}, "'s' has no address in an arena: a constant", None),
        ({"keep": ("x",)}, "'x' has no address in an arena: a graph input", "add io='inside'"),
        ({"pins": {"b": -64}}, "this is not an offset in bytes", "write 0, 4096 or 4KiB"),
        ({"pins": {"b": "far"}}, "this is not an offset in bytes", "write 0, 4096 or 4KiB"),
    ],
)
def test_what_no_plan_can_have_is_refused(options: dict[str, Any], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as error:
        onnxtile.plan(model(), **build.with_layout(options))
    assert message in str(error.value)
    assert hint is None or error.value.hint == hint


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"pin": "first"}, "the metadata 'pkg.onnxtile.pin' of 'b' is 'first', not a number of bytes"),
        ({"keep": "yes"}, "the metadata 'pkg.onnxtile.keep' of 'b' is 'yes'"),
        ({"place_in": "moon"}, "the place 'moon' of 'b' has no capacity"),
    ],
)
def test_metadata_that_says_nothing_is_refused(marks: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        onnxtile.plan(marked(b=marks))


def test_a_tensor_of_a_body_has_no_address_of_its_own() -> None:
    text = """g (bool c, float[4] x) => (float[4] y) {
      y = If(c) <then_branch = t () => (float[4] u) { v = Relu(x)  u = Exp(v) }, else_branch = e () => (float[4] w) { w = Neg(x) }>
    }"""
    with pytest.raises(UsageError, match="'v' has no address of its own in the main graph"):
        onnxtile.plan(model(text), layout={"pins": {"v": 0}})


def audited(plan: PlanResult) -> list[str]:
    return [failure.reason for failure in onnxtile.check_plan(model(), plan).failures]


def moved(plan: PlanResult, name: str, **fields: Any) -> PlanResult:
    """Return `plan` with other fields of the row `name`."""
    return replace(plan, buffers=tuple(replace(r, **fields) if r.name == name else r for r in plan.buffers))


def test_the_check_reads_pins_places_and_keeps_itself() -> None:
    plan = planned(keep=("b",), capacity={"m": 65536})
    assert audited(plan) == []
    assert "'b' is at 0, not at its pin 64" in audited(replace(moved(plan, "b", offset=0), pins={"b": 64}))
    assert "'a' is in 'm', not in 'n'" in audited(replace(plan, places={"a": "n"}))
    assert "'z' is pinned, placed or kept, and has no address" in audited(replace(plan, pins={"z": 64}))


def test_the_check_notices_a_kept_tensor_whose_bytes_are_shared() -> None:
    """A plan that shares them, of which a kept tensor is said."""
    plan = planned()
    assert any(r.endswith("shares the bytes of 'b', which is kept") for r in audited(replace(plan, keeps=("b",))))
    alone = planned(keep=("d",))
    other = next(row for row in alone.buffers if row.alias is None and row.name != "d")
    assert audited(alone) == []
    assert any("live together" in reason for reason in audited(moved(alone, "d", offset=other.offset)))


def test_the_check_reads_the_metadata_of_the_model() -> None:
    plan = onnxtile.plan(model()).plan
    assert onnxtile.check_plan(model(), plan).sound
    reasons = [f.reason for f in onnxtile.check_plan(marked(b={"pin": "8192"}), replace(plan, digest=None)).failures]
    assert reasons == [f"'b' is at {rows(plan)['b'].offset}, not at its pin 8192"]


def test_the_written_model_says_what_was_fixed(tmp_path: Any) -> None:
    found = onnxtile.plan(model(), layout={"pins": {"b": 2048}, "keep": ("d",)})
    found.save(tmp_path / "planned.onnx")
    audit = onnxtile.check_plan(tmp_path / "planned.onnx", tmp_path / "planned.onnx")
    assert audit.sound
    again = onnx.load(tmp_path / "planned.onnx")
    for node in again.graph.value_info:
        for entry in node.metadata_props:
            if node.name == "b" and entry.key == "pkg.onnxtile.offset":
                entry.value = "4096"
    onnx.save(again, tmp_path / "wrong.onnx")
    reasons = [f.reason for f in onnxtile.check_plan(tmp_path / "wrong.onnx", tmp_path / "wrong.onnx").failures]
    assert "'b' is at 4096, not at its pin 2048" in reasons


def test_the_run_inside_the_arena_reads_kept_tensors_at_the_end() -> None:
    case = Case.of(BLOCK)
    result = case.unchecked(order="model", planner="naive", fixed=FixedRules(keeps=("b",)))
    assert case.run(result).equal
    # The last tensor is put over the kept one: no later node reads it, only the end of the run notices.
    found = rows(result)
    wrong = moved(result, "y", offset=found["b"].offset, alias=None)
    verdict = case.run(wrong)
    assert (verdict.equal, verdict.differing, verdict.step) == (False, "b", None)


@draws(20)
@given(
    st.dictionaries(st.sampled_from(TENSORS), st.integers(0, 40), max_size=3),
    st.sets(st.sampled_from(TENSORS), max_size=2),
)
def test_any_pins_are_honoured_or_refused(pins: dict[str, int], keep: set[str]) -> None:
    case, wanted = Case.of(BLOCK), {name: 64 * at for name, at in pins.items()}
    try:
        plan = case.plan(
            order="auto", effort=Effort(20_000, 20_000), fixed=FixedRules(pins=wanted, keeps=tuple(sorted(keep)))
        )
    except UsageError:
        assume(False)
    found = rows(plan)
    assert {name: found[name].offset for name in wanted} == wanted
    assert all((found[name].first, found[name].last) == (0, max(plan.steps)) for name in keep)
    assert plan.lower_bound <= plan.arena_size


def test_the_table_and_the_page_show_them() -> None:
    plan = planned(pins={"b": 2048}, keep=("b", "d")).to_dict()
    shown = "\n".join(row for part in for_plan(plan) for row in plain(part))
    assert "pinned, placed and kept" in shown
    assert "b pinned, kept arena 2,048 512" in " ".join(shown.split())
    shapes = content(plan, RenderOptions())["plans"][0]["arenas"][0]["rows"]
    assert {s["name"]: s.get("rule") for s in shapes if s.get("rule")} == {"b": "pinned, kept", "d": "kept"}


def rows_of(plan: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["offset"] for row in plan["buffers"]}


def test_places_and_keeps_together_for_every_pair() -> None:
    for one, other in product("abd", "fhy"):
        plan = planned(keep=(one, other), places={one: "n"}, capacity={"m": 16384, "n": 16384}, verify=True)
        assert rows(plan)[one].arena == "n"


def test_a_range_that_does_not_fit_names_its_smallest_sizes_also_with_places() -> None:
    text = "g (float[N,16] x) => (float[N,16] y) { a = Relu(x)  b = Hardmax(a)  c = Hardmax(b)  y = Add(a, c) }"
    options: dict[str, Any] = {"places": {"b": "fast", "y": "slow"}, "capacity": {"fast": 256, "slow": 512}}
    with pytest.raises(Infeasible, match="N="):
        onnxtile.plan(model(text), dims={"N": (1, 64)}, **build.with_layout(options))


def test_fusing_for_memory_compares_sizes_whatever_the_places() -> None:
    assert onnxtile.fuse(marked(b={"place_in": "dram"}), for_memory=True).verdict is not None
