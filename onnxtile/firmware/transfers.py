"""Copies between two memories that run beside the kernels: before which step each is started, and before which it has ended.

The copies of a plan are made in their order, one at a time, by a driver such as that of a DMA. Each is started as early as the plan
allows, and is waited for as late as it allows. What is between is the driver's time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import onnx_ir as ir

from onnxtile.declare.plan_document import MemoryCopy
from onnxtile.report.c_header import filled
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class Transfer:
    """The copy `number` of a plan, in the step `step`. It starts before the kernel of `start`, and ends before that of `end`."""

    number: int
    step: int
    start: int
    end: int


def transfers_of(copies: Sequence[MemoryCopy], steps: int, by_kernels: Collection[int]) -> Iterator[Transfer]:
    """Yield the transfers of `copies`, in their order, of a schedule of `steps` nodes.

    A kernel makes the copies in the steps `by_kernels`: all transfers before it have ended then, and none after it has started.
    """
    starts, ends = list[int](), list[int]()
    at = 0
    for copy in copies:
        at = max(at, copy.step if copy.step in by_kernels else max(copy.target_free, copy.source_ready))
        starts.append(at)
    at = steps
    for copy in reversed(copies):
        limits = [copy.before, None if copy.source_until is None else copy.source_until + 1]
        limits += [copy.step] if copy.step in by_kernels else []
        at = min([at, *(limit for limit in limits if limit is not None)])
        ends.append(at)
    for number, (copy, start, end) in enumerate(zip(copies, starts, reversed(ends), strict=True)):
        if copy.step not in by_kernels:
            yield Transfer(number, copy.step, start, end)


class TransferSchedule:
    """The transfers of a plan by the steps before which they start, and before which they have ended; `nodes` has those of all steps.

    Those of the step after the last end with the run.
    """

    def __init__(self, copies: Sequence[MemoryCopy], nodes: Sequence[ir.Node]) -> None:
        by_kernels = {copy.step for copy in copies if len(nodes[copy.step].inputs) > 1}
        transfers = list(transfers_of(copies, len(nodes), by_kernels))
        self.steps = frozenset(transfer.step for transfer in transfers)
        self.starting = {step: list(some) for step, some in groupby(transfers, lambda transfer: transfer.start)}
        self.ending = {step: list(some) for step, some in groupby(transfers, lambda transfer: transfer.end)}


# The functions in C that make them.

DECLARED = """\
/* Copies between the memories. Define both functions to make them by a driver, such as that of a DMA: these here are weak.
 * Copies are made in the order of their starts. Where a compiler has no weak functions, define ${P}_OWN_COPY. */
void ${p}_copy(uint32_t id, void *target, const void *source, size_t size); /* starts a copy */
void ${p}_wait(uint32_t id); /* returns when the copy has ended */
"""
DEFINED = """\
#if defined(__GNUC__)
#define ${P}_WEAK __attribute__((weak))
#else
#define ${P}_WEAK
#endif
#ifndef ${P}_OWN_COPY
${P}_WEAK void ${p}_copy(uint32_t id, void *target, const void *source, size_t size) {
    (void)id;
    memcpy(target, source, size);
}
${P}_WEAK void ${p}_wait(uint32_t id) { (void)id; }
#endif
"""
_DRIVER = """\
#include "${title}.h"

#include <string.h>

/* Of three runs the first makes each copy when it starts, the second when it has to have ended, the third every second one so. */
static struct {
    uint32_t id;
    void *target;
    const void *source;
    size_t size;
} started[${count}];
static uint32_t made, count, run;

static void make(uint32_t end) {
    for (; made < end; ++made) memcpy(started[made].target, started[made].source, started[made].size);
}

void ${p}_copy(uint32_t id, void *target, const void *source, size_t size) {
    if (count && id <= started[count - 1u].id) {
        made = count = 0;
        ++run;
    }
    started[count].id = id;
    started[count].target = target;
    started[count].source = source;
    started[count++].size = size;
    if (run % 3u == 0u || (run % 3u == 2u && id % 2u == 0u)) make(count);
}

void ${p}_wait(uint32_t id) {
    uint32_t end = made;
    while (end < count && started[end].id <= id) ++end;
    make(end);
}
"""


def proving_driver(title: str, name: str, count: int) -> str:
    """Return a driver in C of a program with `count` transfers, which makes them early in one run and late in the next."""
    return filled(_DRIVER, name.upper(), title=title, count=count) + "\n"
