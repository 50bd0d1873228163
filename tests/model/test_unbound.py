"""What a user is told to bind."""

import onnx_ir as ir
import pytest

from onnxtile.model.unbound import Unbound


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
