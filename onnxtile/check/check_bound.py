"""Check the proof in a certificate of `onnxtile plan` by arithmetic: `python check_bound.py CERTIFICATE.json`. It needs Python alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

WRONG = ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError, MemoryError
MOST_SETS = 100_000
SCOPES = {"any order", "this order", "this order and its aliases", "this order, its aliases and whole units"}


class Account:
    """Who uses which bytes. Nodes are listed in an order that can run, each with those that it waits for; sets of nodes are bits."""

    def __init__(self, account: Mapping[str, Any]) -> None:
        self.bytes, self.nodes, count = account["bytes"], account["nodes"], len(account["nodes"])
        self.users, self.before, self.later = dict.fromkeys(self.bytes, 0), [0] * count, [0] * count
        self.after: list[list[int]] = [[] for _ in self.nodes]
        for at, node in enumerate(self.nodes):
            for name in node["uses"]:
                self.users[name] |= 1 << at
            for other in node["waits"]:
                self.before[at] |= self.before[other] | 1 << other
                self.after[other].append(at)
        for at in reversed(range(count)):
            for other in self.nodes[at]["waits"]:
                self.later[other] |= self.later[at] | 1 << at

    def unused(self, names: Iterable[str], nodes: int = 0) -> int:
        """Return the bytes of the tensors that none of `nodes` uses."""
        return sum(int(self.bytes[name]) for name in names if not self.users[name] & nodes)

    def during(self, at: int, live: int, later: int) -> int:
        """Return the bytes that a node needs: live tensors and a workspace, without operands that it may write over, unused `later`."""
        node = self.nodes[at]
        return live + int(node["workspace"] - min(node["spares"], self.unused(node["over"], later)))

    def always(self, at: int) -> int:
        """Return the bytes that a node needs in every order: of the tensors that it uses, or that nodes before and after it use."""
        before, later = self.before[at], self.later[at]
        crossing = (name for name, users in self.users.items() if users & before and users & later)
        return self.during(at, self.unused({*self.nodes[at]["uses"], *crossing}), later)

    def is_exceeded(self, limit: int, *, backward: bool, most: int = MOST_SETS) -> bool:
        """Return whether every order needs more than `limit` bytes: sets of nodes grow, from the first or the last, never to all of them.

        A node that leaves no more live bytes than before runs at once: no later node needs more bytes than it would without it.
        """
        needs, nexts = (self.later, [node["waits"] for node in self.nodes]) if backward else (self.before, self.after)
        todo, seen, whole = [(0, 0, [*range(len(self.nodes))], 0)], {0}, (1 << len(self.nodes)) - 1
        while todo and whole not in seen and len(seen) <= most:
            (live, done, others, last), ways = todo.pop(), []
            ready = [at for at in (*others, *nexts[last]) if not done >> at & 1 and not needs[at] & ~done]
            for at in ready:
                now, uses = done | 1 << at, self.nodes[at]["uses"]
                held = live + self.unused(uses, done)
                if self.during(at, held, done if backward else whole & ~now) <= limit:
                    ways.append((held - self.unused(uses, whole & ~now), now, ready, at))
            ways = [min(ways)] if ways and min(ways)[0] <= live else ways
            todo += [way for way in ways if way[1] not in seen]
            seen |= {way[1] for way in ways}
        return not todo and whole not in seen


def is_too_high(tree: Any, rows: Mapping[str, Any], limit: int, below: frozenset[tuple[str, str]]) -> bool:
    """Return whether rows need more than `limit` bytes where the first of each pair in `below` is below the second.

    Rows live from step `first` to `last`. A branch puts one of two rows that live at once below the other. Each branch ends in a step whose
    rows take more bytes, or in a chain of rows, each above the last. A chain ends above the limit, or above the offset of a pinned row.
    """
    if "pair" in tree:
        low, high = tree["pair"]
        starts, ends = zip(*((rows[name]["first"], rows[name]["last"]) for name in (low, high)), strict=True)
        both = zip(tree["sides"], ((low, high), (high, low)), strict=True)
        is_pair = low != high and max(starts) <= min(ends)
        return is_pair and all(is_too_high(side, rows, limit, below | {pair}) for side, pair in both)
    if "step" in tree:
        return bool(sum(row["bytes"] for row in rows.values() if row["first"] <= tree["step"] <= row["last"]) > limit)
    *lower, last = [rows[name] for name in tree["chain"]]
    end = (lower or [last])[0].get("pin", 0) + sum(row["bytes"] for row in lower)
    return {*pairwise(tree["chain"])} <= below and bool(end + last["bytes"] > limit or end > last.get("pin", end))


def is_proved(certificate: Mapping[str, Any]) -> bool:
    """Return whether more bytes are needed than the largest size below that of the arena: sizes are multiples of the alignment."""
    proof, arena, unit = certificate["proof"], certificate["arena"], certificate["alignment"]
    if type(arena) is not int or type(unit) is not int or min(arena, unit) < 1:
        raise ValueError("the size of the arena or the alignment is no positive whole number")
    limit = (arena - 1) // unit * unit
    if not all(is_proved(body) for body in certificate.get("bodies", ())):
        return False
    if "tree" in proof:
        return is_too_high(proof["tree"], certificate["rows"], limit, frozenset())
    account = Account(certificate["account"])
    if "node" in proof:
        return account.always(proof["node"]) > limit
    most = min(proof.get("most", MOST_SETS), MOST_SETS)
    return account.is_exceeded(limit, backward=proof["backward"], most=most)


if __name__ == "__main__":
    try:
        certificate = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        if certificate["scope"] not in SCOPES or certificate["proof"] is None or not is_proved(certificate):
            raise ValueError(certificate["reason"] or "the proof does not hold")
        sys.stdout.write(f"accepted: no plan of {certificate['scope']} takes fewer than {certificate['arena']} bytes\n")
    except WRONG as error:
        sys.exit(f"refused: {ascii(str(error))[1:-1][:300]}")
