"""Edits of published plans, each with an oracle of its own: `python -m tests.hostile.plan_edits FIRST LAST`.

Plans of several kinds are made once. Each seed edits one of them: a field, an entry of a list, or several fields together. The oracle says
whether the edit makes the plan untrue, from the documents alone; then the check must refuse it. Where it cannot tell, the check must only
end without an error of its own. Plans without edits must be accepted.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import onnx
import onnx.parser

import onnxtile
from onnxtile.declare.layout_rules import FIXED
from onnxtile.model import keys
from onnxtile.system.errors import OnnxtileError
from tests.planning.test_bodies import IN_A_LOOP
from tests.planning.test_functions import GRAPHS
from tests.planning.test_functions import model as calling
from tests.planning.test_islands import _residual
from tests.planning.test_movement_plan import SKIP, graph
from tests.planning.test_mutations import MIXED
from tests.planning.test_run_from_files import DECODER, decoder

Document = dict[str, Any]
Way = tuple[str | int, ...]
Rule: TypeAlias = Callable[["Edit"], bool | None]
"""Says whether an edit makes the plan untrue; None where that cannot be told."""
HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
RANGED = """
g (float[batch, seq, 16] x, float[batch, 8] h) => (float[batch, seq, 16] y, float[batch, 8] z) {
  a = Sigmoid(x)
  b = Transpose <perm = [0, 2, 1]> (a)
  s = MatMul(a, b)
  p = Softmax(s)
  c = MatMul(p, a)
  d = Add(c, x)
  z0 = Mul(h, h)
  z1 = Transpose <perm = [1, 0]> (z0)
  z2 = Sin(z1)
  z = Transpose <perm = [1, 0]> (z2)
  e = Transpose <perm = [0, 2, 1]> (d)
  f = Exp(e)
  y = Transpose <perm = [0, 2, 1]> (f)
}
"""
CHOICE = """
g (float[n, 8] x, bool c) => (float[n, 8] y) {
  a = Sin(x)
  b = If (c) <
    then_branch = t () => (float[n, 8] o) { k = Constant <value_float = 2.0> () s = Exp(a) r = Mul(s, k) o = Cos(r) },
    else_branch = e () => (float[n, 8] q) { q = Neg(a) }>
  y = Abs(b)
}
"""
COUNTED = """
g (float[2, 4] x) => (float[2, n] y, float[2, 4] z) {
  z = Sin(x)
  i = NonZero(z)
  y = Cast <to = 1> (i)
}
"""
ROW_BY_ROW = """
g (float[8, 4] x) => (float[8, 4] y) {
  zero = Constant <value_ints = [0]> ()
  half = Constant <value_ints = [4]> ()
  all = Constant <value_ints = [8]> ()
  a = Slice(x, zero, half, zero)
  c = Sin(a)
  b = Slice(x, half, all, zero)
  d = Sin(b)
  y = Concat <axis = 0> (c, d)
}
"""
MASKED = DECODER.replace("past_v)", "past_v, float[batch, 1, 1, 1, total] mask)").replace(
    "w = Softmax(scores)", "masked = Add(scores, mask)\n  w = Softmax(masked)"
)


@dataclass(frozen=True)
class Kind:
    """How a plan of one kind is made: the model, and the options of `plan`."""

    write: Callable[[Path], Any]
    options: Mapping[str, Any]


def _text(text: str) -> Callable[[Path], Any]:
    return lambda path: onnx.save(onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text), path)


def _proto(made: Callable[[], onnx.ModelProto]) -> Callable[[Path], Any]:
    return lambda path: onnx.save(made(), path)


def _masked(path: Path) -> None:
    decoder(path)
    held = onnx.load(path).graph.initializer
    model = onnx.parser.parse_model(MASKED)
    model.graph.initializer.extend(held)
    onnx.save(model, path)


def _streamed(path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + ROW_BY_ROW)
    model.graph.input[0].metadata_props.add(key=keys.STREAM, value="0")
    onnx.save(model, path)


def _fused(path: Path) -> None:
    text = "g (float[4,8] x) => (float[4,8] y) { a = Sin(x) s = Sigmoid(a) m = Mul(a, s) y = Cos(m) }"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    onnxtile.fuse(str(path), verify=False).save(path, force=True)


MEMORIES = {"fast": 256, "slow": 9000}
KINDS: Mapping[str, Kind] = {
    "fixed": Kind(_text(MIXED), {}),
    "inside": Kind(_text(MIXED), {"io": "inside", "alignment": 16}),
    "streams": Kind(_text(MIXED), {"target": {"streams": 2}}),
    "row by row": Kind(_streamed, {}),
    "any order": Kind(_text(MIXED), {"order": "any"}),
    "bounds": Kind(_text(COUNTED), {"dims": {"i": ":8"}}),
    "unplanned": Kind(_text(COUNTED), {}),
    "places": Kind(_text(MIXED), {"capacity": MEMORIES, "layout": {"places": {"z": "slow"}}}),
    "memories": Kind(
        _text(MIXED), {"capacity": MEMORIES, "layout": {"workspaces": {"Exp": "100", "Softmax": "outputs[0].bytes"}}}
    ),
    "pins": Kind(_text(MIXED), {"layout": {"pins": {"z": 1024}, "keep": ("g",)}}),
    "bodies": Kind(_text(IN_A_LOOP), {}),
    "calls": Kind(_proto(lambda: calling(GRAPHS["twice"])), {}),
    "islands": Kind(_proto(_residual), {}),
    "fused": Kind(_fused, {}),
    "movement": Kind(
        _proto(lambda: graph(SKIP)), {"movement": "activations", "capacity": {"sram": 1024, "dram": 1 << 20}}
    ),
    "ranges": Kind(_text(RANGED), {"dims": {"batch": (1, 3), "seq": (1, 8)}}),
    "ranges, alignment 4": Kind(_text(RANGED), {"dims": {"batch": (1, 4), "seq": (2, 5)}, "alignment": 4}),
    "ranges of bodies": Kind(_text(CHOICE), {"dims": {"n": (1, 9)}}),
    "cache": Kind(decoder, {"dims": {"batch": 2, "past": (0, 7)}, "state": "found"}),
    "cache of batches": Kind(decoder, {"dims": {"batch": (1, 2), "past": (1, 7)}, "state": "found"}),
    "sums": Kind(_masked, {"dims": {"batch": 2, "past": (0, 7), "total": "past+1"}, "state": "found"}),
    "listed states": Kind(decoder, {"dims": {"batch": 2, "past": (1, 7)}, "state": None}),
}


@dataclass(frozen=True)
class Base:
    """A plan of one kind, and the bytes of its model."""

    kind: str
    model: bytes
    document: Document

    def refusal(self, document: Document) -> str | None:
        """Return the first line in which the check refuses `document`; None where it accepts it."""
        with TemporaryDirectory(prefix="onnxtile-plan-edits.") as folder:
            model, plan = Path(folder) / "net.onnx", Path(folder) / "plan.json"
            model.write_bytes(self.model)
            plan.write_text(json.dumps(document))
            try:
                failures = onnxtile.check_plan(str(model), str(plan)).failures
            except OnnxtileError as error:
                return str(error)
        return str(failures[0]) if failures else None


@cache
def base(kind: str) -> Base:
    """Return the plan of `kind`, made once."""
    with TemporaryDirectory(prefix="onnxtile-plan-edits.") as folder:
        model, plan = Path(folder) / "net.onnx", Path(folder) / "plan.json"
        KINDS[kind].write(model)
        onnxtile.plan(str(model), verify=False, **KINDS[kind].options).write(plan)
        return Base(kind, model.read_bytes(), json.loads(plan.read_text()))


def leaves(found: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Yield each field of a document that is no list or object, with the way to it."""
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(value, (*way, key))
    else:
        yield way, found


def at(document: Any, way: Way) -> Any:
    for key in way:
        document = document[key]
    return document


def changed(document: Document, way: Way, value: Any) -> Document:
    """Return a document with `value` at `way`; what is not on the way is shared."""
    made: Any = copy.copy(document)
    inner = made
    for key in way[:-1]:
        inner[key] = copy.copy(inner[key])
        inner = inner[key]
    inner[way[-1]] = value
    return made  # type: ignore[no-any-return]


NAMED = frozenset({"dims", "bounds", "ranges", "sums", *FIXED})
"""Fields whose own fields are names of dimensions or tensors."""


def group(way: Way) -> str:
    """Return the name of the field in the schema: without numbers and names of dimensions."""
    names = ["*" if isinstance(key, int) else key for key in way]
    return ".".join([names[0], *("*" if names[0] in NAMED else name for name in names[1:])])


FORMULAS = ("size_formula", "shape_formula", "strides_formula", "scaled_offset", "bytes", "pieces")


def is_formula(way: Way) -> bool:
    return any(key in FORMULAS for key in way) and (way[0] in {"formulas", "buffers", "bodies", "inputs", "outputs"})


def other(value: Any, way: Way, document: Document, rng: random.Random) -> Any:
    """Return another value for the field at `way`."""
    if rng.random() < 0.05:
        return rng.choice([None, "", [], {}, -1, 2**60, "x", 0.5, True])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        unit = document["alignment"]
        return value + rng.choice([1, -1, unit, -unit, 2 * unit, value, -value, 1 << 12])
    if isinstance(value, str) and is_formula(way):
        return edited_formula(value, list(document.get("ranges", {})), rng)
    if isinstance(value, str):
        alike = sorted({str(one) for name, one in leaves(document) if group(name) == group(way)} - {value})
        return rng.choice([*alike, f"{value}x", f"x{value}"])
    return rng.choice(["x", 0, 1, 64])


def edited_formula(text: str, names: list[str], rng: random.Random) -> str:
    name, number = rng.choice(names or ["n"]), rng.choice([1, 2, 4, 64])
    return rng.choice(
        [
            *(f"{text} + {number}", f"{text} - {number}", f"({text})*{number + 1}", str(number), "0", name),
            *(f"max({text}, {number * 16})", f"min({text}, {number * 16})", f"({text}) // {number + 1}"),
            *(
                f"{text} + {name} - 1",
                f"{text} + ({name} - 1)*({name} - 2)*({name} - 5)",
                text.replace(name, names[0] if names else "n"),
            ),
            *(f"{text} +", f"{text} + unknown", "__import__('os')", "9**9**9"),
        ]
    )


def value_at(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a formula; None where it has none."""
    if "__" in text or text.count("**") > 1:
        return None
    try:
        return int(eval(text, {"__builtins__": {}, "max": max, "min": min}, dict(sizes)))
    except (ArithmeticError, NameError, SyntaxError, TypeError, ValueError):
        return None


def grid(document: Document) -> list[dict[str, int]]:
    """Return all sizes of the dimensions that have a range."""
    ranges = document.get("ranges", {})
    return [
        dict(zip(ranges, sizes, strict=True))
        for sizes in product(*(range(low, high + 1) for low, high in ranges.values()))
    ]


@dataclass(frozen=True)
class Edit:
    """The plan `before`, and the plan `after` an edit of the field at `way`."""

    before: Document
    after: Document
    way: Way

    @property
    def old(self) -> Any:
        """The field before the edit."""
        return at(self.before, self.way)

    @property
    def new(self) -> Any:
        """The field after the edit."""
        return at(self.after, self.way)

    @property
    def around(self) -> Any:
        """What the field is in, after the edit."""
        return at(self.after, self.way[:-1])


def untrue(edit: Edit) -> bool | None:
    """Return whether an edit makes the plan untrue; None where that cannot be told from the documents."""
    way = edit.way
    if type(edit.old) is not type(edit.new) and not (edit.old is None or edit.new is None):
        return True
    if edit.old == edit.new:
        return None
    if is_formula(way):
        return _untrue_formula(edit.before, edit.after, way)
    if group(way) == "arenas.*.name" and not any(row["arena"] == edit.old for row in edit.before["buffers"]):
        return None  # an arena of no tensor may have any name
    rule = _rule_of(way)
    return True if rule is None else rule(edit)


def is_given(way: Way) -> bool:
    """Return whether the user gave the field at `way`, or it has two values: an edit of it alone is not always untrue."""
    return _rule_of(way) is _given


def _rule_of(way: Way) -> Rule | None:
    rule = RULES.get(str(way[-1]) if isinstance(way[-1], str) else group(way))
    return RULES.get(str(way[0]), rule) if way[0] in {"ranges", *FIXED, "states"} else rule


def _untrue_formula(base_: Document, edited: Document, way: Way) -> bool | None:
    before, after = at(base_, way), at(edited, way)
    sizes = grid(base_)
    if after is None or not isinstance(after, str) or any(value_at(after, one) is None for one in sizes):
        return None if after is None else True
    differs = [one for one in sizes if value_at(before, one) != value_at(after, one)]
    if not differs:
        return None
    if "strides_formula" in way:
        shape = at(base_, way[:-2])["shape_formula"][int(way[-1])]
        return any((value_at(shape, one) or 0) > 1 for one in differs) or None
    if "scaled_offset" in way:
        return True if way[0] != "buffers" else _moved_apart(edited, way, differs)
    if "pieces" in way:
        whole = at(edited, way[:-2])
        return (
            any(max(value_at(p, one) or 0 for p in whole["pieces"]) != value_at(whole["bytes"], one) for one in sizes)
            or None
        )
    return True


def _moved_apart(edited: Document, way: Way, sizes: list[dict[str, int]]) -> bool | None:
    """Return whether the row at `way`, with a new scaled offset, is on another one or not aligned at one of `sizes`."""
    rows = [row for row in edited["buffers"] if row["size"]]
    mine = edited["buffers"][way[1]]
    if not mine["size"]:
        return None
    if mine["alias"] is not None or any(row["alias"] == mine["name"] for row in rows):
        return True
    for one in sizes:
        start = value_at(mine["scaled_offset"], one) or 0
        end = start + (value_at(mine.get("size_formula", str(mine["size"])), one) or 0)
        if start < 0 or start % edited["alignment"]:
            return True
        for row in rows:
            if (
                row is mine
                or row["arena"] != mine["arena"]
                or row["last"] < mine["first"]
                or mine["last"] < row["first"]
            ):
                continue
            low = value_at(row["scaled_offset"], one) or 0
            high = low + (value_at(row.get("size_formula", str(row["size"])), one) or 0)
            if low < end and start < high:
                return True
    return None


def _offset(edit: Edit) -> bool | None:
    """Return whether the row at `way` is on another one, not aligned, or outside of its arena."""
    if edit.way[0] in {"constants", "bodies"}:
        is_odd = not isinstance(edit.new, int) or edit.new < 0 or edit.new % edit.after["alignment"] != 0
        return True if is_odd and edit.around["size"] and not edit.around.get("alias") else None
    if edit.way[0] != "buffers":
        return True
    document, mine = edit.after, edit.around
    rows = document["buffers"]
    if not mine["size"] or not isinstance(mine["offset"], int):
        return None
    if mine["alias"] is not None or any(row["alias"] == mine["name"] and row["size"] for row in rows):
        return True
    size = next(arena["size"] for arena in document["arenas"] if arena["name"] == mine["arena"])
    if mine["offset"] < 0 or mine["offset"] % document["alignment"] or mine["offset"] + mine["size"] > size:
        return True
    return any(row is not mine and _meet(row, mine) for row in rows) or None


def _meet(one: Document, two: Document) -> bool:
    """Return whether two rows without parts are live together on one byte."""
    if one["arena"] != two["arena"] or one.get("parts") or two.get("parts") or not one["size"]:
        return False
    is_together = one["first"] <= two["last"] and two["first"] <= one["last"]
    shares = one["offset"] < two["offset"] + two["size"] and two["offset"] < one["offset"] + one["size"]
    return bool(is_together and shares)


def _capacity(edit: Edit) -> bool | None:
    return (isinstance(edit.new, int) and edit.new < edit.around["size"]) or None


def _alignment(edit: Edit) -> bool | None:
    found = edit.after["alignment"]
    if not isinstance(found, int) or found < 1 or found & (found - 1):
        return True
    return any(row["offset"] % found for row in edit.after["buffers"] if row["alias"] is None) or None


def _ranges(edit: Edit) -> bool | None:
    low, high = edit.around
    if not isinstance(low, int) or not isinstance(high, int):
        return True
    # A part of the range is true, too; a larger one may be.
    return high != at(edit.before, edit.way[:-1])[1] or not 0 <= low <= high or None


def _bound(edit: Edit) -> bool | None:
    """Return whether the bound is known otherwise: with bodies or several arenas, more than the rows decide."""
    return None if edit.after["bodies"] or len(edit.after["arenas"]) > 1 else True


def _unsure(_: Edit) -> bool | None:
    return None


def _given(_: Edit) -> bool | None:
    return None


def _unless_null(edit: Edit) -> bool | None:
    return None if edit.new is None else True


def _of_a_workspace(edit: Edit) -> bool | None:
    """Return None for the size of a workspace, which is the affair of its kernel."""
    return None if at(edit.before, edit.way[:-1]).get("kind") == "workspace" else True


RULES: Mapping[str, Rule] = {
    "offset": _offset,
    "capacity": _capacity,
    "alignment": _alignment,
    "ranges": _ranges,
    **dict.fromkeys(FIXED, _unsure),  # another row may be named; one that is not there is refused elsewhere
    **dict.fromkeys(("keeps", "places", "io", "overwrite_inputs", "weights", "order", "attribute"), _given),
    "bound": _bound,
    "digest": _unless_null,
    "model": _unsure,
    "peak": _unless_null,
    "size": _of_a_workspace,
    "arena": _unless_null,
    "schedule.*": _unsure,
}


Made = tuple[Document, Way, bool | None]
"""An edited plan, the way to the edit, and whether it is untrue (None: not known)."""


def edited(base_: Base, rng: random.Random) -> Made:
    """Return a plan with an edit."""
    document = base_.document
    if rng.random() < 0.15:
        copied = copy.deepcopy(document)
        several = rng.choice(TOGETHER)(copied, rng)
        return several or (copied, (), None)
    groups: dict[str, list[Way]] = {}
    for way, _ in leaves(document):
        groups.setdefault(group(way), []).append(way)
    way = rng.choice(groups[rng.choice(sorted(groups))])
    made = changed(document, way, other(at(document, way), way, document, rng))
    return made, way, untrue(Edit(document, made, way))


def _larger_range(document: Document, rng: random.Random) -> Made | None:
    ranges = document.get("ranges", {})
    if not ranges:
        return None
    name = rng.choice(sorted(ranges))
    ranges[name][1] *= 2
    document["dims"][name] = ranges[name][1]
    return document, ("ranges", name), True


def _all_at_zero(document: Document, _: random.Random) -> Made | None:
    if not any("scaled_offset" in row for row in document["buffers"]):
        return None
    for row in document["buffers"]:
        row["scaled_offset"] = "0"
    for arena in document["formulas"]:
        arena["fixed"] = arena["scaled"] = {"bytes": "4", "pieces": ["4"]}
    return document, ("formulas",), True


def _other_axis(document: Document, rng: random.Random) -> Made | None:
    if not document.get("states"):
        return None
    state = rng.choice(document["states"])
    state["axis"] = (state["axis"] or 0) + 1
    return document, ("states",), True


def _no_strides(document: Document, rng: random.Random) -> Made | None:
    spread = [row for row in document["buffers"] if "strides" in row]
    if not spread:
        return None
    row = rng.choice(spread)
    del row["strides"], row["strides_formula"]
    return document, ("buffers", row["name"], "strides"), True


def _new_field(document: Document, rng: random.Random) -> Made | None:
    """Add a field that no plan has to one of its objects."""
    named = {"dims", "bounds", "ranges", "sums", "pins", "places"}
    objects = [way for way, _ in leaves(document) if "attributes" not in way and way[0] not in named]
    way = rng.choice(objects)[:-1]
    inner = at(document, way)
    if not isinstance(inner, dict):
        return None
    name = rng.choice(["note", "planner", "time", "verdict"])
    inner[name] = 1
    return document, (*way, name), True


def _doubled(document: Document, rng: random.Random) -> Made | None:
    rows = [row for row in document["buffers"] if row["kind"] != "workspace" and row["size"] and row["shape"]]
    if not rows:
        return None
    row = rng.choice(rows)
    row["size"] *= 2
    row["shape"][0] *= 2
    return document, ("buffers", row["name"], "size"), True


def _another_row(document: Document, rng: random.Random) -> Made | None:
    """Add a row once more, or remove it."""
    rows = document["buffers"]
    place = rng.randrange(len(rows))
    if rng.random() < 0.5:
        rows.append(rows[place])
        return document, ("buffers", place), True
    lost = rows.pop(place)
    is_own = lost["kind"] == "workspace" and not any(body["node"] == lost["node"] for body in document["bodies"])
    return document, ("buffers", place), None if is_own else True


def _higher_bound(document: Document, _: random.Random) -> Made | None:
    document["lower_bound"] += document["alignment"]
    document["gap"] -= document["alignment"]
    is_simple = not document["bodies"] and len(document["arenas"]) == 1
    return document, ("lower_bound",), True if is_simple and document["bound"] == "peak" else None


TOGETHER = (
    *(_larger_range, _all_at_zero, _other_axis, _no_strides),
    *(_new_field, _doubled, _another_row, _higher_bound),
)
"""Edits of several fields, or of the structure."""


def judged(seed: int) -> tuple[str, str | None]:
    """Edit a plan with `seed`; return what was edited, and what is wrong with the answer of the check (None: nothing).

    What was edited is "untrue" or "not known", as the oracle says.
    """
    rng = random.Random(seed)
    kind = sorted(KINDS)[seed % len(KINDS)]
    one = base(kind)
    document, way, is_untrue = edited(one, rng)
    where = f"{kind}: {'.'.join(map(str, way))}"
    known = "untrue" if is_untrue else "not known"
    try:
        refusal = one.refusal(document)
    except Exception as error:  # noqa: BLE001  # any other error is a fault of the check
        return known, f"{where}: {type(error).__name__}: {error}"
    if refusal is not None and "\n" in refusal:
        return known, f"{where}: an answer of several lines: {refusal!r}"
    if is_untrue and refusal is None:
        try:
            told = f"{at(one.document, way)!r} -> {at(document, way)!r}"
        except (KeyError, IndexError, TypeError):
            told = ""
        return known, f"{where}: accepted: {told}"
    return known, None


def main() -> None:
    """Judge the seeds from FIRST to LAST; end with 1 where one has a fault."""
    first, last = map(int, sys.argv[1:3])
    start, found, kinds = time.monotonic(), 0, Counter[str]()
    for kind in sorted(KINDS):
        refusal = base(kind).refusal(base(kind).document)
        if refusal is not None:
            found += 1
            sys.stdout.write(f"{kind}: the plan itself is refused: {refusal}\n")
    for seed in range(first, last + 1):
        known, fault = judged(seed)
        kinds[known] += 1
        if fault is not None:
            found += 1
            sys.stdout.write(f"seed {seed}: {fault}\n")
            sys.stdout.flush()
    told = f"{last - first + 1} edits of {len(KINDS)} kinds of plans, {kinds['untrue']} of them untrue"
    sys.stdout.write(f"{told}: {found} faults, {time.monotonic() - start:.0f} s\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
