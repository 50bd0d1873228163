"""The tables of a plan."""

from __future__ import annotations

from collections.abc import Iterator

from onnxtile.declare.layout_rules import FIXED
from onnxtile.report.format import PlanJson
from onnxtile.report.layout import step_names
from onnxtile.report.table import Line, ResultJson, Shown, Table, counted, line, reasons, table, tables_of
from onnxtile.report.words import arena_in_words, in_words, is_kept, ranges_in_words, smallest_of

# The states of a plan, as a table and in words.

_FOUND = {"given": "given", "names": "their names", "operator": "the operator between them"}


def for_states(result: ResultJson) -> list[Table | Line]:
    """Return the table of the states of a plan, if it has some: where each is kept, or that it is only listed."""
    states = result.get("states") or ()
    columns: dict[str, Shown] = {
        **{"input": "input", "output": "output"},
        "known by": lambda state: _FOUND.get(state["source"], state["source"]),
        **{"bytes": _place, "between runs": _between_runs},
    }
    title = "state" if any(map(is_kept, states)) else "state, not kept in place (--state found keeps it)"
    return tables_of(title, columns, states)


def run_of_states(verdict: ResultJson) -> str:
    """Return how many runs followed each other, the sizes of the first and the last, and runs from a random state; empty for other runs."""
    verdict = verdict.get("state") or verdict
    if "states" not in verdict:
        return ""
    sizes = [" ".join(f"{name}={size}" for name, size in run.items()) for run in verdict["sizes"]]
    between = f" from {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else ""
    drawn = f", then {verdict['drawn_runs']:,} from a random state" if verdict["drawn_runs"] else ""
    return f"runs one after the other, with the state kept in the arena: {verdict['runs']:,}{between}{drawn}"


def _place(state: ResultJson) -> str:
    return f"{state['size']:,} at {state['offset']:,} of {state['arena']!r}" if is_kept(state) else "listed only"


def _between_runs(state: ResultJson) -> str:
    if not is_kept(state):
        return ""
    if state["copied"]:
        return f"copied: {state['copied']:,} bytes"
    return "in place" if state["axis"] is None else "in place, appended; strides as at the largest size"


# The rows of a plan's table about copies between two memories.

_PROOFS = {"search": "by exact search", "relaxation": "parts of tensors may stay"}


def movement_rows(result: ResultJson) -> Iterator[tuple[str, str]]:
    """Yield the bytes that are copied between two memories, the bound and the times; nothing for a plan without copies."""
    movement = result.get("movement")
    if movement is None:
        return
    bound, moved = movement["lower_bound"], movement["bytes"]
    above = f"{(moved - bound) / bound:.1%} above the bound" if bound and moved > bound else "at the bound"
    copies = f"{len(movement['copies']):,} copies of {moved:,} bytes, {above}"
    yield f"{movement['fast']} and {movement['slow']}", copies
    proof = _PROOFS[movement["bound"]]
    wide = f"{movement['parts_bound']:,} in parts, {movement['any_order_bound']:,} in any order"
    yield "lower bound of the copies", f"{bound:,} bytes in this order ({proof}), {wide}"
    yield "first copies and outputs", f"{movement['forced']:,} bytes"
    time = movement["time"]
    if time is not None:
        yield "time of the copies", f"{_milliseconds(time['copying'])} at {time['bandwidth']:,} bytes per second"
    if time is not None and time["with_overlap"] is not None:
        yield (
            "time of the kernels",
            f"{_milliseconds(time['computing'])} at {time['macs_per_second']:,} MACs per second",
        )
        together, alone = (_milliseconds(time[key]) for key in ("with_overlap", "without_overlap"))
        yield "time of both", f"{together} side by side, {alone} one after the other"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.4g} ms"


# The tensors of a plan that are pinned, placed or kept.


def fixed_rules(plan: PlanJson) -> dict[str, str]:
    """Return by name of the tensor: "pinned", "placed", "kept", or several of these.

    >>> fixed_rules({"pins": {"x": 0}, "keeps": ["x", "y"]})
    {'x': 'pinned, kept', 'y': 'kept'}
    """
    titles_of: dict[str, list[str]] = {}
    for name_of_rule, rule in FIXED.items():
        for name in plan.get(name_of_rule) or ():
            titles_of.setdefault(name, []).append(rule.title)
    return {name: ", ".join(titles) for name, titles in titles_of.items()}


_BOUNDS = {
    "peak": "the peak",
    "parts": "the peak with parts of buffers",
    "bodies": "the peak with smaller bodies",
    "every order": "at once in some order",
    "pin": "the end of a pinned tensor",
    "search": "by exact search",
}
_LIMITS = {
    "effort": "the search reached its limit of steps; --search high allows more",
    "time": "the search reached its limit of time",
    "too many buffers": "there are more buffers than the exact search takes",
    "several arenas": "each arena was planned by itself",
    "heuristic": "this planner does not search",
}


def for_plan(result: ResultJson) -> list[Table | Line]:
    """Return the tables of a `plan` result."""
    rows: list[tuple[str, object]] = [_arena(arena, len(result["unplanned"])) for arena in result["arenas"]]
    buffers = [b for b in result["buffers"] if b.get("alias") is None]
    bound = _BOUNDS[result["bound"]]
    rows += _largest(result)
    rows += _ranges(result)
    rows += open_sizes(result)
    rows += [
        ("peak of the schedule", f"{result['peak']:,} bytes at step {result['peak_step']:,}{_node_at(result)}"),
        ("lower bound", f"{result['lower_bound']:,} bytes ({bound})"),
        ("optimal", _optimal(result)),
        *_any_order(result),
        ("planner", result["planner"]),
        ("buffers", len(buffers)),
    ]
    # A bare problem has no schedule, and none of what comes with a model.
    if result["schedule"]:
        copies = result["copies"]
        rows += [
            ("activations without sharing", f"{result['activation_bytes']:,} bytes"),
            ("aliases", f"{len(result['buffers']) - len(buffers):,} ({result['in_place']:,} in place)"),
            ("copies avoided", f"{copies['avoided']:,} ({copies['avoided_bytes']:,} bytes)"),
            ("copies remaining", f"{copies['remaining']:,} ({copies['remaining_bytes']:,} bytes)"),
            *movement_rows(result),
            *_workspaces(result),
            *_bodies(result),
            *_insides(result),
            *_kernels(result),
            ("constants", f"{len(result['constants']):,} of {_stored_bytes(result):,} bytes, as stored"),
            *((f"rows of {stream['input']}", reads_text(stream)) for stream in result.get("streamed") or ()),
            ("outside the arena", len(result["outside"])),
            ("unplanned", len(result["unplanned"])),
        ]
    if result["planner"] == "slots":
        rows.append(("slots", len({(b["arena"], b["offset"]) for b in buffers if b["size"]})))
    tables: list[Table | Line] = [table("plan", ("figure", "value"), rows)]
    tables += _formulas(result)
    tables += _fixed(result)
    tables += for_states(result)
    tables += tables_of("unplanned", {"tensor": "name", "reason": "reason"}, result["unplanned"])
    if result.get("not_run"):
        tables.append(line(f"checked, not run inside the arena: {result['not_run']}"))
    return [*tables, *for_arena_run(result.get("verdict")), *for_firmware(result.get("firmware"))]


def reads_text(stream: ResultJson) -> str:
    """Return how many reads there are of the rows of an input, and how large these are."""
    largest = max((count for _, count in stream["reads"]), default=0)
    reads = len(stream["reads"])
    return f"{reads:,} reads of up to {largest:,} rows of {stream['row_bytes']:,} bytes"


def for_firmware(firmware: ResultJson | None) -> list[Table | Line]:
    """Return the table of a program in C, and how it was proved; none where none was written."""
    if firmware is None:
        return []
    rows: list[tuple[str, object]] = [
        (
            "calls",
            f"{firmware['calls']:,} of {firmware['kernels']:,} different kernels, in {firmware['functions']:,} functions",
        ),
        ("weights", f"{firmware['weights']:,} bytes"),
        ("tables", f"{firmware['tables']:,} bytes"),
    ]
    if firmware["copied"]:
        counts = ", ".join(f"{operator} {count:,}" for operator, count in firmware["copied"].items())
        rows.append(("calls on copies", f"{counts}: in place their kernels would read what they wrote"))
    if firmware["in_floats"]:
        rows.append(
            (
                "kernels in floats",
                f"{firmware['in_floats']:,} between quantised tensors: planned as islands, they run in integers",
            )
        )
    rows += _bytes_of_program(firmware)
    return [table("C", ("figure", "value"), rows), line(firmware["proof"]["summary"])]


def _bytes_of_program(firmware: ResultJson) -> list[tuple[str, object]]:
    """Return the rows of flash and RAM, as the compiler counts them; without one, those of the plan."""
    size = firmware["footprint"]
    parts = {"arena": firmware["arena"], "workspace": firmware["workspace"]}
    if size is None:
        return [("RAM without the stack", _sum_of(parts))]
    parts |= {"variables": size["memory"] - sum(parts.values()), "stack": size["stack"] or 0}
    named = "RAM" if size["ram"] is not None else "RAM without the stack,"
    return [
        (f"flash by {size['compiler']}", _sum_of({"code": size["code"], "constants": size["constants"]})),
        (f"{named} by {size['compiler']}", _sum_of(parts)),
    ]


def _sum_of(parts: ResultJson) -> str:
    """Return the sum of bytes, and each part of it."""
    words = [f"{name} {size:,}" for name, size in parts.items() if size]
    return f"{sum(parts.values()):,} bytes" + (f": {' + '.join(words)}" if words else "")


def for_arena_run(verdict: ResultJson | None) -> list[Table | Line]:
    """Return the lines of a run inside the arena; none where there was no run."""
    if not verdict:
        return []
    state = "equal bit for bit" if verdict["equal"] else "DIFFERS"
    repeated = verdict.get("repeated", 0)
    further = f", {repeated:,} different kernels that share bytes on other values" if repeated else ""
    lines: list[Table | Line] = [line(f"run inside the arena: {state} ({counted(verdict['runs'], 'run')}{further})")]
    if "own_head" in verdict:
        head, without_plan = verdict["head"], verdict["own_head"]
        lines.append(line(f"TensorFlow Lite Micro: {head:,} bytes of tensors; {without_plan:,} with its own planner"))
    lines += reasons("compared node by node only", verdict.get("excused") or {})
    if states := run_of_states(verdict):
        lines.append(line(states))
    elif "sizes" in verdict:
        at = ", ".join(" ".join(f"{name}={size}" for name, size in sizes.items()) for sizes in verdict["sizes"])
        lines.append(line(f"sizes of the runs: {at}"))
    return lines


def _ranges(result: ResultJson) -> Iterator[tuple[str, object]]:
    """Yield the row of the ranges that a plan holds for, and whether each arena has capacity for all their sizes."""
    ranges = result.get("ranges")
    if not ranges:
        return
    yield "sizes", f"all of {ranges_in_words(ranges)}"
    yield "figures", "those of the largest sizes"
    if all(arena["capacity"] is not None for arena in result["arenas"]) and not result["unplanned"]:
        yield "capacity", "FITS at all sizes"


def open_sizes(result: ResultJson) -> Iterator[tuple[str, object]]:
    """Yield the row of the sizes that were taken for open dimensions, with the formula of the arena where there is one."""
    taken = result.get("open_sizes")
    if not taken:
        return
    sizes = ", ".join(f"{name}={size}" for name, size in taken["sizes"].items())
    text = f"{sizes}, which the file leaves open ({taken['options']})"
    for arena in taken["formulas"]:
        text += f"; {arena_in_words(arena)} bytes at {ranges_in_words(taken['ranges'])}"
    yield "sizes", text


def _largest(result: ResultJson) -> Iterator[tuple[str, object]]:
    """Yield the rows of the largest size of a dimension that fits, and of the next one, which does not."""
    largest = result.get("largest")
    if largest is None:
        return
    name, needed, refused = largest["dimension"], largest["needed"], largest["refused"]
    yield f"largest {name}", f"{largest['size']:,}"
    parts = " + ".join(f"{part} {needed[part]:,}" for part in ("weights", "state", "arena"))
    yield f"bytes at {name}={largest['size']}", f"{parts} = {needed['total']:,} of {largest['capacity']:,}"
    if refused is None:
        yield f"next {name}", "none: the range ends here"
    else:
        yield f"refused at {name}={refused['size']}", f"at least {refused['total']:,} bytes"
    if largest["apart"]:
        yield "inputs and outputs apart", f"{largest['apart']:,} bytes outside the arena, not counted"
    if any(not is_kept(state) for state in result.get("states") or ()):
        yield "states", "not kept in place: --state found counts each once"


def _fixed(result: ResultJson) -> list[Table | Line]:
    """Return the table of the tensors that are pinned, placed or kept, with their addresses."""
    rules = fixed_rules(result)
    rows = {row["name"]: row for row in result["buffers"]}
    columns: dict[str, Shown] = {
        "tensor": "name",
        "rule": lambda row: rules[row["name"]],
        **{"arena": "arena", "offset": "offset", "bytes": "size"},
    }
    return tables_of("pinned, placed and kept", columns, [rows[name] for name in rules])


def _formulas(result: ResultJson) -> Iterator[Table]:
    """Yield a table for each arena: its bytes as formulas of the sizes, each the largest of some pieces."""
    titles = {"scaled": "scaled offsets", "fixed": "fixed offsets", "peak": "peak"}
    for arena in result.get("formulas") or ():
        pieces = [(title, arena[key]["pieces"]) for key, title in titles.items() if arena[key] is not None]
        rows = [
            (title if number == 0 else "", ("or " if number else "") + in_words(piece))
            for title, pieces in pieces
            for number, piece in enumerate(pieces)
        ]
        yield table(f"arena {arena['name']!r}: bytes at all sizes, the largest of", ("of", "bytes"), rows)


def _node_at(result: ResultJson) -> str:
    """Return the nodes of the peak step in brackets; nothing for a bare problem."""
    node = step_names(result).get(result["peak_step"])
    return f" ({node})" if node else ""


def for_check(result: ResultJson) -> list[Table | Line]:
    """Return the tables of the check of a plan: the counts of a sound one, or a line for each failure."""
    if result["failures"]:
        return [line(_failure(failure)) for failure in result["failures"]]
    rows = [
        ("sound", "yes"),
        ("values", f"{result['values']:,}, {result['tensors']:,} of them with an address"),
        *((name, f"{result[name]:,}") for name in ("aliases", "workspaces", "bodies", "arenas")),
        *(("not checked", claim) for claim in result["unchecked"]),
    ]
    return [table("check of the plan", ("figure", "value"), rows)]


def _failure(failure: ResultJson) -> str:
    where = f"in {failure['body']}: " if failure["body"] else ""
    step = "" if failure["step"] is None else f" (step {failure['step']})"
    return f"{where}{failure['reason']}{step}"


def _bodies(result: ResultJson) -> list[tuple[str, str]]:
    bodies, todo = [], list(result.get("bodies", ()))
    while todo:
        bodies.append(todo.pop())
        todo += bodies[-1]["bodies"]
    tensors = sum(buffer["kind"] != "workspace" for body in bodies for buffer in body["buffers"])
    return [("bodies", f"{len(bodies):,} with {tensors:,} tensors, in the workspaces of their nodes")] if bodies else []


def _workspaces(result: ResultJson) -> list[tuple[str, str]]:
    sizes = [b["size"] for b in result["buffers"] if b["kind"] == "workspace"]
    return [("workspaces", f"{len(sizes):,}, the largest of {max(sizes):,} bytes")] if sizes else []


def _insides(result: ResultJson) -> list[tuple[str, str]]:
    rows = [row for row in result.get("insides", ()) if not row["in_arena"]]
    known = [row["bytes"] for row in rows if row["bytes"] is not None]
    open_ = f", and {len(rows) - len(known):,} of unknown shapes" if len(known) < len(rows) else ""
    most = f"up to {max(known, default=0):,} bytes in {counted(len(known), 'kernel')}{open_} (not in the arena)"
    return [("inside meta-ops", most)] if rows else []


def _kernels(result: ResultJson) -> list[tuple[str, str]]:
    """Return the row of quantised islands, where some ran as kernels."""
    counts = result.get("kernels")
    if not counts:
        return []
    return [
        ("quantised kernels", f"{counts['islands']:,} islands, with {counts['float_tensors']:,} float tensors inside")
    ]


def _stored_bytes(result: ResultJson) -> int:
    return sum(constant["size"] or 0 for constant in result["constants"])


def _arena(arena: ResultJson, unplanned: int) -> tuple[str, str]:
    capacity = "" if arena["capacity"] is None else f" of {arena['capacity']:,}"
    without = f", without {counted(unplanned, 'unplanned tensor')}" if unplanned else ""
    return f"arena {arena['name']!r}", f"{arena['size']:,}{capacity} bytes{without}"


def _any_order(result: ResultJson) -> list[tuple[str, str]]:
    """Return the row of the bound of all orders, unless the plan is at it or has no graph."""
    bound = result["any_order_bound"]
    if bound is None or result["optimal_over"] == "any order":
        return []
    return [("lower bound over all orders", f"{bound:,} bytes, with any aliases")]


def _optimal(result: ResultJson) -> str:
    if result["optimal"]:
        return f"yes, smallest {smallest_of(result)}: {result['ended']}"
    if result["unplanned"]:
        return f"no: {len(result['unplanned']):,} of the tensors are unplanned"
    share = result["gap"] / result["lower_bound"] if result["lower_bound"] else 0.0
    return f"not proved: {result['gap']:,} bytes ({share:.1%}) above the bound; {_LIMITS[result['ended']]}"
