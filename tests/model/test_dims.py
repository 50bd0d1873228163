"""Binding dimensions: what `--dim` and `--shape` say, and what they cannot say."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxtile.common_options import SizeOptions
from onnxtile.model.binding import Unbound, bind, example, free_inputs, missing_sizes, symbols
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import ModelError, UsageError
from tests.build import Text, ValueOf


@pytest.fixture(name="two")
def _two(text: Text) -> ir.Model:
    return load(
        text(
            "g (float[batch, seq, 4] x, float[batch, 4] z) => (float[batch, seq, 4] y)"
            " { h = Relu(x) u = Unsqueeze(z, one) y = Add(h, u) }".replace(
                "u = ", "one = Constant <value = int64[1] {1}> () u = "
            )
        )
    )


def dims(model: ir.Model, name: str) -> list[int | str | None]:
    shape = next(v for v in model.graph.inputs if v.name == name).shape
    assert shape is not None
    return [d if isinstance(d, int) else d.value for d in shape]


def test_a_symbol_is_bound_wherever_it_stands(two: ir.Model) -> None:
    assert bind(two, {"batch": 2, "seq": 8}, {}) == {"batch": 2, "seq": 8}
    assert dims(two, "x") == [2, 8, 4]
    assert dims(two, "z") == [2, 4]
    assert resolve(two).sizes(two.graph.outputs[0]) == (2, 8, 4)


def test_a_shape_binds_the_symbols_it_meets(two: ir.Model) -> None:
    assert bind(two, {}, {"x": (3, 5, 4)}) == {"batch": 3, "seq": 5}
    assert dims(two, "z") == [3, 4]


def test_nothing_to_bind_changes_nothing(two: ir.Model) -> None:
    assert bind(two, {}, {}) == {}
    assert dims(two, "x") == ["batch", "seq", 4]


@pytest.mark.parametrize(
    ("dims_", "shapes", "message", "hint"),
    [
        ({"btach": 1}, {}, "btach", "'batch'"),
        ({"zzz": 1}, {}, "zzz", "batch, seq"),
        ({}, {"xx": (1, 2, 4)}, "xx", "'x'"),
        ({}, {"pixels": (1, 2, 4)}, "pixels", "x, z"),
        ({"batch": 0}, {}, "0", None),
        ({"batch": -1}, {}, "-1", None),
        ({}, {"x": (1, 0, 4)}, "0", None),
        ({"batch": 2}, {"x": (3, 5, 4)}, "2 and to 3", None),
        ({}, {"x": (2, 5, 4), "z": (3, 4)}, "2 and to 3", None),
        ({}, {"x": (5, 4)}, "3 dimensions, not 2", None),
    ],
)
def test_what_cannot_be_bound_is_refused_and_nothing_is_changed(
    two: ir.Model, dims_: dict[str, int], shapes: dict[str, tuple[int, ...]], message: str, hint: str | None
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        bind(two, dims_, shapes)
    assert hint is None or hint in (caught.value.hint or "")
    assert dims(two, "x") == ["batch", "seq", 4]


def test_a_shape_over_a_static_one_drops_what_the_file_said(text: Text, value_of: ValueOf) -> None:
    model = load(text("g (float[1, 3] x) => (float[1, 6] y) { h = Relu(x) y = Concat <axis = 1> (h, h) }"))
    bind(model, {}, {"x": (7, 5)})
    assert resolve(model).sizes(value_of(model, "y")) == (7, 10)


def test_a_static_model_says_what_else_to_do(text: Text) -> None:
    model = load(text("g (float[1, 3] x) => (float[1, 3] y) { y = Relu(x) }"))
    with pytest.raises(UsageError) as caught:
        bind(model, {"batch": 2}, {})
    assert "--shape" in (caught.value.hint or "")


def test_unnamed_dimensions_are_bound_by_a_shape_and_not_with_each_other(small: onnx.ModelProto) -> None:
    for dim in small.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    model = load(small)
    assert bind(model, {}, {"x": (2, 3)}) == {}
    assert dims(model, "x") == [2, 3]


def test_an_expression_of_bound_symbols_gets_its_value(small: onnx.ModelProto) -> None:
    small.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "2*seq + past"
    model = load(small)
    with pytest.raises(UsageError, match="'seq'"):
        bind(model, {"seq": 4}, {})
    other = ir.Value(name="o", shape=ir.Shape(["seq", "past"]), type=ir.TensorType(ir.DataType.FLOAT))
    model.graph.inputs.append(other)
    bind(model, {"seq": 4, "past": 3}, {})
    assert dims(model, "x") == [11, 3]


def test_initializers_are_no_free_inputs(text: Text) -> None:
    proto = text("g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }", ir_version=3)
    model = load(proto)
    assert [v.name for v in free_inputs(model)] == ["x"]
    with pytest.raises(UsageError):
        bind(model, {}, {"w": (3,)})


def test_symbols_come_once_in_order(two: ir.Model) -> None:
    assert symbols(two.graph.inputs) == ["batch", "seq"]


# What a user is told to bind.


def unbound(**shapes: list[int | str | None]) -> Unbound:
    return Unbound.from_inputs(ir.Value(name=name, shape=ir.Shape(shape)) for name, shape in shapes.items())


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
    cache = ir.Value(name="past", shape=ir.Shape([1, 4, "past", 16]), type=ir.TensorType(ir.DataType.FLOAT))
    assert example([cache]) == "--dim past=64"
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
