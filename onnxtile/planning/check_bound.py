"""Check the bound of a certificate of `onnxtile plan` by arithmetic: `python check_bound.py CERTIFICATE.json`. It needs Python alone.

The certificate lists who uses which bytes, as `check_account.py` reads it from the model. Nodes wait for others, use tensors with bytes of
their own, and may write over some of them. Rows are tensors of one order: their bytes, and the steps from first to last in which they live.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

SCOPES = {"node": "any order", "search": "any order", "pin": "any order", "step": "this order"}
SCOPES |= dict.fromkeys(("rows", "offsets"), "this order and its aliases")


class ByteUsers:
    """`users` has the nodes that use each tensor as bits; above them a bit for the caller before the run, and one for after it."""

    def __init__(self, account: Mapping[str, Any]) -> None:
        self.size, self.nodes, self.users = account["sizes"], account["nodes"], dict.fromkeys(account["sizes"], 0)
        self.place = {node["name"]: at for at, node in enumerate(self.nodes)}
        self.waits: tuple[list[int], list[int]] = [], [0] * len(self.nodes)
        for at, node in enumerate(self.nodes):
            self.waits[0].append(sum(1 << self.place[other] for other in node["waits"]))
            for other in node["waits"]:
                self.waits[1][self.place[other]] |= 1 << at
        users = [*(node["uses"] for node in self.nodes), account["before"], account["after"]]
        for bit, names in enumerate(users):
            for name in names:
                self.users[name] |= 1 << bit

    def live(self, at: int, before: int, behind: int) -> tuple[set[str], int]:
        """Return the tensors that live while a node runs between other nodes, and their bytes without those that it may write over."""
        node, crossing = (
            self.nodes[at],
            {name for name, users in self.users.items() if users & before and users & behind},
        )
        live = crossing | {*node["uses"]}
        spared = min(node["spares"], sum(self.size[name] for name in node["over"] if not self.users[name] & behind))
        return live, sum(self.size[name] for name in live) + node["workspace"] - spared

    def span(self, at: int, *, backward: bool) -> int:
        """Return the nodes that run before a node in every order, or after it, with the caller, as bits."""
        found, todo = 1 << len(self.nodes) + backward, [at]
        while todo:
            new = self.waits[backward][todo.pop()] & ~found
            found, todo = found | new, todo + [k for k in range(len(self.nodes)) if new >> k & 1]
        return found

    def blocked(self, limit: int, most: int, *, backward: bool) -> int | None:
        """Return the least bytes above `limit` that each order needs: None where an order stays within it, 0 after `most` sets of nodes.

        A node that leaves no more live bytes than before runs at once: no later node needs more bytes than it would without it.
        """
        first = 1 << len(self.nodes) + backward
        todo, seen, over = (
            [(first, sum(self.size[name] for name, users in self.users.items() if users & first))],
            {first},
            [],
        )
        while todo and len(seen) <= most:
            done, live = todo.pop()
            ready = [k for k, wait in enumerate(self.waits[backward]) if not done >> k & 1 and not wait & ~done]
            steps = [(*self.step(k, done, live, backward=backward), done | 1 << k) for k in ready]
            over += [needed for needed, _, _ in steps if needed > limit]
            ways = [(left, further) for needed, left, further in steps if needed <= limit]
            for left, further in [min(ways)] if ways and min(ways)[0] <= live else ways:
                if further.bit_count() > len(self.nodes):
                    return None
                todo += [(further, left)] * (further not in seen)
                seen.add(further)
        return 0 if todo else min(over)

    def step(self, at: int, done: int, live: int, *, backward: bool) -> tuple[int, int]:
        """Return the live bytes while a node runs after the nodes `done`, and after it."""
        node, users = self.nodes[at], self.users
        new = {name for name in node["uses"] if not users[name] & done}
        last = {name for name in node["uses"] if not users[name] & ~(done | 1 << at)}
        spared = min(
            node["spares"], sum(self.size[name] for name in node["over"] if name in (new if backward else last))
        )
        during = live + sum(self.size[name] for name in new)
        return during + node["workspace"] - spared, during - sum(self.size[name] for name in last)


def is_impossible(
    tree: Mapping[str, Any], rows: Mapping[str, Any], limit: int, below: frozenset[tuple[str, str]]
) -> bool:
    """Return whether no addresses within `limit` put the first row of each pair in `below` below the second.

    A branch decides a pair of rows that live at once. At its end, rows above each other reach beyond the limit, or beyond a pinned one.
    """
    if "chain" not in tree:
        (low, high), sides = tree["pair"], (tree["low"], tree["high"])
        is_pair = low != high and max(rows[low]["first"], rows[high]["first"]) <= min(
            rows[low]["last"], rows[high]["last"]
        )
        both = zip(sides, ((low, high), (high, low)), strict=True)
        return is_pair and all(is_impossible(side, rows, limit, below | {pair}) for side, pair in both)
    chain = tree["chain"]
    *lower, last = [rows[name] for name in chain]
    end = (lower or [last])[0].get("pin", 0) + sum(row["bytes"] for row in lower)
    return {*pairwise(chain)} <= below and (end + last["bytes"] > limit or end > last.get("pin", end))


def refusal(said: Mapping[str, Any]) -> str:
    """Return the reason why the bound does not hold; "" where it does."""
    proof, rows, limit = said["proof"], said["rows"], said["arena"] - said["alignment"]
    kind, bound = proof["kind"], proof["bound"]
    if said["claim"] == "any order" != SCOPES[kind]:
        return f"a proof by {kind} is of {SCOPES[kind]}"
    if bound <= limit:
        return f"{bound} bytes are not more than {limit}"
    if kind == "offsets":
        return "" if is_impossible(proof["tree"], rows, bound - 1, frozenset()) else "a branch of the tree does not end"
    if kind == "rows":
        found = sum(row["bytes"] for row in rows.values() if row["first"] <= proof["step"] <= row["last"])
    elif kind == "pin":
        found = max(row["pin"] + row["bytes"] for row in rows.values())
    else:
        found = proved(ByteUsers(said["account"]), said["order"], proof, limit)
    return "" if found >= bound else f"{found} bytes are proved, not {bound}"


def proved(account: ByteUsers, order: list[str], proof: Mapping[str, Any], limit: int) -> int:
    """Return the bytes that every order needs, or for a "step" this order. Raises ValueError for another order or other live tensors."""
    if proof["kind"] == "search":
        return account.blocked(limit, proof["sets"], backward=proof["backward"]) or 0
    at, count, done = account.place[proof["node"]], len(account.nodes), 0
    before, behind = account.span(at, backward=False), account.span(at, backward=True)
    for name in order if proof["kind"] == "step" else ():
        node = account.place[name]
        if account.waits[0][node] & ~done or done >> node & 1:
            raise ValueError(f"{name} runs before a node that it waits for, or twice")
        if node == at:
            before, behind = done | 1 << count, ((1 << count) - 1) & ~(done | 1 << at) | 2 << count
        done |= 1 << node
    if proof["kind"] == "step" and done.bit_count() < count:
        raise ValueError("the order does not have each node")
    live, needed = account.live(at, before, behind)
    if live != {*proof["live"]}:
        raise ValueError(f"other tensors are live while {proof['node']} runs")
    return needed


def main(certificate: str) -> str:
    """Return a line that says that the certificate is accepted. Raises ValueError with the reason where it is not."""
    said = json.loads(Path(certificate).read_text(encoding="utf-8"))
    reason = said["reason"] if said["proof"] is None else refusal(said)
    if reason:
        raise ValueError(reason)
    kind = said["proof"]["kind"]
    return f"accepted: no plan of {SCOPES[kind]} takes fewer than {said['arena']} bytes, by {kind}"


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{main(*sys.argv[1:])}\n")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        sys.exit(f"refused: {error}")
