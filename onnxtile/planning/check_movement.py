"""Check the proof of the bytes copied in a certificate of `onnxtile plan --movement`: `python check_movement.py CERTIFICATE.json`.

It needs Python alone. A tensor that waits between two uses takes bytes of the fast memory, or it leaves: then it is copied back, and once
to the slow memory unless its bytes are there anyway. Inputs, outputs and streamed constants are, and are copied once in any case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import accumulate, pairwise, starmap
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
    """The waits of tensors, the bytes `over` the capacity beside each kernel, and `stores`, those written for a tensor that leaves.

    `begins` has the first kernel of each tensor.
    """

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
        self.begins = [places[0] for places in uses.values()]
        pairs = ((name, number, *pair) for number, name in enumerate(uses) for pair in pairwise(uses[name]))
        self.waits = [Wait(v, one + 1, two, waiting[name], moved[name]) for name, v, one, two in pairs if two > one + 1]
        change = [0] * (len(kernels) + 1)
        for wait in self.waits:
            change[wait.first] += wait.size
            change[wait.end] -= wait.size
        self.over = [held + one for held, one in zip(accumulate(change), over, strict=False)]

    def priced(self, prices: Mapping[str, int], unit: int, leaves: Mapping[int, bool], kernels: range) -> int:
        """Return bytes that every choice copies in which waiting tensors leave or stay, as `leaves` says by number.

        They are those of waits and tensors that begin at `kernels`. A byte beside each of these has a price, of which `unit` are a copied
        byte. What does not fit costs at least the prices, less what each tensor saves that leaves where that costs more than a copy.
        """
        if any(type(price) is not int or price < 0 for price in (*prices.values(), unit - 1)):
            raise ValueError("a price is no whole number")
        price = [prices.get(str(at), 0) * (at in kernels) for at in range(len(self.over))]
        costs = [unit * store * (at in kernels) for store, at in zip(self.stores, self.begins, strict=True)]
        sums = [0, *accumulate(price)]
        for number, (tensor, first, end, size, again) in enumerate(self.waits):
            cost = unit * again * (first in kernels) - size * (sums[end] - sums[first])
            costs[tensor] += cost if leaves.get(number) else min(0, cost) * (number not in leaves)
        stored = {self.waits[number].tensor for number, leave in leaves.items() if leave}
        total = sum(map(mul, price, self.over)) + sum(
            cost if v in stored else min(0, cost) for v, cost in enumerate(costs)
        )
        return int(-(-total // unit))

    def is_more(self, proof: Any, unit: int, limit: int, leaves: Mapping[int, bool], kernels: range) -> bool:
        """Return whether every choice copies more than `limit` bytes of waits and tensors that begin at `kernels`.

        A `wait` in which a tensor stays or leaves has a proof for both. The kernels up to each `end` have a proof of `bytes` of their own.
        """
        if "wait" in proof:
            sides = [(proof[side], {**leaves, proof["wait"]: side == "leaves"}) for side in ("stays", "leaves")]
            return all(self.is_more(side, unit, limit, chosen, kernels) for side, chosen in sides)
        if "parts" not in proof:
            return self.priced(proof["prices"], unit, leaves, kernels) > limit
        ends = [kernels.start, *(part["end"] for part in proof["parts"])]
        sizes = [part["bytes"] for part in proof["parts"]]
        if sorted(ends) != ends or ends[-1] > kernels.stop or any(type(size) is not int for size in sizes):
            return False
        parts = zip(proof["parts"], starmap(range, pairwise(ends)), strict=True)
        return sum(sizes) > limit and all(
            self.is_more(part["proof"], unit, part["bytes"] - 1, leaves, own) for part, own in parts
        )


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
    is_kind = name == "lower_bound" or proof.keys() == {"prices"}
    return is_kind and copies.is_more(proof, claim["unit"], limit, {}, range(len(copies.over)))


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
