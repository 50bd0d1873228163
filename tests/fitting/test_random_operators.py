"""Random operators are never cut, copied or moved past each other, and what follows from them is verified."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.order import order_as_planned
from onnxtile.fitting.strips import WHOLE
from onnxtile.model.constants import Constants
from onnxtile.model.save import to_bytes
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from onnxtile.verbs.flows.fit_drafts import regions_of
from tests.random_graphs.drawing import in_order
from tests.random_graphs.kernels import run_model

DROPOUTS = {
    "seeded": "d = Dropout <seed = 7> (a, half, yes)",
    "unseeded": "d = Dropout(a, half, yes)",
    "noise": "n = RandomNormalLike(a) d = Add(a, n)",
    "of a shape": "n = RandomUniform <seed = 3.0, shape = [1, 16, 16, 16]> () d = Mul(a, n)",
    "called": "d = own.drop(a, half, yes)",
}


def net(middle: str) -> onnx.ModelProto:
    """Two wide convolutions with a random operator between them, where few bytes live."""
    made = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
      g (float[1, 3, 32, 32] x) => (float[1, 8, 16, 16] y) {{
        half = Constant <value_float = 0.5> ()
        yes = Constant <value = bool {{1}}> ()
        w = Conv <pads = [1, 1, 1, 1]> (x, w1)
        r = Relu(w)
        a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        {middle}
        u = Conv <pads = [1, 1, 1, 1]> (d, w2)
        v = Relu(u)
        y = Conv(v, w3)
      }} <domain: "own", opset_import: ["" : 17]> drop (p, q, s) => (o) {{ o = Dropout <seed = 7> (p, q, s) }}""")
    random = np.random.default_rng(0)
    for name, sizes in (("w1", (16, 3, 3, 3)), ("w2", (64, 16, 3, 3)), ("w3", (8, 64, 1, 1))):
        weights = random.standard_normal(sizes).astype(np.float32) / 4
        made.graph.initializer.append(numpy_helper.from_array(weights, name))
    return made


@pytest.mark.parametrize("kind", DROPOUTS)
def test_what_stands_around_a_random_operator_is_cut(kind: str) -> None:
    model = net(DROPOUTS[kind])
    result = onnxtile.fit(model, capacity=40 * 1024)
    assert result.after.arena < result.before.arena
    assert result.verdict is not None and result.verdict.equal
    assert not result.verdict.not_compared
    written = onnx.load_from_string(to_bytes(result.model))
    assert in_order(written) == in_order(model)
    again = onnxtile.verify(model, written)
    assert again.equal
    assert [one.name for one in again.outputs] == ["y"]


def test_a_random_operator_between_wide_tensors_is_not_cut() -> None:
    """So the first result is never smaller than both operands of the Dropout."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[1, 3, 64, 64] x) => (float[1, 16, 32, 32] y) {
        half = Constant <value_float = 0.5> ()
        yes = Constant <value = bool {1}> ()
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        d = Dropout <seed = 7> (c, half, yes)
        e = Relu(d)
        y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
      }""")
    weights = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    with pytest.raises(Infeasible, match="no way to cut the model takes less than 524,288 bytes; while d runs"):
        onnxtile.fit(model, capacity=400 * 1024)
    inference = onnx.ModelProto()
    inference.CopyFrom(model)
    inference.graph.node[1].attribute[0].t.CopyFrom(numpy_helper.from_array(np.asarray(False)))
    assert onnxtile.fit(inference, capacity=400 * 1024).fits


def test_the_items_of_a_batch_run_apart_up_to_a_random_operator() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[4, 3, 16, 16] x) => (float[4, 16, 8, 8] y) {
        half = Constant <value_float = 0.5> ()
        yes = Constant <value = bool {1}> ()
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
        y = Dropout <seed = 7> (p, half, yes)
      }""")
    weights = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    result = onnxtile.fit(model, capacity=40 * 1024)
    written = onnx.load_from_string(to_bytes(result.model))
    assert in_order(written) == in_order(model)
    x = {"x": np.random.default_rng(1).standard_normal((4, 3, 16, 16)).astype(np.float32)}
    assert np.allclose(run_model(written, x)["y"], run_model(model, x)["y"], atol=1e-4)


def test_random_operators_keep_their_order_in_that_of_a_plan() -> None:
    model = ir.from_proto(
        parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) {
        a = RandomNormalLike(x)
        b = RandomNormalLike(x)
        c = Neg(a)
        y = Add(b, c)
      }""")
    )
    edit = ModelEdit(model, resolve(model))
    order_as_planned(model, [["b"], ["a"], ["c"], ["y"]], edit.random)
    assert [node.outputs[0].name for node in model.graph] == ["a", "b", "c", "y"]


def test_no_region_has_two_random_operators() -> None:
    """What is not cut runs in the strip that needs it first, so two of them might change places."""
    model = ir.from_proto(
        parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[4, 4] x) => (float[4, 4] y) {
            half = Constant <value_float = 0.5> ()
            yes = Constant <value = bool {1}> ()
            a = Dropout(x, half, yes)
            b = Relu(a)
            n = RandomNormalLike(b)
            y = Add(b, n)
          }""")
    )
    regions = regions_of(model, resolve(model), Constants(model), exact=False)
    assert [kernel.is_random for kernel in regions.network.kernels] == [True, False, True, False]
    assert regions.macs(0, 2, WHOLE) is not None
    assert regions.macs(1, 4, WHOLE) is not None
    assert regions.macs(0, 3, WHOLE) is None
    assert regions.cost(0, 3, WHOLE) is None
