"""What a user is told to bind."""

import onnx
import onnx_ir as ir
import pytest

from onnxtile.common_options import SizeOptions
from onnxtile.model.binding import Unbound, bind, example, missing_sizes
from onnxtile.model.feeds import sample_feeds
from onnxtile.system.errors import ModelError


def unbound(**shapes: list[int | str | None]) -> Unbound:
    return Unbound.of(ir.Value(name=name, shape=ir.Shape(shape)) for name, shape in shapes.items())


def test_sizes_with_names_are_bound_by_them() -> None:
    assert unbound(x=["batch", 3], y=["seq", "batch"]).options == "--dim batch=N --dim seq=N"
    assert unbound(x=[1, 3]).options == ""


@pytest.mark.parametrize("nameless", [None, "?"])
def test_a_size_without_a_name_asks_for_the_whole_shape(nameless: str | None) -> None:
    # Several sizes may be called "?", and --dim would bind them all.
    found = unbound(x=["batch", 3, nameless, nameless], ids=["batch", "seq"])
    assert found.options == "--dim batch=N --dim seq=N --shape x=Nx3xNxN"


def test_names_may_hold_anything() -> None:
    found = unbound(x=["p2o.DynamicDimension.0", "p2o.DynamicDimension.10", "my dim"])
    assert found.bindable("p2o.DynamicDimension.1") == []
    assert found.bindable("2*p2o.DynamicDimension.10 + 1") == ["p2o.DynamicDimension.10"]
    assert found.covers("p2o.DynamicDimension.0*8") and not found.covers("p2o.DynamicDimension.0*other")
    assert "--dim 'my dim=N'" in found.options


def test_a_number_is_no_symbol() -> None:
    found = unbound(x=["n", "n2"])
    assert found.bindable(7) == [] and not found.covers("7")
    assert found.bindable("n2") == ["n2"]


def test_an_error_of_missing_sizes_names_each_dimension_and_gives_a_line_to_paste() -> None:
    inputs = [
        ir.Value(name="input", shape=ir.Shape([None, None]), type=ir.TensorType(ir.DataType.FLOAT)),
        ir.Value(name="state", shape=ir.Shape([2, None, 128]), type=ir.TensorType(ir.DataType.FLOAT)),
    ]
    error = missing_sizes(inputs)
    assert error.message == "sizes of inputs are not known: 'input' [?, ?], 'state' [2, ?, 128]"
    assert error.hint == "give them, for example --shape input=1x512 --shape state=2x1x128"


def test_the_example_gives_a_name_one_size_everywhere() -> None:
    image = ir.Value(name="x", shape=ir.Shape(["batch", 3, "height", "width"]))
    tokens = ir.Value(name="ids", shape=ir.Shape(["batch", "seq"]), type=ir.TensorType(ir.DataType.INT64))
    assert example([image, tokens]) == "--dim batch=1 --dim height=224 --dim width=224 --dim seq=64"
    mask = ir.Value(name="my mask", shape=ir.Shape(["batch", None, "seq"]), type=ir.TensorType(ir.DataType.BOOL))
    assert example([tokens, mask]) == "--shape 'my mask=1x1x64'"


def test_the_line_to_paste_binds_all_that_is_open() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 17]> g (float[?, samples] x, float[2, ?, 8] s) => (y, z) '
            "{ y = Relu (x) z = Relu (s) }"
        )
    )
    with pytest.raises(ModelError) as raised:
        sample_feeds(model, lambda value: value.shape.numpy() if value.shape and value.shape.is_static() else None)
    line = (raised.value.hint or "").partition("for example ")[2].split()
    given = {name: size for name, _, size in (word.partition("=") for word in line[1::2])}
    bind(model, {}, SizeOptions(shapes=given).fixed_shapes)
    assert all(value.shape and value.shape.is_static() for value in model.graph.inputs)
