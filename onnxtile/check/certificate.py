"""The certificate of a plan: a file from which two scripts without onnxtile prove that no plan takes fewer bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import onnx

from onnxtile.check.check_account import UNITS, ByteGraph, account_of, body_of, graph_of, held_steps, lives_of, refusal
from onnxtile.check.check_bound import MOST_SETS, Account, is_proved
from onnxtile.declare.plan_document import (
    Excluded,
    PlanDocument,
    PlannedBuffer,
    PlannedGraph,
    PlannedInput,
    PlannedPart,
)
from onnxtile.model.validity import without_weights

if TYPE_CHECKING:
    import onnx_ir as ir

# Proofs that rows do not fit into an arena: trees of decisions, each of which puts one of two rows below the other.

OffsetTree: TypeAlias = dict[str, Any]
"""{"chain": rows, each above the last} or {"pair": [a, b], "sides": [the tree with a below b, the tree with b below a]}."""


class FixedRow(NamedTuple):
    """A row of `size` bytes that is live in the steps from `first` to `last`; `pin` is its offset, where that is given."""

    size: int
    first: int
    last: int
    pin: int | None = None


class _Ends(NamedTuple):
    """The chains of rows, each above the last, that end in a row, and that begin in it: their bytes and rows."""

    bottom: dict[str, tuple[int, list[str]]]
    top: dict[str, tuple[int, list[str]]]


def offset_tree(rows: Mapping[str, FixedRow], limit: int, steps: int) -> OffsetTree | None:
    """Return the tree that proves that `rows` need more than `limit` bytes; None where `steps` decisions do not find it."""
    pairs = [(a, b) for a, b in combinations(sorted(rows), 2) if _meet(rows[a], rows[b])]
    budget = [steps]
    return _tree(rows, pairs, limit, {}, budget)


def _meet(a: FixedRow, b: FixedRow) -> bool:
    return max(a.first, b.first) <= min(a.last, b.last)


def _tree(
    rows: Mapping[str, FixedRow],
    pairs: list[tuple[str, str]],
    limit: int,
    above: dict[str, set[str]],
    budget: list[int],
) -> OffsetTree | None:
    budget[0] -= 1
    if budget[0] < 0:
        return None
    ends = _ends(rows, above)
    chain = next(_too_long(rows, ends, limit), None)
    if chain is not None:
        return {"chain": chain}
    pair = _next_pair(pairs, ends, above, limit)
    if pair is None:
        return None
    low, high = pair
    sides = []
    for below, over in ((low, high), (high, low)):
        tree = _tree(rows, pairs, limit, {**above, below: above.get(below, set()) | {over}}, budget)
        if tree is None:
            return None
        sides.append(tree)
    return {"pair": [low, high], "sides": sides}


def _ends(rows: Mapping[str, FixedRow], above: Mapping[str, set[str]]) -> _Ends:
    below: dict[str, set[str]] = {}
    for low, highs in above.items():
        for high in highs:
            below.setdefault(high, set()).add(low)
    return _Ends(_longest(rows, below, bottom=True), _longest(rows, above, bottom=False))


def _longest(
    rows: Mapping[str, FixedRow], beside: Mapping[str, set[str]], *, bottom: bool
) -> dict[str, tuple[int, list[str]]]:
    """Return the longest chain of each row; pins at the bottom count as bytes below."""
    chains: dict[str, tuple[int, list[str]]] = {}

    def longest(name: str) -> tuple[int, list[str]]:
        if name not in chains:
            size, chain = max((longest(other) for other in sorted(beside.get(name, ()))), default=(0, []))
            pin = rows[name].pin
            if bottom and pin is not None and pin >= size:
                size, chain = pin, []
            chains[name] = size + rows[name].size, [*chain, name] if bottom else [name, *chain]
        return chains[name]

    for name in rows:
        longest(name)
    return chains


def _too_long(rows: Mapping[str, FixedRow], ends: _Ends, limit: int) -> Iterator[list[str]]:
    """Yield the chains that end above the limit, or above the offset of a pinned row."""
    for name, (size, stacked) in ends.bottom.items():
        pin = rows[name].pin
        if size > limit or (pin is not None and size - rows[name].size > pin):
            yield stacked


def _all_above(above: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the rows above each row, directly or not."""
    rows_above: dict[str, set[str]] = {}

    def over(name: str) -> set[str]:
        if name not in rows_above:
            direct = above.get(name, set())
            rows_above[name] = direct.union(*map(over, sorted(direct)))
        return rows_above[name]

    for name in above:
        over(name)
    return rows_above


def _next_pair(
    pairs: list[tuple[str, str]], ends: _Ends, above: Mapping[str, set[str]], limit: int
) -> tuple[str, str] | None:
    """Return the pair to decide next: one of which both sides are impossible at once, or one, or which leaves the least room."""
    best, most = None, (-1, 0)
    over = _all_above(above)
    for low, high in pairs:
        # A pair that other pairs have decided closes no circle, and lengthens no chain.
        if high in over.get(low, ()) or low in over.get(high, ()):
            continue
        sides = [ends.bottom[a][0] + ends.top[b][0] for a, b in ((low, high), (high, low))]
        room = (sum(side > limit for side in sides), min(sides) if max(sides) <= limit else sum(sides))
        if room > most:
            best, most = (low, high), room
    return best


CertificateJson = dict[str, Any]

_MOST_NODES = 20_000
"""Nodes of a graph, at most: the checker takes a bit for each node in each set."""
_MOST_PEAKS = 8
"""Steps with the most live bytes, at most, at which the bytes of every order are counted."""
_MOST_BRANCHES = 2_000
"""Branches, at most, of a tree that proves offsets."""
_MOST_ROWS = 60
"""Rows, at most, of which such a tree is looked for."""
_MOST_IN_BODY = 400
"""Nodes of a body, at most, whose orders are searched for bounds below the size of its plan, too."""
_SETS_OF_BODY = 2_000
"""Sets of nodes, at most, in each of these searches."""
_TOO_LONG = f"a tree that proves the offsets has more than {_MOST_BRANCHES:,} branches or {_MOST_ROWS} rows"


def certificate(model: ir.Model, plan: PlanDocument) -> CertificateJson:
    """Return the certificate of `plan`, the plan of `model`, ready for JSON; its `proof` is None, with the `reason`, where none is found.

    `check.check_account` and `check.check_bound` accept it. The proof is found with their own account of the bytes, which shares
    nothing with the planner's: it counts fewer bytes, never more.
    """
    terms = _stated(plan)
    reason = _not_covered(terms, plan)
    if reason is None:
        problem = graph_of(without_weights(model), terms)
        terms["order"], terms["steps"] = _order(problem, plan)
        terms["bodies"] = list(_of_bodies(problem, terms, plan))
        for proved in chain(_of_accounts(problem, terms), _of_rows(problem, terms, plan)):
            if is_proved(proved) and not refusal(problem, proved):
                return proved
        reason = _not_found(terms, plan)
    return terms | {"proof": None, "reason": reason}


def problem_certificate(plan: Mapping[str, Any]) -> CertificateJson:
    """Return the certificate of the plan of a bare problem, which is given as JSON: no graph of it is known."""
    terms = {**_EMPTY, **{key: plan[key] for key in ("digest", "alignment")}, "claim": plan["optimal_over"]}
    terms |= {"arena": sum(arena["size"] for arena in plan["arenas"])}
    if plan["optimal_over"] is None:
        return terms | {"proof": None, "reason": _NOT_SMALLEST}
    rows: dict[str, dict[str, Any]] = {}
    for row in plan["buffers"]:
        parts = row.get("parts") or [{"start": 0, **row}]
        rows |= _rows(row["name"], [PlannedPart(*(part[key] for key in _PART)) for part in parts], terms)
    proved = next(
        (trial for trial in _about_rows(terms, rows, one_arena=len(plan["arenas"]) == 1) if is_proved(trial)), None
    )
    return proved or terms | {"proof": None, "reason": _TOO_LONG}


_PART = ("start", "size", "first", "last")
_NOT_SMALLEST = "the plan is not proved the smallest"
_EMPTY: Mapping[str, Any] = {
    "version": 5,
    "scope": None,
    "rows": {},
    "places": {},
    "pins": {},
    "workspaces": {},
    "bodies": [],
    "reason": None,
}


def _stated(plan: PlanDocument) -> CertificateJson:
    """Return what the plan claims, and what the scripts take from it."""
    owners = {row.name: row for row in plan.buffers if row.alias is None}
    return {
        **_EMPTY,
        "digest": plan.digest,
        "claim": None if plan.search is None else plan.search.optimal_over,
        "arena": sum(arena.size for arena in plan.arenas),
        "alignment": plan.alignment,
        "io": plan.io,
        "overwrite_inputs": plan.overwrite_inputs,
        "dims": dict(plan.dims),
        "types": _types(plan),
        "states": [[state.input, state.output] for state in plan.states],
        "places": {
            row.name: [row.alias or row.name, row.offset - owners[row.alias or row.name].offset]
            for row in plan.buffers
            if row.kind != "workspace" and (row.alias or row.name) in owners
        },
        "workspaces": _workspaces(plan),
        "pins": {owner: owners[owner].offset for owner in {_owner(plan, name) for name in plan.pins} & owners.keys()},
    }


def _of_bodies(problem: ByteGraph, terms: CertificateJson, plan: PlannedGraph) -> Iterator[CertificateJson]:
    """Yield the certificates of the bodies of a graph, each of the most bytes that are proved to be needed in every order."""
    names = {id_: next(filter(None, results)) for id_, results in zip(plan.schedule, plan.results or (), strict=True)}
    # The scripts count nothing of a node that reads only constants, so that its body proves no bytes.
    for body in (planned for planned in plan.bodies if names[planned.node] not in problem.constants):
        spaces = _workspaces(body)
        types = _types_of(body.buffers)
        inner_terms = {
            **_EMPTY,
            "claim": "any order",
            "scope": "any order",
            "alignment": terms["alignment"],
            "types": types,
        }
        inner_terms |= {"node": names[body.node], "attribute": body.attribute, "arena": body.size, "workspaces": spaces}
        inside = body_of(problem, terms, inner_terms)
        inner_terms["order"], inner_terms["steps"] = _order(inside, body)
        inner_terms["bodies"] = list(_of_bodies(inside, inner_terms, body))
        inner_terms["account"] = account_of(inside, inner_terms)
        account = Account(inner_terms["account"])
        needed = [account.always(at) for at in range(len(account.nodes))]
        widest = {"proof": {"node": needed.index(max(needed))}}
        yield from _largest(
            inner_terms, inner_terms | widest | {"arena": -(-max(needed) // terms["alignment"]) * terms["alignment"]}
        )


def _largest(whole: CertificateJson, least: CertificateJson) -> Iterator[CertificateJson]:
    """Yield the certificate of the most bytes that searches prove, of those in `whole` and in `least`, which its node proves; none of 0."""
    unit, best = whole["alignment"], least
    low, high = least["arena"] // unit, whole["arena"] // unit + 1
    size = high - 1  # that of the plan comes first, then the middle of what is left
    while low < high - 1 and len(whole["order"]) <= _MOST_IN_BODY:
        proofs = ({"backward": backward, "most": _SETS_OF_BODY} for backward in (False, True))
        tried = (whole | {"arena": size * unit, "proof": proof} for proof in proofs)
        proved = next(filter(is_proved, tried), None)
        best, low, high = (proved, size, high) if proved else (best, low, size)
        size = (low + high) // 2
    if best["arena"]:
        yield best


def _workspaces(plan: PlannedGraph) -> dict[str, int]:
    """Return the bytes of the workspaces of nodes without bodies, by the first result of each."""
    names = {id_: next(filter(None, results)) for id_, results in zip(plan.schedule, plan.results or (), strict=True)}
    spaces: dict[str, int] = {}
    for row in plan.buffers:
        if row.kind == "workspace" and row.node in names and row.node not in {body.node for body in plan.bodies}:
            spaces[names[row.node]] = spaces.get(names[row.node], 0) + row.size
    return spaces


def _owner(plan: PlanDocument, name: str) -> str:
    return next((row.alias or row.name for row in plan.buffers if row.name == name), name)


def _not_covered(terms: CertificateJson, plan: PlanDocument) -> str | None:
    """Return the reason why no proof of `plan` is looked for."""
    if terms["claim"] is None:
        return _NOT_SMALLEST
    if not terms["arena"]:
        return "the arena has no bytes, so no plan has fewer"
    if len(plan.schedule) > _MOST_NODES:
        return f"the graph has more than {_MOST_NODES:,} nodes"
    return None


def _not_found(terms: CertificateJson, plan: PlanDocument) -> str:
    """Return the reason why no proof of `plan` was found."""
    if plan.keeps:
        return "the scripts do not know which tensors are kept for the whole run"
    if terms["claim"] == "order":
        is_peak = plan.lower_bound == plan.peak
        return "the scripts count fewer bytes in the fullest step" if is_peak else _TOO_LONG
    of_bodies = ", or of the bodies of If, Loop, Scan or functions" if plan.bodies else ""
    return f"the scripts prove fewer bytes within {MOST_SETS:,} sets of nodes{of_bodies}"


def _types(plan: PlanDocument) -> dict[str, list[int]]:
    """Return the element type, as onnx numbers it, and the sizes of each value that the plan knows."""
    ends: tuple[PlannedInput, ...] = (*(plan.inputs or ()), *(plan.outputs or ()))
    return _types_of(plan.buffers) | _types_of(plan.outside or ()) | _types_of(ends)


def _types_of(rows: Iterable[PlannedBuffer] | Iterable[Excluded] | Iterable[PlannedInput]) -> dict[str, list[int]]:
    numbered = onnx.TensorProto.DataType.Value
    return {row.name: [numbered(row.dtype), *row.shape] for row in rows if row.dtype and row.shape is not None}


def _order(problem: ByteGraph, plan: PlannedGraph) -> tuple[list[str], list[int]]:
    """Return the nodes of the account in the order of the plan, and the step of each."""
    known = {name for node in problem.nodes for name in (v.name for v in node.outputs)} - problem.idle
    names = [next(filter(None, results)) for results in plan.results or ()]
    kept = [(name, step) for name, step in zip(names, plan.steps, strict=True) if name in known]
    return [name for name, _ in kept], [step for _, step in kept]


def _of_accounts(problem: ByteGraph, terms: CertificateJson) -> Iterator[CertificateJson]:
    """Yield certificates by an account of who uses which bytes, the simplest first."""
    limit = terms["arena"] - terms["alignment"]
    in_order = terms | {"scope": "this order", "places": {}, "pins": {}}
    in_order["account"] = account_of(problem, in_order)
    account = Account(in_order["account"])
    needed = [account.always(at) for at in range(len(account.nodes))]
    # A bound above the arena would be a fault of the account, never a proof.
    if not limit < max(needed) <= terms["arena"]:
        return
    peaks = [at for at, size in enumerate(needed) if size == max(needed)]
    in_any = in_order | {"scope": "any order"}
    in_any["account"] = account_of(problem, in_any)
    yield from (in_any | {"proof": {"node": at}} for at in peaks[:_MOST_PEAKS])
    if terms["claim"] == "order":
        yield in_order | {"proof": {"node": peaks[0]}}
        return
    yield from (in_any | {"proof": {"backward": backward}} for backward in (False, True))


def _of_rows(problem: ByteGraph, terms: CertificateJson, plan: PlanDocument) -> Iterator[CertificateJson]:
    """Yield certificates by the rows of the plan: of its pins, and of its order and its aliases."""
    rows: dict[str, dict[str, Any]] = {}
    for row in plan.buffers:
        if row.alias is None:
            parts = row.parts or (PlannedPart(0, row.size, row.first, row.last),)
            rows |= _rows(row.name, parts, terms, is_workspace=row.kind == "workspace")
    if terms["claim"] == "any order":
        pinned = {name: row for name, row in rows.items() if "pin" in row}
        ends = {name: row["pin"] + row["bytes"] for name, row in pinned.items()}
        highest = max(ends, key=ends.__getitem__, default=None)
        if highest is not None:
            yield terms | _by_rows({highest: pinned[highest]}, {"chain": [highest]}) | {"scope": "any order"}
        return
    lives = lives_of(problem, terms)
    spaces = {name: row for name, row in rows.items() if row["workspace"]}
    for scope, in_units in (("this order and its aliases", False), (UNITS, True)):
        live = dict(_live(problem, terms, lives, plan.peak_step, in_units=in_units)) | _here(spaces, plan.peak_step)
        yield terms | _by_rows(live, {"step": plan.peak_step}) | {"scope": scope}
    held = {name: held_steps(problem, terms, row, lives) for name, row in rows.items()}
    rows = {name: row | {"first": held[name][0], "last": held[name][-1]} for name, row in rows.items() if held[name]}
    rows = {name: row for name, row in rows.items() if len(held[name]) > row["last"] - row["first"]}
    yield from _about_rows(terms, rows, one_arena=len(plan.arenas) == 1)


def _live(
    problem: ByteGraph, terms: CertificateJson, lives: Mapping[str, range], step: int, *, in_units: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows of the bytes that tensors hold in a step; with `in_units`, they hold each unit of the alignment that they touch."""
    unit, ends = terms["alignment"], dict[str, int]()
    for name, (owner, low) in sorted(terms["places"].items(), key=lambda entry: entry[1][1]):
        if step not in lives.get(name, ()) or name not in problem.bytes:
            continue
        start, end = max(low, ends.get(owner, 0)), low + problem.bytes[name]
        if start < end:
            ends[owner] = -(-end // unit) * unit
            size = ends[owner] - (start // unit if in_units else -(-start // unit)) * unit
            row = {"owner": owner, "start": start, "size": end - start, "bytes": size, "first": step, "last": step}
            yield name, row | {"workspace": False}


def _here(rows: Mapping[str, dict[str, Any]], step: int) -> dict[str, dict[str, Any]]:
    """Return the rows that are live in a step, as live in it alone."""
    live = {name: row for name, row in rows.items() if row["first"] <= step <= row["last"]}
    return {name: row | {"first": step, "last": step} for name, row in live.items()}


def _rows(
    owner: str, parts: Sequence[PlannedPart], terms: CertificateJson, *, is_workspace: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of the parts of a buffer, by name, which hold multiples of the alignment."""
    unit, pin = terms["alignment"], terms["pins"].get(owner)
    for part in parts:
        begin, end = -(-part.start // unit) * unit, -(-(part.start + part.size) // unit) * unit
        name = owner if len(parts) == 1 else f"{owner}[{part.start}:{part.start + part.size}] from step {part.first}"
        row = {"owner": owner, "start": part.start, "size": part.size, "bytes": end - begin}
        row |= {"first": part.first, "last": part.last, "workspace": is_workspace}
        if end > begin:
            yield name, row | ({} if pin is None else {"pin": pin + begin})


def _about_rows(
    terms: CertificateJson, rows: Mapping[str, dict[str, Any]], *, one_arena: bool = True
) -> Iterator[CertificateJson]:
    """Yield certificates by the rows that are live in one step, and by a tree of decisions about offsets."""
    limit = terms["arena"] - terms["alignment"]
    live: dict[int, int] = {}
    for step in sorted({row["first"] for row in rows.values()}):
        live[step] = sum(row["bytes"] for row in rows.values() if row["first"] <= step <= row["last"])
    step = max(live, key=live.__getitem__, default=0)
    yield terms | _by_rows(_here(rows, step), {"step": step})
    if not one_arena or len(rows) > _MOST_ROWS:
        return
    fixed = {name: FixedRow(row["bytes"], row["first"], row["last"], row.get("pin")) for name, row in rows.items()}
    tree = offset_tree(fixed, limit, _MOST_BRANCHES)
    if tree is not None:
        used = {name: rows[name] for name in sorted(_named(tree))}
        yield terms | _by_rows(used, tree)


def _by_rows(rows: Mapping[str, dict[str, Any]], tree: Mapping[str, Any]) -> dict[str, Any]:
    return {"scope": "this order and its aliases", "rows": rows, "proof": {"tree": tree}}


def _named(tree: Mapping[str, Any]) -> set[str]:
    """Return the rows of which a tree speaks."""
    if "chain" in tree:
        return {*tree["chain"]}
    return {*tree["pair"]}.union(*map(_named, tree["sides"]))
