"""Meta-ops chosen by memory: the fused model needs no larger arena than the model."""

import onnx
import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.system.errors import UsageError
from onnxtile.verbs.flows import fuse as memory_choice
from tests.patterns.conftest import Tiny

PATTERNS: list[str | tuple[str, str]] = [("Shifted", "ReduceMean-*>Add"), "SiLU"]
# Node by node, `a` is gone before `b` is made; as one kernel, ReduceMean and Add need both.
BODY = """
g = Sigmoid(x)
s = Mul(x, g)
a = Tile(s, [32, 1])
m = ReduceMean<axes=[0]>(a)
b = Tile(x, [32, 1])
y = Add(b, m)
"""


def _arena(model: onnx.ModelProto | ir.Model) -> int:
    return sum(arena.size for arena in api.plan(model, verify=False).plan.arenas)


def test_a_kernel_that_needs_more_memory_is_left_out_and_no_other() -> None:
    model = Tiny.model(BODY, shape="4,64")
    before = _arena(model)
    assert _arena(api.fuse(model, PATTERNS).model) > before
    result = api.fuse(model, PATTERNS, for_memory=True)
    shifted, silu = result.patterns
    assert [one.reason for one in shifted.refused] == ["as one kernel it makes the arena larger"]
    assert len(silu.calls) == 1
    after = _arena(result.model)
    assert after <= before
    assert result.to_dict()["arena"] == {"before": before, "after": after, "reason": None}


def test_without_enough_plans_nothing_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_choice, "_ROUNDS", 1)
    result = api.fuse(Tiny.model(BODY, shape="4,64"), PATTERNS, for_memory=True)
    assert result.fused == 0
    assert result.arena is not None and result.arena.before == result.arena.after


def test_open_sizes_are_those_of_the_verification() -> None:
    model = Tiny.model(BODY, shape="4,64")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "m"
    for one in model.graph.value_info:
        one.type.tensor_type.ClearField("shape")
    result = api.fuse(model, PATTERNS, for_memory=True)
    assert result.arena is not None and result.arena.after is not None and result.arena.before is not None
    assert result.arena.after <= result.arena.before


def test_operators_in_the_place_of_meta_ops_are_not_chosen_by_memory() -> None:
    with pytest.raises(UsageError, match="for_memory chooses meta-ops, and lower replaces them"):
        api.fuse(Tiny.model(BODY, shape="4,64"), PATTERNS, for_memory=True, lower="onnx")
