"""Plans with copies between a fast and a slow memory: which copies there are, how many bytes they move, and that the run is equal."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnxtile
from onnxtile.arena.run import ArenaVerdict
from onnxtile.declare.plan_document import document_of
from onnxtile.planning.result import MovementResult
from onnxtile.report.formats import to_header
from onnxtile.report.formats.data import TRACE
from onnxtile.verbs.flows.results import PlannedModel
from tests import build
from tests.draws import draws

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "plan.schema.json").read_text())

# `a` (256 bytes) waits while four kernels run over 512 bytes each.
SKIP = """
<ir_version: 10, opset_import: ["" : 20]>
skip (float[64] x) => (float[64] y) {
  a = Exp(x)
  w = Concat<axis = 0>(a, a)
  u = CumSum(w, zero)
  v = CumSum(u, zero)
  s = Slice(v, begin, end)
  y = Add(s, a)
}
"""

WEIGHTED = """
<ir_version: 10, opset_import: ["" : 20]>
weighted (float[4,64] x) => (float[4,64] y) {
  a = MatMul(x, w)
  y = MatMul(a, w2)
}
"""

# Exporters let equal biases be copies of one, made by a node.
COPIED = """
<ir_version: 10, opset_import: ["" : 20]>
copied (float[4,64] x) => (float[4,64] y) {
  a = MatMul(x, w)
  other = Identity(w)
  b = MatMul(a, w2)
  y = MatMul(b, other)
}
"""

PARTS = """
<ir_version: 10, opset_import: ["" : 20]>
parts (float[128] x) => (float[1] y) {
  s = Slice(x, zeros, end)
  t = Slice(x, begin_half, end_half)
  p = ReduceMax<keepdims = 1>(s)
  q = ReduceMax<keepdims = 1>(t)
  y = Add(p, q)
}
"""

BODY = """
<ir_version: 10, opset_import: ["" : 20]>
body (float[64] x, bool c) => (float[64] y) {
  a = Exp(x)
  big = Concat<axis = 0>(a, a)
  sum = CumSum(big, zero)
  one = ReduceSum<keepdims = 0>(sum)
  t = If(c) <then_branch = yes () => (float[64] p) { p = Add(a, one) },
             else_branch = no () => (float[64] q) { q = Sub(a, one) }>
  y = Relu(t)
}
"""

# `q` (32 bytes) waits while CumSum runs over 1,024 bytes.
FEW_BITS = """
<ir_version: 10, opset_import: ["" : 21]>
few_bits (float[64] x) => (float[64] y) {
  scale = Constant<value = float {0.5}>()
  q = QuantizeLinear<output_dtype = 22>(x, scale)
  w = Concat<axis = 0>(x, x)
  u = CumSum(w, zero)
  t = Slice(u, begin, end)
  d = DequantizeLinear(q, scale)
  y = Add(d, t)
}
"""


WIDTHS = (64, 64, 256, 64, 64, 256, 64, 64, 64, 256, 64, 64)
"""Of the layers of a net: those with few MACs for their weights stand beside others."""
RING = {"sram": 107_520, "dram": 1 << 20}
"""Room for the largest layer and a quarter more."""


def layers(widths: Sequence[int] = WIDTHS, rows: int = 16) -> onnx.ModelProto:
    """Return a net of MatMuls of these widths, each with a Relu."""
    draw, nodes, weights = np.random.default_rng(0), [], []
    for number, (before, after) in enumerate(pairwise(widths)):
        weight = draw.uniform(-0.1, 0.1, (before, after)).astype("float32")
        weights.append(onnx.numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(onnx.helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"m{number}"], name=f"mm{number}"))
        nodes.append(onnx.helper.make_node("Relu", [f"m{number}"], [f"x{number + 1}"], name=f"relu{number}"))
    last = f"x{len(widths) - 1}"
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [rows, width])
        for name, width in (("x0", widths[0]), (last, widths[-1]))
    ]
    return build.model(nodes, ends[:1], ends[1:], weights)


def graph(text: str) -> onnx.ModelProto:
    """Return the model in `text` with the constants that it reads."""
    model = onnx.parser.parse_model(text)
    numbers = {"zero": 0, "begin": [0], "end": [64], "zeros": [0], "begin_half": [60], "end_half": [128]}
    for name, value in numbers.items():
        if any(name in node.input for node in model.graph.node):
            array = onnx.numpy_helper.from_array(np.asarray(value, "int64"), name)
            model.graph.initializer.append(array)
    for name in ("w", "w2"):
        if any(name in node.input and node.op_type == "MatMul" for node in model.graph.node):
            weight = np.linspace(-1, 1, 64 * 64, dtype="float32").reshape(64, 64)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def moved(text: str, fast: int, movement: str = "activations", **options: Any) -> PlannedModel:
    return onnxtile.plan(
        graph(text), movement=movement, capacity={"sram": fast, "dram": 1 << 20}, **build.with_layout(options)
    )


def movement_of(planned: PlannedModel) -> MovementResult:
    assert planned.plan.movement is not None
    return planned.plan.movement


def ways(planned: PlannedModel) -> list[tuple[str, str, str]]:
    return [(copy.tensor, copy.source_memory, copy.memory) for copy in movement_of(planned).copies]


def test_a_tensor_leaves_while_it_waits() -> None:
    """Kernels need 1,024 bytes: two tensors of 512. So `a` is copied out and back, 256 bytes each way."""
    planned = moved(SKIP, 1024)
    assert ways(planned) == [
        ("x", "outside", "sram"),
        ("a", "sram", "dram"),
        ("a", "dram", "sram"),
        ("y", "sram", "dram"),
    ]
    found = movement_of(planned)
    assert (found.bytes, found.forced, found.lower_bound, found.bound) == (1024, 512, 1024, "search")
    assert planned.verdict is not None and planned.verdict.equal
    assert all(arena.size <= arena.capacity for arena in planned.plan.arenas if arena.capacity is not None)
    jsonschema.validate(json.loads(json.dumps(document_of(planned.plan.to_dict()))), SCHEMA)


def test_with_room_only_inputs_and_outputs_are_copied() -> None:
    """An intermediate tensor that stays never goes to the slow memory."""
    planned = moved(SKIP, 1280)
    assert ways(planned) == [("x", "outside", "sram"), ("y", "sram", "dram")]
    assert movement_of(planned).bytes == 512


@pytest.mark.parametrize(("io", "ends"), [("inside", ("dram", "dram")), ("outside", ("outside", "outside"))])
def test_inputs_come_from_and_outputs_go_where_they_are(io: str, ends: tuple[str, str]) -> None:
    planned = moved(SKIP, 1024, io=io)
    copies = movement_of(planned).copies
    assert (copies[0].source_memory, copies[-1].memory) == ends
    assert planned.verdict is not None and planned.verdict.equal


def test_an_input_that_is_read_late_is_read_again_not_written() -> None:
    text = SKIP.replace("y = Add(s, a)", "y = Add(s, x)")
    planned = moved(text, 1024)
    assert ("x", "sram", "dram") not in ways(planned)
    assert [copy.tensor for copy in movement_of(planned).copies].count("x") == 2
    assert movement_of(planned).bytes == 768


def test_weights_are_copied_before_the_kernel_that_reads_them() -> None:
    """Two weights of 16,384 bytes share the bytes of one."""
    planned = moved(WEIGHTED, 18432, "weights")
    copies = movement_of(planned).copies
    assert [(c.tensor, c.source_memory) for c in copies if c.tensor.startswith("w")] == [
        ("w", "constants"),
        ("w2", "constants"),
    ]
    assert [copy.before == copy.step + 1 for copy in copies if copy.tensor == "w2"] == [True]
    assert len({copy.offset for copy in copies if copy.tensor.startswith("w")}) == 1
    assert movement_of(planned).bytes == 2 * 16384 + 2 * 1024
    assert planned.verdict is not None and planned.verdict.equal


def test_a_weight_that_a_node_copies_does_not_stay_for_it() -> None:
    """The second kernel has room for one weight of 16,384 bytes. The node that makes a constant reads the constant itself."""
    planned = moved(COPIED, 18432, "weights")
    assert movement_of(planned).bytes == 3 * 16384 + 2 * 1024
    assert planned.plan.constant_nodes
    assert planned.verdict is not None and planned.verdict.equal


def test_a_weight_is_not_copied_before_the_node_that_makes_it() -> None:
    """With room for two weights, the third is copied early, but after the node that makes it beside the kernel before."""
    text = COPIED.replace("  other = Identity(w)\n", "").replace("y = Mat", "other = Identity(w)\n  y = Mat")
    speeds: dict[str, Any] = {"target": {"bandwidth": {"dram": "16384B/s"}, "macs_per_second": 16384}}
    planned = moved(text, 53248, "weights", order="model", **speeds)
    schedule = planned.plan.schedule
    assert schedule.index("Copy/other@sram") > schedule.index("other")
    assert planned.verdict is not None and planned.verdict.equal


def test_with_room_for_two_buffers_a_weight_is_copied_beside_the_kernel_before() -> None:
    """Double buffers: the time of all is less than the sum, with the bytes of both weights apart."""
    speeds: dict[str, Any] = {"target": {"bandwidth": {"dram": "16384B/s"}, "macs_per_second": 16384}}
    tight = movement_of(moved(WEIGHTED, 18432, "weights", **speeds)).time
    wide = movement_of(moved(WEIGHTED, 36864, "weights", **speeds))
    assert tight is not None and wide.time is not None
    assert tight.computing == wide.time.computing == 2.0
    assert tight.with_overlap is not None and wide.time.with_overlap is not None
    assert wide.time.with_overlap + 0.9 < tight.with_overlap <= wide.time.without_overlap  # type: ignore[operator]
    assert len({copy.offset for copy in wide.copies if copy.tensor.startswith("w")}) == 2


def test_the_products_in_a_function_take_time_beside_those_of_the_graph() -> None:
    """Both products have 256 MACs; the shape of the second one's operand is known only from the call."""
    text = """<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
    calls (float[4,8] x) => (float[4,8] y) <float[8,8] v = {VALUES}> {
      a = local.Product(x, v)
      y = MatMul(a, v)
    }
    <domain: "local", opset_import: ["" : 20]>
    Product (p, q) => (r) { r = MatMul(p, q) }
    """
    speeds: dict[str, Any] = {"target": {"bandwidth": {"dram": "1KB/s"}, "macs_per_second": 256}}
    found = movement_of(moved(text.replace("VALUES", ", ".join(["0.5"] * 64)), 1024, **speeds))
    assert found.time is not None and found.time.computing == 2.0


def test_more_memory_takes_less_time() -> None:
    """Weights are copied several kernels ahead, in turn in the same room, past the Relus that take no time."""
    speeds: dict[str, Any] = {"target": {"bandwidth": {"dram": "1GB/s"}, "macs_per_second": "4G"}}
    times = []
    for percent in (100, 110, 125, 150, 200, 400, 1000):
        memories = {"sram": 860 * percent // 64 * 64 + 64, "dram": 1 << 20}
        found = movement_of(onnxtile.plan(layers(), movement="weights", capacity=memories, verify=False, **speeds))
        assert found.time is not None and found.time.with_overlap is not None
        assert found.time.computing is not None
        times.append(found.time.with_overlap)
        longest = max(found.time.copying, found.time.computing)
    assert times == sorted(times, reverse=True)
    first = max(64 * 64 * 4, 16 * 64 * 4) / 1e9
    assert longest + first < times[-1] < times[0] * 0.6 + first


def test_without_speeds_copies_are_early_too() -> None:
    found = movement_of(onnxtile.plan(layers(), movement="weights", capacity=RING, verify=False))
    assert found.time is None
    loads = [copy for copy in found.copies if copy.before is not None]
    assert sum(copy.before - copy.step > len(loads) // 4 for copy in loads) >= 3  # type: ignore[operator]


def test_header_and_trace_have_the_windows_and_the_times() -> None:
    speeds: dict[str, Any] = {"target": {"bandwidth": {"dram": "1GB/s"}, "macs_per_second": "4G"}}
    plan = onnxtile.plan(layers(), movement="weights", capacity=RING, verify=False, **speeds).plan.to_dict()
    copies, time = plan["movement"]["copies"], plan["movement"]["time"]
    header = to_header.FORMAT.render(plan).decode()
    assert f"_COPY_COUNT {len(copies)}u" in header
    for copy in copies:
        steps = (copy["before"], copy["source_until"])
        ends = ", ".join(
            next((end for end in header.split() if end.endswith("_NEVER")), "") if s is None else f"{s}u" for s in steps
        )
        assert f"{copy['bytes']}u, {copy['step']}u, {copy['target_free']}u, {copy['source_ready']}u, {ends}}}" in header
    events = json.loads(TRACE.render(plan))["traceEvents"]
    last = max(event["pid"] for event in events)
    timed = {event["name"]: event for event in events if event["pid"] == last and event["ph"] == "X"}
    windows = {event["name"]: event for event in events if event["pid"] == last - 1 and event["ph"] == "X"}
    for copy in copies:
        assert timed[copy["node"]]["ts"] == time["starts"][copy["step"]] * 1e6
        assert windows[copy["node"]]["ts"] == max(copy["target_free"], copy["source_ready"])
    assert {event["tid"] for event in timed.values() if event["cat"] == "copy"} == {2}


@given(st.integers(0, 10_000))
@draws(12, 50)
def test_random_nets_are_equal_with_copies_at_their_earliest_and_latest(seed: int) -> None:
    """Each plan is proved in three runs, and its published windows by the check."""
    draw = random.Random(seed)
    widths = [draw.choice((8, 16, 32, 64)) for _ in range(draw.randrange(3, 9))]
    model = layers(widths, draw.choice((1, 4, 16)))
    shapes = onnx.shape_inference.infer_shapes(model).graph.value_info
    model.graph.output.extend(draw.sample(list(shapes), 2))
    memories = {"sram": draw.choice((25_088, 32_000, 60_000)), "dram": 1 << 20}
    way, speed = draw.choice(("activations", "weights")), draw.choice((None, "10MB/s", "1GB/s"))
    speeds: dict[str, Any] = (
        {} if speed is None else {"target": {"bandwidth": {"dram": speed}, "macs_per_second": "100M"}}
    )
    planned = onnxtile.plan(model, movement=way, capacity=memories, **speeds)
    assert isinstance(planned.verdict, ArenaVerdict)
    assert planned.verdict.equal and planned.verdict.copy_runs == 2


@pytest.mark.parametrize("io", ["outputs", "inside"])
def test_an_input_without_room_is_copied_in_parts(io: str) -> None:
    """Its Slices copy 256 and 272 bytes of 512; with room for all of it, it is copied once."""
    planned = moved(PARTS, 448, io=io)
    source = "dram" if io == "inside" else "outside"
    assert ways(planned) == [("x", source, "sram"), ("x", source, "sram"), ("y", "sram", "dram")]
    assert movement_of(planned).bytes == 256 + 272 + 4
    assert planned.verdict is not None and planned.verdict.equal
    assert movement_of(moved(PARTS, 1024, io=io)).bytes == 512 + 4


def test_only_the_parts_of_an_input_are_copied_where_those_are_fewer_bytes() -> None:
    """There is room for all of the input, too, of which one Slice reads an eighth."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    part (float[512] x) => (float[1] y) <int64[1] from0 = {0}, int64[1] to64 = {64}> {
      s = Slice(x, from0, to64)
      y = ReduceMax<keepdims = 1>(s)
    }
    """
    found = movement_of(moved(text, 4096))
    assert (found.bytes, found.lower_bound) == (256 + 4, 256 + 4)


def test_a_part_is_not_copied_before_the_node_that_makes_where_it_begins() -> None:
    """The copy could start beside Exp, were it not for the Constant after that."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    part (float[512] x, float[64] z) => (float[64] y) <int64[1] to64 = {64}> {
      e = Exp(z)
      from0 = Constant<value_ints = [0]>()
      s = Slice(x, from0, to64)
      y = Add(s, e)
    }
    """
    planned = moved(text, 1024, order="model")
    schedule = planned.plan.schedule
    assert schedule.index("s") > schedule.index("from0")
    assert planned.verdict is not None and planned.verdict.equal


def test_a_branch_reads_the_copy_of_what_it_captures() -> None:
    planned = moved(BODY, 1024)
    assert ("a", "dram", "sram") in ways(planned)
    assert planned.verdict is not None and planned.verdict.equal


@pytest.mark.parametrize(("text", "function", "count"), [(SKIP, "Copy", 4), (FEW_BITS, "CopyBits", 2)])
def test_the_written_model_has_the_copies_and_is_equal(text: str, function: str, count: int, tmp_path: Path) -> None:
    """onnxruntime has no kernel for Identity of int4, so tensors of few bits have a function of their own."""
    moved(text, 1024).save(tmp_path / "moved.onnx")
    onnx.save(graph(text), tmp_path / "original.onnx")
    assert onnxtile.verify(tmp_path / "original.onnx", tmp_path / "moved.onnx").equal
    written = onnx.load(tmp_path / "moved.onnx")
    assert [node.op_type for node in written.graph.node].count(function) == count
    assert onnxtile.check_plan(tmp_path / "moved.onnx", tmp_path / "moved.onnx").sound


def test_the_same_model_has_the_same_copies() -> None:
    assert moved(SKIP, 1024).plan.to_dict() == moved(SKIP, 1024).plan.to_dict()
