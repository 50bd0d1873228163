"""What lives at once, for each way to add partial sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onnxtile import api
from onnxtile.system.errors import Infeasible
from onnxtile.tiling.limits import Limits

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench


def test_the_ways_differ_in_what_they_keep(bench: Bench) -> None:
    # A 16 × 16 result of 64 products: what lives is the operands (no bytes of the arena) and the partial sums of 1 KiB each.
    model = bench.case(op="MatMul", m=16, k=256, n=16, constants="ab").model()
    model.graph.node[0].input[0] = "x"
    model.graph.input.add().CopyFrom(model.graph.output[0])
    model.graph.input[0].name = "x"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 256
    del model.graph.initializer[0]
    found = api.tile(model, Limits.of(k=4), peaks=True, verify=False).peaks
    assert found is not None and list(found) == ["sum", "chain", "tree", "gemm"]
    block, partial = 16 * 4 * 4, 16 * 16 * 4
    # All 64 partial sums live together before one Sum; a chain has two, Gemm adds the one before in its place.
    assert found["sum"]["layers"] > 64 * partial
    # Of the left operand one block is copied at a time.
    assert block <= found["gemm"]["layers"] <= found["chain"]["layers"] <= block + 3 * partial
    assert found["chain"]["layers"] <= found["tree"]["layers"] <= block + 8 * partial
    assert all(peak["model"] >= peak["layers"] for peak in found.values())


def test_they_are_shown_unasked_where_that_is_quick(bench: Bench) -> None:
    model = bench.case(op="MatMul", m=5, k=8, n=8, constants="b").model()
    assert api.tile(model, Limits.of(max=4), peaks=None).peaks
    assert api.tile(model, Limits.of(max=4), peaks=None, verify=False).peaks is None
    assert api.tile(model, Limits.of(max=4)).peaks is None
    assert api.tile(model, Limits.of(max=8), peaks=True).peaks is None, "nothing is tiled"


def test_a_model_without_a_plan_is_tiled_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise Infeasible("no plan")

    monkeypatch.setattr("onnxtile.planning.model_plan.plan_model", fails)
    model = bench.case(op="MatMul", m=5, k=8, n=8, constants="b").model()
    assert api.tile(model, Limits.of(max=4), peaks=None).peaks is None
    with pytest.raises(Infeasible, match="no plan"):
        api.tile(model, Limits.of(max=4), peaks=True)
