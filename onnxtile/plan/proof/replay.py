"""Replays what happens to the bytes of one buffer, step by step, and finds every read of what is no longer there.

Each byte remembers the tensor whose kernel wrote it last. A view, and a part that is taken or joined in place, writes nothing and
expects what lies there when it comes to be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from onnxtile.plan.proof.tenant import Failure, Tenant

_Cells = npt.NDArray[np.int64]

_HELD = {"view", "cut"}


def replay(tenants: Sequence[Tenant], by_name: Mapping[str, Tenant]) -> Iterator[Failure]:
    """Yield a failure for each tensor of a buffer that is read after its bytes have changed, or overwritten while it is read."""
    buffer = _Buffer(tenants, by_name)
    steps: dict[int, list[int]] = {}
    for i, tenant in enumerate(tenants):
        for step in sorted(set(tenant.steps)):
            steps.setdefault(step, []).append(i)
    for step in sorted(steps):
        born = [i for i in steps[step] if min(tenants[i].steps) == step]
        read = [i for i in steps[step] if min(tenants[i].steps) < step]
        yield from buffer.changed(read, step)
        yield from buffer.write(born, read, step)
        yield from buffer.changed([i for i in (*born, *read) if i in born or tenants[i].kept], step)


class _Buffer:
    """The bytes between any two places at which a tensor begins or ends are a cell, with the number of the last one that wrote it."""

    def __init__(self, tenants: Sequence[Tenant], by_name: Mapping[str, Tenant]) -> None:
        self._tenants = tenants
        self._by_name = by_name
        cuts = sorted({edge for tenant in tenants for edge in (tenant.offset, tenant.offset + tenant.size)})
        self._cells: _Cells = np.full(len(cuts), -1, np.int64)
        self._spans = {t.name: (bisect_left(cuts, t.offset), bisect_left(cuts, t.offset + t.size)) for t in tenants}
        self._expected: dict[int, _Cells] = {}

    def changed(self, numbers: Sequence[int], step: int) -> Iterator[Failure]:
        """Yield which of the tenants do not find their bytes as they left them."""
        for i in numbers:
            tenant = self._tenants[i]
            found, expected = self._of(tenant), self._expected.get(i)
            if expected is None or not np.array_equal(found, expected):
                new = found if expected is None else found[found != expected]
                other = next((self._tenants[j] for j in new.tolist() if j not in {i, -1}), tenant)
                yield Failure(f"{tenant.name!r} is overwritten by {other.name!r}", (tenant.name, other.name), step)

    def write(self, born: Sequence[int], read: Sequence[int], step: int) -> Iterator[Failure]:
        """Let the tenants `born` come to be, while `read` are read."""
        for i in born:
            tenant = self._tenants[i]
            written = self._written(tenant)
            over = {take.source for take in tenant.takes if take.rule == "in place"}
            for j in read:
                other = self._tenants[j]
                if other.name not in over and written & self._range(other):
                    reason = f"{tenant.name!r} is written over {other.name!r}, which is read in the same step"
                    yield Failure(reason, (tenant.name, other.name), step)
            self._cells[sorted(written)] = i
        for i in born:
            self._expected[i] = self._of(self._tenants[i]).copy()
            if self._lost(i):
                reason = f"{self._tenants[i].name!r} is written over in the step that makes it"
                yield Failure(reason, (self._tenants[i].name,), step)

    def _lost(self, i: int) -> bool:
        mine = self._written(self._tenants[i])
        return any(self._cells[cell] != i for cell in mine)

    def _written(self, tenant: Tenant) -> set[int]:
        """Return the cells that the node of `tenant` writes: none of a view, of a result of Concat those that are not there yet."""
        if any(take.rule in _HELD for take in tenant.takes):
            return set()
        there = [self._by_name[take.source] for take in tenant.takes if take.rule == "join"]
        return self._range(tenant).difference(*(self._range(source) for source in there if source.name in self._spans))

    def _range(self, tenant: Tenant) -> set[int]:
        return set(range(*self._spans[tenant.name]))

    def _of(self, tenant: Tenant) -> _Cells:
        return self._cells[slice(*self._spans[tenant.name])]
