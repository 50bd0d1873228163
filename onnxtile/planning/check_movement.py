"""Check the proof of the bytes copied in a certificate of `onnxtile plan --movement`: `python check_movement.py CERTIFICATE.json`.

It needs Python alone. A tensor that waits between two uses takes bytes of the fast memory, or it leaves: then it is copied back, and once
to the slow memory unless its bytes are there anyway. Inputs, outputs and streamed constants are, and are copied once in any case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

MOST_WAYS = 200_000
WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError
CLAIMS = {
    "lower_bound": "of whole tensors in this order",
    "parts_bound": "in this order",
    "any_order_bound": "in any order",
}


class Wait(NamedTuple):
    """The kernels from `first` to `last` between two uses of the tensor numbered `tensor`, of `size` bytes; `bytes` are copied back."""

    tensor: int
    first: int
    last: int
    size: int
    bytes: int


class Copies:
    """The gaps of tensors, the bytes `free` beside each kernel, those `over` them, and `stores`, those written for a tensor that leaves."""

    def __init__(self, said: Mapping[str, Any], *, in_parts: bool) -> None:
        account, capacity = said["account"], said["capacity"]
        if type(capacity) is not int:
            raise ValueError("the capacity is no whole number")
        size, moved, (before, *kernels, after) = account["bytes"], account["moved"], account["nodes"]
        uses: dict[str, list[int]] = {name: [] for name in size}
        for at, node in enumerate(kernels):
            for name in node["uses"]:
                uses[name].append(at)
        outside, parts = {*before["uses"], *after["uses"]}, moved if in_parts else size
        self.forced = sum(moved[name] for name in before["uses"] if uses[name])
        self.forced += account["handed"] - account["twice"][in_parts]
        self.stores = [0 if name in outside else moved[name] for name in uses]
        waits = ((v, number, *pair) for number, v in enumerate(uses) for pair in pairwise(uses[v]))
        self.gaps = [
            Wait(number, one + 1, two - 1, parts[v], moved[v]) for v, number, one, two in waits if two > one + 1
        ]
        self.free, change = [], [0] * (len(kernels) + 1)
        for at, node in enumerate(kernels):
            spare = min(node["spares"], sum(size[name] for name in node["over"] if uses[name][-1] == at))
            self.free.append(capacity - sum(size[v] for v in node["uses"]) - node["workspace"] + spare)
        for gap in self.gaps:
            change[gap.first] += gap.size
            change[gap.last + 1] -= gap.size
        self.over = [held - free for held, free in zip(accumulate(change), self.free, strict=False)]

    def priced(self, prices: Mapping[str, int], unit: int) -> int:
        """Return bytes that every choice copies, by the prices of a byte beside each kernel, of which `unit` are a copied byte.

        What does not fit costs at least the prices, less what each tensor saves that leaves in the gaps that cost more than a copy.
        """
        if any(type(price) is not int or price < 0 for price in (*prices.values(), unit - 1)):
            raise ValueError("a price is no whole number")
        price = [prices.get(str(at), 0) for at in range(len(self.free))]
        sums, saved = [0, *accumulate(price)], [unit * store for store in self.stores]
        for gap in self.gaps:
            saved[gap.tensor] += min(0, unit * gap.bytes - gap.size * (sums[gap.last + 1] - sums[gap.first]))
        total: int = sum(map(mul, price, self.over)) + sum(min(0, one) for one in saved)
        return -(-total // unit)

    def is_searched(self, limit: int) -> bool:
        """Return whether every choice of the gaps in which tensors leave copies more than `limit` bytes."""
        ways, tried = {(0, 0): 0}, 0
        for at in [at for at, over in enumerate(self.over) if over > 0]:
            gaps = [number for number, gap in enumerate(self.gaps) if gap.first <= at <= gap.last]
            gaps.sort(key=lambda number: -self.gaps[number].size)
            later = sum({1 << gap.tensor for gap in self.gaps if gap.last > at})
            here, found = sum(1 << gap for gap in gaps), dict[tuple[int, int], int]()
            for (left, stored), cost in ways.items():
                there = [gap for gap in gaps if not left >> gap & 1]
                for chosen in self.least(there, sum(self.gaps[gap].size for gap in there) - self.free[at]):
                    new = {
                        v for v in (self.gaps[gap].tensor for gap in chosen) if not stored >> v & 1 and self.stores[v]
                    }
                    now = cost + sum(self.gaps[gap].bytes for gap in chosen) + sum(self.stores[v] for v in new)
                    key = left & here | sum(1 << gap for gap in chosen), (stored | sum(1 << v for v in new)) & later
                    if now <= limit and now < found.get(key, now + 1):
                        found[key] = now
                    tried += 1
                    if tried > MOST_WAYS:
                        return False
            ways = found
        return not ways

    def least(self, gaps: list[int], over: int) -> Iterator[tuple[int, ...]]:
        """Yield each set of `gaps`, the largest first, that has at least `over` bytes, and fewer without any one of them."""
        if over <= 0:
            yield ()
        elif sum(self.gaps[gap].size for gap in gaps) >= over:
            yield from ((gaps[0], *others) for others in self.least(gaps[1:], over - self.gaps[gaps[0]].size))
            yield from self.least(gaps[1:], over)


def is_proved(said: Mapping[str, Any], name: str) -> bool:
    """Return whether the certificate proves the bytes of the claim `name`."""
    claim, copies = said["bounds"][name], Copies(said, in_parts=name != "lower_bound")
    limit = claim["bytes"] - copies.forced - 1
    if type(limit) is not int:
        raise ValueError("the bytes are no whole number")
    if limit < 0 or name == "any_order_bound":
        return limit < 0
    if "prices" in claim:
        return copies.priced(claim["prices"], claim["unit"]) > limit
    return name == "lower_bound" and copies.is_searched(limit)


def main(certificate: str) -> str:
    """Return a line with the bytes that are proved. Raises ValueError where one of the claims does not hold."""
    said = json.loads(Path(certificate).read_text(encoding="utf-8"))["movement"]
    if said["reason"]:
        raise ValueError(said["reason"])
    for name, claim in said["bounds"].items():
        if claim["reason"] or not is_proved(said, name):
            raise ValueError(f"{name}: {claim['reason'] or 'the proof does not hold'}")
    return ", ".join(f"{said['bounds'][name]['bytes']} bytes {words}" for name, words in CLAIMS.items())


if __name__ == "__main__":
    try:
        sys.stdout.write(f"accepted: no plan copies fewer than {main(sys.argv[1])}\n")
    except WRONG as error:
        sys.exit(f"refused: {ascii(str(error))[1:-1][:300]}")
