"""The states of a plan, as a table and in words."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from onnxtile.report.state_words import is_kept
from onnxtile.report.table import ResultJson, table

_FOUND = {"given": "given", "names": "their names", "operator": "the operator between them"}


def for_states(result: ResultJson) -> Iterator[Table]:
    """Yield the table of the states of a plan, if it has some: where each is kept, or that it is only listed."""
    states = result.get("states") or ()
    if states:
        rows = [
            (
                state["input"],
                state["output"],
                _FOUND.get(state["source"], state["source"]),
                _place(state),
                _after(state),
            )
            for state in states
        ]
        title = "state" if any(map(is_kept, states)) else "state, not kept in place (--state found keeps it)"
        yield table(title, ("input", "output", "known by", "bytes", "between runs"), rows)


def run_of_states(verdict: ResultJson) -> str:
    """Return how many runs followed each other, the sizes of the first and the last, and runs from a random state; empty for other runs."""
    verdict = verdict.get("state") or verdict
    if "states" not in verdict:
        return ""
    sizes = [" ".join(f"{name}={size}" for name, size in one.items()) for one in verdict["sizes"]]
    between = f" from {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else ""
    drawn = f", then {verdict['drawn_runs']:,} from a random state" if verdict["drawn_runs"] else ""
    return f"runs one after the other, with the state kept in the arena: {verdict['runs']:,}{between}{drawn}"


def _place(state: ResultJson) -> str:
    return f"{state['size']:,} at {state['offset']:,} of {state['arena']!r}" if is_kept(state) else "listed only"


def _after(state: ResultJson) -> str:
    if not is_kept(state):
        return ""
    if state["copied"]:
        return f"copied: {state['copied']:,} bytes"
    return "in place" if state["axis"] is None else "in place, appended; strides as at the largest size"
