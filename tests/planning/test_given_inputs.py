"""Plans of models that run on some inputs only: given in a file, or drawn in a range."""

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from onnxtile import api
from onnxtile.model.feeds import Wanted, sample_feeds
from onnxtile.model.load import load
from onnxtile.system.errors import ModelError, OnnxtileError
from tests.build import Find

SHAPES = {"input": (1, 576), "state": (2, 1, 128)}


@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_16k_op15", "silero_vad_op18_ifless"])
def test_a_sampling_rate_in_a_range(name: str, silero: Find) -> None:
    result = api.plan(silero(name), shapes=SHAPES, inputs={"sr": (16000, 16000)})
    assert result.verdict is not None and result.verdict.equal


def test_inputs_in_a_file_give_their_shapes_too(silero: Find, tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    state = np.zeros((2, 1, 128), np.float32)
    np.savez(file, input=np.ones((1, 576), np.float32), state=state, sr=np.array(16000))
    result = api.plan(silero("silero_vad_16k_op15"), inputs=file)
    assert result.plan.unplanned == ()
    assert result.verdict is not None
    assert (result.verdict.equal, result.verdict.runs) == (True, 3)


def test_a_number_that_the_model_does_not_take_is_an_error(silero: Find) -> None:
    with pytest.raises(OnnxtileError):
        api.plan(silero("silero_vad_16k_op15"), shapes={"input": (1, 3), "state": (2, 1, 128)})


def test_given_inputs_are_those_of_every_run() -> None:
    given = {"x": np.ones(3, np.float32)}
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    model = load(onnx.parser.parse_model(text))
    assert Wanted(given).feeds(model, lambda _: (3,), 2) == [given, given]
    first, second = Wanted(ranges={"x": (5, 6)}).feeds(model, lambda _: (3,), 2)
    assert (first["x"] >= 5).all() and (first["x"] < 6).all() and (first["x"] != second["x"]).any()
    assert (sample_feeds(model, lambda _: (), ranges={"x": (7, 7)})["x"] == 7).all()


def test_numbers_in_an_input_that_decide_a_shape_are_asked_for(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[3,4] x, int64[1] k) => (float[3,3] y, int64[3,3] i) { y, i = TopK(x, k) }'
    model = onnx.parser.parse_model(text)
    with pytest.raises(ModelError, match=r"TopK has a result of shape \{3,1\} .* and \{3,3\} in the model") as caught:
        api.plan(model)
    assert "inputs FILE.npz" in str(caught.value.hint)
    np.savez(tmp_path / "k.npz", x=np.ones((3, 4), np.float32), k=np.array([3]))
    assert not api.plan(model, inputs=tmp_path / "k.npz").plan.unplanned
