"""Wide tensors that wait long for their last readers are made again for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxtile
from models.make_quantised import quantise
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.rewrites.rewrite import skips_made_again
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from onnxtile.verbs.flows.results import FittedModel
from tests.fitting.networks import model, run

TEXT = "it is made again for its last readers"


def u_net(rows: int = 48, deeper: int = 0) -> onnx.ModelProto:
    """Return two levels that are halved, and joined again; the first of them is made of an image, the second is some layers `deeper`."""
    more = "".join(
        f"[more{n}] v{n + 1} = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(v{n}, w2)\n    " for n in range(deeper)
    )
    return model(
        f"""
g (float[1,2,{rows},16] x) => (float[1,1,{rows},16] y) {{
    [stem] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [skip] b = Relu(a)
    [down] c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
    [deep0] d = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(c, w1)
    [relu0] e = Relu(d)
    [deep1] f = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(e, w2)
    [relu1] h = Relu(f)
    [deep2] i = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(h, w2)
    [relu2] j = Relu(i)
    [deep3] k = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(j, w2)
    [relu3] v0 = Relu(k)
    {more}[up] u = ConvTranspose<kernel_shape=[2,2], strides=[2,2]>(v{deeper}, w3)
    [join] n = Concat<axis=1>(u, b)
    [last] o = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(n, w4)
    [tail] y = Relu(o)
}}""",
        w0=(16, 2, 3, 3),
        w1=(8, 16, 3, 3),
        w2=(8, 8, 3, 3),
        w3=(8, 4, 2, 2),
        w4=(1, 20, 3, 3),
    )


def forms(source: onnx.ModelProto, most: int = 1 << 40, io: str = "outputs") -> list[ir.Model]:
    """Return the models in which long skips are made again, for at most so many multiply-accumulates."""
    loaded = load(source)
    shapes = resolve(loaded, run=True)
    regions = Regions(read_network(loaded, shapes, Constants(loaded), io=io))
    return [form.model for form in skips_made_again(loaded, shapes, regions, most)]


def made_again(fitted: FittedModel) -> list[tuple[str, ...]]:
    """Return the nodes whose results are made again."""
    return [step.nodes for step in fitted.steps if step.rewrite == TEXT]


def test_a_long_skip_is_made_again_within_the_budget() -> None:
    with pytest.raises(Infeasible):
        onnxtile.fit(u_net(), capacity=20_000, budget="0%")
    fitted = onnxtile.fit(u_net(), capacity=20_000, budget="60%")
    assert made_again(fitted) == [("skip",)]
    assert fitted.before.macs < fitted.after.macs <= 1.6 * fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal


def test_a_long_skip_of_a_quantised_model_is_made_again(tmp_path: Path) -> None:
    onnx.save(u_net(deeper=6), tmp_path / "net.onnx")
    quantise(tmp_path / "net.onnx", "qdq-per-channel", tmp_path / "int8.onnx")
    with pytest.raises(Infeasible, match="b_QuantizeLinear_Output"):
        onnxtile.fit(tmp_path / "int8.onnx", capacity=5_700, budget="0%")
    fitted = onnxtile.fit(tmp_path / "int8.onnx", capacity=5_000, budget="60%")
    assert made_again(fitted) == [("b_QuantizeLinear",)]
    assert fitted.verdict is not None and all(output.max_abs == 0 for output in fitted.verdict.outputs)
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal


def test_nothing_is_made_again_where_that_is_not_needed() -> None:
    assert not made_again(onnxtile.fit(u_net(), capacity=60_000, budget="60%"))


def test_what_is_made_again_is_equal_to_the_last_bit() -> None:
    (rewritten,) = forms(u_net())
    again = [node.name for node in rewritten.graph if node.name and "/again" in node.name]
    assert len(again) == 2
    x = np.random.default_rng(1).standard_normal((1, 2, 48, 16)).astype(np.float32)
    assert np.array_equal(run(u_net(), x), run(ir.to_proto(rewritten), x))


def test_a_budget_that_is_too_small_makes_nothing_again() -> None:
    assert not forms(u_net(), 200_000)


def test_an_input_that_takes_as_many_bytes_is_not_kept_in_the_place_of_a_skip() -> None:
    source = u_net()
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 16
    weights = next(tensor for tensor in source.graph.initializer if tensor.name == "w0")
    weights.CopyFrom(numpy_helper.from_array(np.zeros((16, 16, 3, 3), np.float32), "w0"))
    assert len(forms(source)) == 1
    assert not forms(source, io="inside")


def test_rows_that_come_once_are_not_read_again() -> None:
    fitted = onnxtile.fit(u_net(), capacity=30_000, budget="60%", io="x=rows")
    assert keys.STREAM in fitted.model.graph.inputs[0].metadata_props
    assert fitted.verdict is not None and fitted.verdict.equal
    (streamed,) = fitted.streamed
    ends = [(first, first + count) for first, count in streamed.stream.reads]
    assert ends == sorted(set(ends))
