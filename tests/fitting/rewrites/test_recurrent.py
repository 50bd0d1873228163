"""Recurrent layers whose steps run in pieces, each with the state that the piece before left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxtile
from models.make_quantised import quantise
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.split_tokens import is_recurrent, separate_directions, split_tokens
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import model

STEPS, WIDTH, HIDDEN = 40, 8, 32
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layers(op: str, second: str, *, lengths: str = "", states: bool = False, attributes: str = "") -> onnx.ModelProto:
    """Return a recurrent layer of a sequence, then the nodes `second` from `y` (steps × 1 × 1 × hidden) to `out`.

    With `states`, the first ones are inputs and the last ones outputs.
    """
    names = ["h", "c"] if op == "LSTM" else ["h"]
    kind = f"float[1,1,{HIDDEN}]"
    inputs = "".join(f", {kind} {name}" for name in names) if states else ""
    outputs = "".join(f", {kind} {name}n" for name in names) if states else ""
    made = f"y, {', '.join(f'{name}n' for name in names)}" if states else "y"
    first = ", ".join(names) if states else ""
    proto = model(
        f"""g (float[1,{STEPS},{WIDTH}] x{inputs}) => (float[a,b,k] out{outputs}) {{
            s = Transpose<perm=[1,0,2]>(x)
            [layer] {made} = {op}<hidden_size={HIDDEN}{attributes}>(s, w, r, b, {lengths or '""'}{", " * bool(first)}{first})
            {second} }}""".replace('""', ""),
        w=(1, GATES[op] * HIDDEN, WIDTH),
        r=(1, GATES[op] * HIDDEN, HIDDEN),
        b=(1, 2 * GATES[op] * HIDDEN),
        end=(HIDDEN, 4),
        w2=(1, GATES[op] * HIDDEN, HIDDEN),
        one=[1],
        lengths=np.asarray([STEPS], np.int32),
    )
    read = {name for node in proto.graph.node for name in node.input}
    for unread in [tensor for tensor in proto.graph.initializer if tensor.name not in read]:
        proto.graph.initializer.remove(unread)
    return proto


LINEAR = "z = Squeeze(y, one) t = Transpose<perm=[1,0,2]>(z) out = MatMul(t, end)"
STACKED = f"z0 = Squeeze(y, one) y1 = GRU<hidden_size={HIDDEN}>(z0, w2, r) z = Squeeze(y1, one) out = MatMul(z, end)"


def in_pieces(proto: onnx.ModelProto, count: int) -> ir.Model:
    """Return a model whose tokens run in pieces."""
    made = load(proto)
    edit = ModelEdit(made, resolve(made, run=True))
    assert split_tokens(edit, count).nodes
    edit.drop_unread()
    return made


@pytest.mark.parametrize(("count", "states"), [(2, False), (7, True)])
@pytest.mark.parametrize("op", GATES)
def test_each_piece_begins_with_the_state_after_the_piece_before(op: str, states: bool, count: int) -> None:
    proto = layers(op, LINEAR, states=states)
    made = in_pieces(proto, count)
    assert [node.op_type for node in made.graph].count(op) == count
    assert onnxtile.verify(proto, made).equal
    last = [node for node in made.graph if node.op_type == op][-1]
    assert [bool(value.name) for value in last.outputs[1:]] == [states] * (len(last.outputs) - 1)


def test_a_layer_of_a_layer_takes_its_pieces() -> None:
    proto = layers("GRU", STACKED, attributes=", linear_before_reset=1")
    made = in_pieces(proto, 4)
    assert [node.op_type for node in made.graph].count("GRU") == 8
    assert not any(
        node.op_type == "Concat" and len(node.inputs) == 4 and node.outputs[0].name != "out" for node in made.graph
    )
    assert onnxtile.verify(proto, made).equal


@pytest.mark.parametrize("op", GATES)
def test_a_reader_of_the_last_state_waits_for_all_pieces(op: str) -> None:
    proto = layers(op, "z = Squeeze(y, one) u = Add(z, hn) out = MatMul(u, end)", states=True)
    made = in_pieces(proto, 3)
    assert [node.op_type for node in made.graph].count("Add") == 3
    assert onnxtile.verify(proto, made).equal


def test_results_of_a_few_steps_live_at_once() -> None:
    proto = layers("LSTM", LINEAR)
    steps, out = STEPS * HIDDEN * 4, STEPS * 4 * 4
    fitted = onnxtile.fit(proto, capacity=steps // 2 - 1, budget="0%")
    assert fitted.before.arena >= steps + out
    assert fitted.after.arena < steps // 2
    assert fitted.after.macs == fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


OTHERS = {
    "backward": layers("LSTM", LINEAR, attributes=', direction="reverse"'),
    "sequences of other lengths": layers("LSTM", LINEAR, lengths="lengths"),
    "the batch first": layers("LSTM", LINEAR, attributes=", layout=1"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_whole(name: str) -> None:
    assert not is_recurrent(next(node for node in ir.from_proto(OTHERS[name]).graph if node.name == "layer"))


def test_a_layer_of_two_directions_or_of_states_alone_stays_whole() -> None:
    proto = layers("GRU", LINEAR)
    layer = next(node for node in proto.graph.node if node.name == "layer")
    layer.attribute.append(onnx.helper.make_attribute("direction", "bidirectional"))
    assert not is_recurrent(next(node for node in ir.from_proto(proto).graph if node.name == "layer"))
    layer.attribute.pop()
    layer.output[0] = ""
    assert not is_recurrent(next(node for node in ir.from_proto(proto).graph if node.name == "layer"))


def test_a_layer_whose_first_result_has_no_name_is_a_kernel() -> None:
    proto = layers("GRU", "again = Relu(hn) out = MatMul(again, end)")
    next(node for node in proto.graph.node if node.name == "layer").output[:] = ["", "hn"]
    fitted = onnxtile.fit(proto, capacity="smallest")
    assert fitted.fits and fitted.after.arena <= fitted.before.arena


# A layer of two directions is one of each: the one that runs forward is cut.


def two_directions(op: str, *, states: bool = False, attributes: str = "") -> onnx.ModelProto:
    """Return a layer that runs in both directions, of which each step is read; with `states`, from given ones to outputs."""
    names = ["h", "c"] if op == "LSTM" else ["h"]
    inputs = "".join(f", float[2,1,{HIDDEN}] {name}" for name in names) if states else ""
    outputs = "".join(f", float[2,1,{HIDDEN}] {name}n" for name in names) if states else ""
    made = ", ".join(["y", *(f"{name}n" for name in names)]) if states else "y"
    given = ", , " + ", ".join(names) if states else ""
    return model(
        f"""g (float[{STEPS},1,{WIDTH}] x{inputs}) => (float[{STEPS},1,4] out{outputs}) {{
            [layer] {made} = {op}<hidden_size={HIDDEN}, direction="bidirectional"{attributes}>(x, w, r, b{given})
            t = Transpose<perm=[0,2,1,3]>(y) z = Reshape(t, sizes) out = MatMul(z, end) }}""",
        w=(2, GATES[op] * HIDDEN, WIDTH),
        r=(2, GATES[op] * HIDDEN, HIDDEN),
        b=(2, 2 * GATES[op] * HIDDEN),
        sizes=[STEPS, 1, 2 * HIDDEN],
        end=(2 * HIDDEN, 4),
    )


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_each_direction_is_a_layer_of_its_own(op: str, states: bool) -> None:
    proto = two_directions(op, states=states)
    made = load(proto)
    assert [node.name for node in separate_directions(ModelEdit(made, resolve(made, run=True)))] == ["layer"]
    assert [is_recurrent(node) for node in made.graph if node.op_type == op] == [False, True]
    assert onnxtile.verify(proto, made).equal


@pytest.mark.parametrize(
    "proto",
    [
        pytest.param(layers("GRU", LINEAR), id="one direction"),
        pytest.param(two_directions("RNN", attributes=', activations=["Tanh","Relu"]'), id="activations of both"),
    ],
)
def test_other_layers_stay_as_they_are(proto: onnx.ModelProto) -> None:
    made = load(proto)
    assert not separate_directions(ModelEdit(made, resolve(made, run=True)))


def test_a_layer_of_two_directions_has_one_of_its_results_in_pieces() -> None:
    proto = two_directions("LSTM")
    steps = STEPS * HIDDEN * 4
    fitted = onnxtile.fit(proto, capacity=steps * 3 // 2, budget="0%")
    assert fitted.before.arena >= 2 * steps and fitted.fits
    assert any(step.text.endswith("each direction is a layer") for step in fitted.steps)
    assert fitted.after.macs == fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_steps_fit_each_capacity_above_a_few_of_them() -> None:
    """Views are counted once, and more pieces are tried where gaps between the buffers of some keep these from fitting."""
    proto = layers("LSTM", LINEAR)
    for capacity in range(2048, 4 * STEPS * HIDDEN, 1024):
        fitted = onnxtile.fit(proto, capacity=capacity, budget="0%", verify=False)
        assert fitted.fits, capacity
        # The steps are turned without a copy, so a piece of them lives once.
        assert not any(node.op_type == "Transpose" for node in fitted.model.graph)


def test_what_fits_the_smallest_arena_fits_each_larger_one() -> None:
    """Kernels beside the pieces are cut only where the capacity asks for it, so fewer pieces that seem to fit may not."""
    proto = layers("GRU", LINEAR)
    least = onnxtile.fit(proto, capacity="smallest", budget="0%", verify=False).after.arena
    for capacity in range(least, least + 512, 128):
        assert onnxtile.fit(proto, capacity=capacity, budget="0%", verify=False).after.arena <= capacity


@pytest.mark.parametrize("place", [-1, 3])
def test_a_reader_of_one_step_needs_no_join_of_all(place: int) -> None:
    proto = layers("GRU", STACKED.replace("out = MatMul(z, end)", "last = Gather(z, place) out = MatMul(last, end)"))
    proto.graph.output[0].type.tensor_type.shape.dim.pop()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(place), "place"))
    fitted = onnxtile.fit(proto, capacity=STEPS * HIDDEN * 4 - 1, budget="0%")
    assert fitted.before.arena >= 2 * STEPS * HIDDEN * 4
    assert fitted.after.arena < STEPS * HIDDEN * 4
    assert fitted.verdict is not None and fitted.verdict.equal


def test_an_island_before_a_layer_stores_integers_as_a_whole(tmp_path: Path) -> None:
    proto = model(
        f"""g (float[1,{WIDTH},{STEPS}] x) => (float[a,b,k] out) {{
            c = Conv<kernel_shape=[3], pads=[1,1]>(x, f)
            [after] q = Relu(c)
            s = Transpose<perm=[2,0,1]>(q)
            y = GRU<hidden_size={HIDDEN}>(s, w, r)
            z = Squeeze(y, one)
            out = MatMul(z, end) }}""",
        f=(WIDTH, WIDTH, 3),
        w=(1, GATES["GRU"] * HIDDEN, WIDTH),
        r=(1, GATES["GRU"] * HIDDEN, HIDDEN),
        end=(HIDDEN, 4),
        one=[1],
    )
    onnx.save(proto, tmp_path / "float.onnx")
    quantise(tmp_path / "float.onnx", "qdq", tmp_path / "qdq.onnx")
    made = in_pieces(onnx.load(tmp_path / "qdq.onnx"), 4)
    assert [node.op_type for node in made.graph].count("GRU") == 4
    convolution = next(node for node in made.graph if node.op_type == "Conv")
    assert [use.node.op_type for use in convolution.outputs[0].uses()] == ["QuantizeLinear"]
    assert onnxtile.verify(tmp_path / "qdq.onnx", made).max_rel == 0
