"""Check the proof of the bytes copied in a certificate of `onnxtile plan --movement`: `python check_movement.py CERTIFICATE.json`.

It needs Python alone. A tensor that waits between two uses takes bytes of the fast memory, or it leaves: then it is copied back, and once
to the slow memory unless its bytes are there anyway. Inputs, outputs and streamed constants are, and are copied once in any case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError
CLAIMS = {
    "lower_bound": "of whole tensors in this order",
    "parts_bound": "in this order",
    "any_order_bound": "in any order",
}


class Wait(NamedTuple):
    """The kernels from `first` up to `end` between two uses of the tensor numbered `tensor`, of `size` bytes; `bytes` are copied back."""

    tensor: int
    first: int
    end: int
    size: int
    bytes: int


class Copies:
    """The waits of tensors, the bytes `over` the capacity beside each kernel, and `stores`, those written for a tensor that leaves."""

    def __init__(self, said: Mapping[str, Any], *, in_parts: bool) -> None:
        account, over, uses = said["account"], [], dict[str, list[int]]()
        size, moved, (before, *kernels, after) = account["bytes"], account["moved"], account["nodes"]
        for at, node in enumerate(kernels):
            for name in node["uses"]:
                uses.setdefault(name, []).append(at)
        for at, node in enumerate(kernels):
            shared = [name for name in node["over"] if name in node["joins"] or uses[name][-1] == at]
            spare = min(node["spares"], sum(size[name] for name in shared))
            over.append(sum(size[name] for name in node["uses"]) + node["workspace"] - spare - said["capacity"])
        self.forced = sum(moved[name] for name in before["uses"] if name in uses)
        self.forced += account["handed"] - account["twice"][in_parts]
        outside, waiting = {*before["uses"], *after["uses"]}, moved if in_parts else size
        self.stores = [0 if name in outside else moved[name] for name in uses]
        pairs = ((name, number, *pair) for number, name in enumerate(uses) for pair in pairwise(uses[name]))
        self.waits = [Wait(v, one + 1, two, waiting[name], moved[name]) for name, v, one, two in pairs if two > one + 1]
        change = [0] * (len(kernels) + 1)
        for wait in self.waits:
            change[wait.first] += wait.size
            change[wait.end] -= wait.size
        self.over = [held + one for held, one in zip(accumulate(change), over, strict=False)]

    def priced(self, prices: Mapping[str, int], unit: int, leaves: Mapping[int, bool]) -> int:
        """Return bytes that every choice copies in which waiting tensors leave or stay, as `leaves` says by number.

        A byte beside a kernel has a price, of which `unit` are a copied byte. What does not fit costs at least the prices, less what each
        tensor saves that leaves where that costs more than a copy.
        """
        if any(type(price) is not int or price < 0 for price in (*prices.values(), unit - 1)):
            raise ValueError("a price is no whole number")
        price = [prices.get(str(at), 0) for at in range(len(self.over))]
        sums, costs = [0, *accumulate(price)], [unit * store for store in self.stores]
        for number, (tensor, first, end, size, again) in enumerate(self.waits):
            cost = unit * again - size * (sums[end] - sums[first])
            costs[tensor] += cost if leaves.get(number) else min(0, cost) * (number not in leaves)
        stored = {self.waits[number].tensor for number, leave in leaves.items() if leave}
        total = sum(map(mul, price, self.over)) + sum(
            cost if v in stored else min(0, cost) for v, cost in enumerate(costs)
        )
        return int(-(-total // unit))

    def is_more(self, proof: Any, unit: int, limit: int, leaves: Mapping[int, bool]) -> bool:
        """Return whether every choice copies more than `limit` bytes: a wait in which a tensor stays or leaves has a proof for both."""
        if "wait" in proof:
            sides = (proof["stays"], False), (proof["leaves"], True)
            return all(self.is_more(side, unit, limit, {**leaves, proof["wait"]: leave}) for side, leave in sides)
        return self.priced(proof["prices"], unit, leaves) > limit


def is_proved(said: Mapping[str, Any], name: str) -> bool:
    """Return whether the certificate proves the bytes of the claim `name`."""
    claim = said["bounds"][name]
    if type(said["capacity"]) is not int or type(claim["bytes"]) is not int:
        raise ValueError("the capacity or the bytes are no whole number")
    copies, proof = Copies(said, in_parts=name != "lower_bound"), claim.get("proof")
    limit = claim["bytes"] - copies.forced - 1
    if limit < 0 or name == "any_order_bound" or proof is None:
        return bool(limit < 0)
    # A tensor stays or leaves as a whole in the first bound alone.
    return (name == "lower_bound" or "wait" not in proof) and copies.is_more(proof, claim["unit"], limit, {})


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
