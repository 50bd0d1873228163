"""The memory planning algorithm for ExecuTorch: offsets of tensors by memory and live range; parts of tensors stay inside them."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest

from onnxtile.deployment.executorch import memory_planning_algo
from onnxtile.system.errors import UsageError, of_extra


@dataclass(eq=False)
class Spec:
    """The fields of ExecuTorch's TensorSpec that an algorithm uses."""

    size: int
    lifetime: list[int | None]
    mem_id: int | None = None
    storage_base: Spec | None = None
    storage_base_offset: int = 0
    allocated_memory: int = field(init=False)

    def realign(self, alignment: int) -> int:
        self.allocated_memory = -(-self.size // alignment) * alignment
        return self.allocated_memory


@dataclass
class Placed:
    """ExecuTorch's SpecAllocResult."""

    mem_id: int
    mem_obj_id: int
    mem_offset: int


@dataclass
class Found:
    """ExecuTorch's MemoryAlgoResult."""

    spec_dict: dict[Spec, Placed]
    bufsizes: list[int]


@pytest.fixture(autouse=True)
def _executorch(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("executorch.exir.memory_planning")
    module.MemoryAlgoResult, module.SpecAllocResult = Found, Placed
    for name in ("executorch", "executorch.exir"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def planned(specs: list[Spec], held: list[int] | None = None, padding: int = 0) -> Found:
    found: Found = memory_planning_algo(16, specs, types.SimpleNamespace(input_mem_buffer_sizes=held), None, padding)
    assert list(found.spec_dict) == list(dict.fromkeys(specs))
    for spec, place in found.spec_dict.items():
        assert 0 <= place.mem_offset <= found.bufsizes[place.mem_id] - padding - spec.allocated_memory
        assert place.mem_offset % 16 == 0
    return found


def test_tensors_that_live_at_once_share_no_byte_and_others_do() -> None:
    specs = [Spec(100, [0, 2]), Spec(40, [2, 3]), Spec(100, [3, 5]), Spec(8, [5, 6])]
    found = planned(specs)
    assert found.bufsizes == [0, 112 + 48]
    for one, other in combinations(specs, 2):
        if one.lifetime[0] <= other.lifetime[1] and other.lifetime[0] <= one.lifetime[1]:  # type: ignore[operator]
            below, above = sorted((one, other), key=lambda spec: found.spec_dict[spec].mem_offset)
            assert found.spec_dict[below].mem_offset + below.allocated_memory <= found.spec_dict[above].mem_offset


def test_a_part_is_inside_its_tensor_which_lives_as_long() -> None:
    whole = Spec(64, [0, 1])
    part = Spec(16, [1, 5], storage_base=whole, storage_base_offset=32)
    inner = Spec(8, [2, 6], storage_base=part, storage_base_offset=0)
    later = Spec(64, [4, 6])
    found = planned([inner, part, later, whole])
    start = found.spec_dict[whole].mem_offset
    assert [found.spec_dict[spec].mem_offset - start for spec in (part, inner)] == [32, 32]
    assert found.bufsizes == [0, 128]


def test_each_memory_has_a_plan_above_what_submodules_hold() -> None:
    fast, slow = Spec(32, [0, 1], mem_id=2), Spec(32, [0, 1])
    found = planned([fast, slow], held=[0, 64, 16], padding=64)
    assert found.bufsizes == [0, 64 + 32 + 64, 16 + 32 + 64]
    assert (found.spec_dict[fast].mem_id, found.spec_dict[fast].mem_offset) == (2, 16)
    assert (found.spec_dict[slow].mem_id, found.spec_dict[slow].mem_offset) == (1, 64)


def test_without_tensors_nothing_is_planned() -> None:
    assert planned([]).bufsizes == [0, 0]


def test_a_part_of_a_tensor_without_a_place_is_refused() -> None:
    with pytest.raises(UsageError, match="part of one without a place"):
        planned([Spec(8, [0, 1], storage_base=Spec(8, [0, 1]))])


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "executorch.exir.memory_planning", None)
    with pytest.raises(UsageError, match="the extra executorch is not installed") as caught:
        memory_planning_algo(16, [], None, None)
    assert caught.value.hint == of_extra("executorch")
