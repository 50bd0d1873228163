"""A memory planning algorithm for ExecuTorch: its tensors, their live ranges and its memories, with the offsets of onnxtile's planners.

ExecuTorch runs such algorithms while it lowers a program (executorch/exir/memory_planning.py in https://github.com/pytorch/executorch).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.planning.problem_plan import plan_buffers
from onnxtile.system.errors import UsageError, of_extra

_FIRST_MEMORY = 1
"""The number of the memory of tensors that no pass has given another; 0 stands for constants."""


def memory_planning_algo(
    alignment: int, specs: Iterable[Any], graph_module: Any, _graph_signature: Any, extra_padding: int = 0
) -> Any:
    """Return a `MemoryAlgoResult` with the offsets of `specs`: an algorithm for ExecuTorch's `MemoryPlanningAlgorithmSuite`.

    `alignment`, sizes and offsets are in bytes. `specs` are `TensorSpec`s with their live ranges. `graph_module` says how many bytes of
    each memory its submodules hold; tensors lie above. `extra_padding` is added to each memory. Raises UsageError where the extra
    executorch is not installed, or a tensor is part of one that is not planned.
    """
    algo_result, spec_result = _executorch()
    tensors = list(dict.fromkeys(specs))
    for spec in tensors:
        spec.realign(alignment)
    bases = {spec: _base(spec) for spec in tensors}
    if not bases.keys() >= {base for base, _ in bases.values()}:
        raise UsageError("ExecuTorch asks for the place of a tensor that is part of one without a place")
    held = list(getattr(graph_module, "input_mem_buffer_sizes", None) or ())
    memories = {spec: spec.mem_id or _FIRST_MEMORY for spec, (base, _) in bases.items() if base is spec}
    sizes = [0] * (max(memories.values(), default=_FIRST_MEMORY) + 1)
    address_of: dict[Any, tuple[int, int]] = {}
    for memory in sorted(set(memories.values())):
        owners = [spec for spec, number in memories.items() if number == memory]
        below = held[memory] if memory < len(held) else 0
        size, offsets = _planned(owners, bases, alignment)
        sizes[memory] = below + size + extra_padding
        address_of.update((spec, (number, below + offset)) for number, (spec, offset) in enumerate(offsets.items()))
    results = {}
    for spec, (base, offset) in bases.items():
        number, start = address_of[base]
        results[spec] = spec_result(mem_id=memories[base], mem_obj_id=number, mem_offset=start + offset)
    return algo_result(results, sizes)


def _executorch() -> tuple[Any, Any]:
    try:
        from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult
    except ModuleNotFoundError as error:
        raise UsageError("the extra executorch is not installed", hint=of_extra("executorch")) from error
    return MemoryAlgoResult, SpecAllocResult


def _base(spec: Any) -> tuple[Any, int]:
    """Return the tensor that owns the bytes of `spec`, and the offset of `spec` in it."""
    offset = 0
    while spec.storage_base is not None:
        offset += spec.storage_base_offset
        spec = spec.storage_base
    return spec, offset


def _planned(owners: list[Any], bases: dict[Any, tuple[Any, int]], alignment: int) -> tuple[int, dict[Any, int]]:
    """Return the bytes that `owners` take together, and the offset of each. A live range covers those of all parts of a tensor."""
    parts: dict[Any, list[Any]] = {}
    for spec, (base, _) in bases.items():
        parts.setdefault(base, []).append(spec)
    ranges = [[spec.lifetime for spec in parts[owner]] for owner in owners]
    end = max((last for lives in ranges for _, last in lives if last is not None), default=0)
    buffers = tuple(
        Buffer(
            str(number),
            owner.allocated_memory,
            min(0 if first is None else first for first, _ in lives),
            1 + max(end if last is None else last for _, last in lives),
        )
        for number, (owner, lives) in enumerate(zip(owners, ranges, strict=True))
    )
    plan = plan_buffers(Problem(buffers, alignment))
    offsets = {row.name: row.offset for row in plan.buffers}
    return plan.arena_size, {owner: offsets[str(number)] for number, owner in enumerate(owners)}
