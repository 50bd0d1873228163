"""Small models that fit cuts, written as ONNX text."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper

from onnxtile.fitting.channels import HiddenGroups
from onnxtile.fitting.live_bytes import LiveBytes, RegionTrace
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.rewrites.rewrite import UnblockedModel, unblock
from onnxtile.fitting.search import Descent, FitTarget
from onnxtile.fitting.strips import Cut, FitSchedule, RegionCost
from onnxtile.fitting.write import write
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.planning.model_plan import quick_allocation
from onnxtile.shapes.resolve import resolve
from onnxtile.system.long_work import Progress, silent
from onnxtile.verbs.flows.fit_drafts import WrittenSchedule


def search_within(regions: Regions, wanted: FitTarget) -> FitSchedule | None:
    """Return the quickest schedule that is found within the capacity, or the quickest on the way down; None where none is found."""
    way, capacity = Descent(regions, wanted), wanted.capacity
    assert capacity is not None
    found = way.quickest(capacity) or next(way.within(capacity), None)
    if found is not None or capacity < regions.least:
        return found
    return min((point for point in way.all_points() if point.peak <= capacity), key=way.price, default=None)


def search(regions: Regions, wanted: FitTarget, progress: Progress = silent) -> FitSchedule:
    """Return the quickest schedule that is found within the capacity; where none is, or none is wanted, the one with the least peak."""
    way = Descent(regions, wanted, progress)
    if wanted.capacity is None:
        return way.all_points()[-1]
    return way.quickest(wanted.capacity) or next(way.within(wanted.capacity), None) or way.all_points()[-1]


HEAD = '<ir_version: 10, opset_import: ["": 17]>\n'


def model(text: str, **constants: Any) -> onnx.ModelProto:
    """Return the model of `text` with constants: random weights where a tuple says their shape, else what numpy makes of a value."""
    made = onnx.parser.parse_model(HEAD + text)
    random = np.random.default_rng(0)
    for name, given in constants.items():
        is_shape = isinstance(given, tuple)
        array = random.standard_normal(given).astype(np.float32) / 4 if is_shape else np.asarray(given)
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


def inverted_residuals(rows: int = 33, columns: int = 20) -> onnx.ModelProto:
    """Return two inverted residual blocks, the second with a skip, behind a strided convolution."""
    return model(
        f"""
g (float[1,3,{rows},{columns}] x) => (float[1,8,1,1] y) {{
    [stem] a = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x, w0)
    [expand0] b = Conv(a, w1)
    [relu0] c = Relu(b)
    [depth0] d = Conv<group=24, kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(c, w2, b2)
    [relu1] e = Relu(d)
    [project0] f = Conv(e, w3, b3)
    [expand1] h = Conv(f, w4)
    [relu2] i = Relu(h)
    [depth1] j = Conv<group=48, kernel_shape=[3,3], pads=[1,1,1,1]>(i, w5)
    [relu3] k = Relu(j)
    [project1] l = Conv(k, w6, b6)
    [add] m = Add(f, l)
    [pool] y = GlobalAveragePool(m)
}}""",
        w0=(4, 3, 3, 3),
        w1=(24, 4, 1, 1),
        w2=(24, 1, 3, 3),
        b2=(24,),
        w3=(8, 24, 1, 1),
        b3=(8,),
        w4=(48, 8, 1, 1),
        w5=(48, 1, 3, 3),
        w6=(8, 48, 1, 1),
        b6=(8,),
    )


def deep() -> onnx.ModelProto:
    """Return a convolution of each channel between one that makes many and one that makes few."""
    return model(
        """
g (float[1,2,32,8] x) => (float[1,2,32,8] y) {
    [wide] a = Conv(x, w0)
    [deep] b = Conv<kernel_shape=[3,3], pads=[1,1,1,1], group=16>(a, w1)
    [narrow] y = Conv(b, w2)
}""",
        w0=(16, 2, 1, 1),
        w1=(16, 1, 3, 3),
        w2=(2, 16, 1, 1),
    )


def branches(rows: int = 32) -> onnx.ModelProto:
    """Return two branches from a wide tensor to a narrow one, whose nodes alternate: one branch after the other takes fewer bytes."""
    return model(
        f"""
g (float[1,2,{rows},16] x) => (float[1,2,1,1] y) {{
    [stem] s = Conv<pads=[1,1,1,1], kernel_shape=[3,3]>(x, w0)
    [wide0] a = Conv(s, w1)
    [wide1] b = Conv(s, w2)
    [narrow0] c = GlobalMaxPool(a)
    [narrow1] d = GlobalAveragePool(b)
    [project0] e = Conv(c, w3)
    [project1] f = Conv(d, w4)
    [add] y = Add(e, f)
}}""",
        w0=(2, 2, 3, 3),
        w1=(16, 2, 1, 1),
        w2=(16, 2, 1, 1),
        w3=(2, 16, 1, 1),
        w4=(2, 16, 1, 1),
    )


def run(proto: onnx.ModelProto, x: Any) -> Any:
    """Return the first result of onnxruntime without its own rewrites."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {proto.graph.input[0].name: x})[0]


def cut_into_strips(
    proto: onnx.ModelProto, step: int, *, exact: bool, chunks: tuple[tuple[int, int], ...] = ()
) -> tuple[onnx.ModelProto, RegionCost]:
    """Return a model cut into strips of `step` rows of its first operand from end to end, and what the cut costs.

    `chunks` has numbers of chunks of hidden channels by the first kernel.
    """
    made = load(proto)
    shapes = resolve(made, run=True)
    edited = unblock(made, shapes, exact=exact) or UnblockedModel(made, shapes, ())
    constants = Constants(edited.model)
    network = read_network(edited.model, edited.shapes, constants, exact=exact)
    groups = HiddenGroups(network, edited.shapes, constants, edited.model.graph.opset_imports[""]).found()
    regions = Regions(network, groups)
    cost = regions.cost(0, len(regions.network.kernels), Cut(step, chunks=chunks))
    assert cost is not None
    write(edited.model, FitSchedule((cost,)), regions, edited.shapes, constants)
    return ir.to_proto(edited.model), cost


def written_peak(cut: WrittenSchedule) -> int:
    """Return the most bytes that live at once in the model that a schedule was written into, in its order."""
    return quick_allocation(cut.written.opened.unfolded, cut.subject.settings).arenas[0].problem.peak[0]


def copied_bytes(trace: RegionTrace, live: LiveBytes) -> int:
    """Return the bytes that Slice and Concat copy in a region."""
    return sum(live.sizes[made] for op in trace.ops if op.kernel is None for made in op.makes)
