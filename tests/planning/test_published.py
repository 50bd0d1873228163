"""The check of what is published: every field of a plan's JSON that is changed so that the plan is wrong is refused."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import onnxtile
from onnxtile.check.audit import Audit, check, judged, require
from onnxtile.check.reading import from_marks
from onnxtile.declare.plan_document import (
    Arena,
    ArenaFormula,
    Constant,
    Excluded,
    MemoryCopy,
    PlanDocument,
    PlannedBody,
    PlannedBuffer,
    PlannedInput,
    PlannedMovement,
    PlannedPart,
    PlannedState,
    SizeText,
    TransferTime,
    document_of,
    from_json,
)
from onnxtile.kernels.from_onnx import read_kernels
from onnxtile.kernels.kernel_graph import AROUND, KernelGraph, live_ranges
from onnxtile.model.topology import bodies_of
from onnxtile.operators.table import FIRST, operators
from onnxtile.planning import layout as graph_layout
from onnxtile.planning import model_plan, rows
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.rows import annotate
from onnxtile.planning.workspaces import Needs, WorkspaceRules
from onnxtile.system.errors import CheckFailed, UsageError
from tests.hostile.plan_edits import changed
from tests.planning.conftest import Case
from tests.planning.test_bodies import IN_A_LOOP, SCAN
from tests.planning.test_functions import GRAPHS
from tests.planning.test_functions import model as calling
from tests.planning.test_live import NESTED
from tests.planning.test_mutations import MIXED

Document: TypeAlias = dict[str, Any]
Path_: TypeAlias = tuple[str | int, ...]

WORKSPACES = WorkspaceRules.from_texts({"Exp": "100", "Softmax": "outputs[0].bytes"}, shared=False)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "parts, views and in place": (MIXED, {}),
    "inputs inside": (MIXED, {"io": "inside", "alignment": 16}),
    "outputs outside": (MIXED, {"io": "outside"}),
    "streams": (MIXED, {"streams": 2}),
    "every order": (MIXED, {"order": "any"}),
    "arenas and workspaces": (MIXED, {"capacity": {"fast": 256, "slow": 9000}, "workspaces": WORKSPACES}),
    "If in Loop": (IN_A_LOOP, {}),
    "inputs overwritten": (MIXED, {"io": "inside", "overwrite_inputs": True}),
    "Scan": (SCAN, {"workspaces": WORKSPACES}),
    "If in If": (NESTED, {"planner": "naive"}),
    "calls in calls": (calling(GRAPHS["twice"]), {}),
    "calls in branches": (calling(GRAPHS["in branches"]), {}),
}
every_case = pytest.mark.parametrize("name", CASES)
rare_case = pytest.mark.parametrize(
    "name", ["outputs outside", "inputs overwritten", "Scan", "If in If", "calls in branches"]
)
"""Fields and rows of the others are edited by tests/hostile/plan_edits.py."""


def planned(name: str) -> tuple[Case, Document]:
    text, options = CASES[name]
    case = Case.of(text)
    return case, document_of(case.plan(**options).to_dict())


def audit(case: Case, document: Document) -> Audit:
    found = from_json(json.dumps(document).encode(), "plan.json")
    assert not found.surplus
    return judged(case.checked, found.document)


def is_refused(case: Case, document: Document) -> bool:
    try:
        return not audit(case, document).sound
    except UsageError:
        return True


def fields(found: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield every field of a document that is no list or object, with the way to it."""
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from fields(value, (*path, key))
    else:
        yield path, found


def lists(found: Any, path: Path_ = ()) -> Iterator[tuple[Path_, list[Any]]]:
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from lists(value, (*path, key))
    if isinstance(found, list):
        yield path, found


def others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, value - 64]
    return [f"{value}x"] if isinstance(value, str) else ["x", 1]


def is_of_a_kernel(row: Any, document: Document) -> bool:
    """Return whether `row` is a workspace of a node without bodies."""
    bodies, names = list(document["bodies"]), set()
    while bodies:
        names.add(f"{bodies[-1]['node']} (workspace)")
        bodies += bodies.pop()["bodies"]
    return isinstance(row, dict) and row.get("kind") == "workspace" and row["name"] not in names


def is_free(document: Document, path: Path_, value: Any) -> bool:
    """Return whether a plan with `value` at `path` is right as well."""
    key, row = path[-1], document
    for step in path[:-1]:
        row = row[step]  # type: ignore[index]
    if len(path) == 1:
        return key in {"digest", "model"}  # of a model that is no file
    if not isinstance(row, dict):
        return False
    if key == "capacity":
        return isinstance(value, int) and value >= row["size"]
    is_larger = isinstance(value, int) and row.get("kind") == "workspace" and value > row["size"]
    if key == "size" and isinstance(value, int) and (is_larger or is_of_a_kernel(row, document)):
        return True  # how many bytes it asks for is its own affair
    # Moved to where nothing else is.
    return key == "offset" and isinstance(value, int) and value % document["alignment"] == 0


@every_case
def test_a_plan_is_sound_as_a_result_as_json_and_as_metadata(name: str) -> None:
    case, document = planned(name)
    assert audit(case, document).failures == ()
    text, options = CASES[name]
    made, read = Case.of(text).plan(**options), from_json(json.dumps(document).encode(), "plan.json").document
    said = {one.name: getattr(made, one.name) for one in dataclasses.fields(PlanDocument)}
    assert read == PlanDocument(**{**said, "order": document["order"]})
    model = case.model.clone()
    annotate(model, case.plan(**options))
    found = check(case.model, from_marks(model, "planned.onnx"), case.shapes, case.constants)
    assert found.failures == ()
    if name.startswith("calls"):  # metadata says nothing of what lies inside functions
        return
    assert (found.tensors, found.aliases, found.bodies) == (
        audit(case, document).tensors,
        audit(case, document).aliases,
        audit(case, document).bodies,
    )


@rare_case
def test_every_field_that_is_made_wrong_is_refused(name: str, share: Callable[[Iterable[Any], int], list[Any]]) -> None:
    case, document = planned(name)
    edits = [
        (path, value, other)
        for path, value in fields(document)
        for other in others(value)
        if not is_free(document, path, other)
    ]
    assert len(edits) > 150
    for path, value, other in share(edits, 3):
        assert is_refused(case, changed(document, path, other)), (path, value, other)


@rare_case
def test_every_row_that_is_missing_or_there_twice_is_refused(
    name: str, share: Callable[[Iterable[Any], int], list[Any]]
) -> None:
    case, document = planned(name)
    rows = [(path, listed, place) for path, listed in lists(document) for place in range(len(listed))]
    for path, listed, place in share(rows, 2):
        row = listed[place]
        is_needless = is_of_a_kernel(row, document) or (path[-1] == "arenas" and not row["size"])
        without = changed(document, path, listed[:place] + listed[place + 1 :])
        assert is_needless or is_refused(case, without), (path, row)
        assert is_refused(case, changed(document, path, [*listed, row])), (path, row)


@every_case
def test_every_key_that_says_where_values_lie_is_required(name: str) -> None:
    case, document = planned(name)
    for key in ("version", "alignment", "arenas", "schedule", "steps", "buffers", "io"):
        with pytest.raises(UsageError, match=rf"plan.json is not a plan: {key}"):
            audit(case, {k: v for k, v in document.items() if k != key})


def test_figures_that_are_left_out_are_not_checked() -> None:
    case, document = planned("parts, views and in place")
    places = {"name", "arena", "offset", "size", "alias", "kind"}
    bare = {
        **{key: document[key] for key in ("version", "alignment", "schedule", "steps", "io")},
        "arenas": [{"name": arena["name"], "size": 4096} for arena in document["arenas"]],
        "buffers": [{key: row[key] for key in row.keys() & places} for row in document["buffers"]],
    }
    assert audit(case, bare).sound
    assert not audit(case, {**bare, "buffers": bare["buffers"][1:]}).sound


def test_an_arena_may_end_with_its_last_byte() -> None:
    """Peak and lower bound are in whole blocks of the alignment; an arena need not be."""
    case = Case.of(
        "g (float[5] x) => (float[3] y) { i = Constant<value = int64[3] {0, 2, 4}>() a = Sin(x) y = Gather(a, i) }"
    )
    document = document_of(case.plan(alignment=8).to_dict())
    (arena,) = document["arenas"]
    end = max(row["offset"] + row["size"] for row in document["buffers"])
    assert end < arena["size"] == document["peak"] == document["lower_bound"]
    shorter = {**document, "arenas": [{**arena, "size": end}], "totals": {**document["totals"], "arenas": end}}
    assert audit(case, shorter).failures == ()
    assert not audit(case, {**shorter, "arenas": [{**arena, "size": end - 1}]}).sound


def test_a_field_that_nothing_derives_is_refused_by_name(tmp_path: Path) -> None:
    case, document = planned("parts, views and in place")
    file = tmp_path / "plan.json"

    def refused(edited: Document) -> list[str]:
        file.write_text(json.dumps(edited))
        return [failure.reason.partition(":")[0] for failure in onnxtile.check_plan(case.model, file).failures]

    for name in ("planner", "optimal_over", "verdict", "note"):
        assert refused({**document, name: None}) == [name]
    document["buffers"][0]["note"] = 1
    assert refused(document) == ["buffers.0.note"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "version is not 1"),
        ('{"version": 2}', "version is not 1"),
        ('{"version": true}', "version is not 1"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"version": 1, "alignment": 1e3}', "alignment: "),
        ('{"version": 1, "alignment": 99999999999999999999999999}', "a number is larger"),
        ('{"version": 1, "alignment": NaN}', "is not a plan"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        from_json(text.encode(), "plan.json")
    assert "\n" not in str(refused.value)


def test_a_model_without_a_plan_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a planned model"):
        from_marks(Case.of(MIXED).model, "model.onnx")


@pytest.mark.parametrize("wrong", ["", "{", '{"alignment": 64}', "[1]"])
def test_metadata_that_is_no_plan_is_refused(wrong: str) -> None:
    case = Case.of(MIXED)
    annotate(case.model, case.plan())
    case.model.graph.metadata_props["pkg.onnxtile.plan"] = wrong
    with pytest.raises(UsageError, match="is not a planned model"):
        from_marks(case.model, "model.onnx")


CONSTANTS = {
    "of all forms": """
    g (float[4] x) => (float[4] y, float[2] z) <float[4] w = {1, 2, 3, 4}> {
      k = Constant <value_float = 2.0> () s = Mul(w, k) r = Add(x, s) n = Neg(k) y = Mul(r, n)
      zero = Constant <value_ints = [0]> () two = Constant <value = int64[1] {2}> ()
      part = Slice(s, zero, two) z = RandomNormalLike(part) }
    """,
    **{name: text for name, (text, _) in CASES.items()},
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_check_finds_the_constants_of_a_model_by_itself(name: str) -> None:
    case = Case.of(CONSTANTS[name])
    todo = [(case.model.graph, case.checked.graph)]
    while todo:
        graph, read = todo.pop()
        made = (value for node in graph for value in node.outputs)
        known = {v.name for v in (*graph.inputs, *graph.initializers.values(), *made) if v in case.constants}
        assert {v.name for v in (*read.values, *read.initializers) if v.is_constant} == known
        for node, other in zip(graph, read.nodes, strict=True):
            todo += [(body.graph, other.bodies[body.attribute]) for body in bodies_of(node)]


# Planners at fault.


def refusal(case: Case, **options: Any) -> str:
    found = plan_model(case.model, case.shapes, case.constants, PlanSettings(**options))
    with pytest.raises(CheckFailed) as refused:
        require(case.model, found, case.shapes, case.constants)
    return str(refused.value)


def test_a_tensor_that_the_planner_loses_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(*given: Any) -> KernelGraph:
        graph = read_kernels(*given)
        lost = (replace(one, role=AROUND) if one.name == "g" else one for one in graph.tensors)
        return replace(graph, tensors=tuple(lost))

    monkeypatch.setattr(model_plan, "read_kernels", losing)
    assert "'g' has no address for its 400 bytes" in refusal(Case.of(MIXED))


def test_a_workspace_on_a_live_operand_is_refused() -> None:
    case = Case.of(MIXED)
    document = document_of(case.plan(workspaces=WORKSPACES).to_dict())
    number = next(i for i, row in enumerate(document["buffers"]) if row["name"] == "y (workspace)")
    operand = next(row for row in document["buffers"] if row["name"] == "z")
    found = audit(case, changed(document, ("buffers", number, "offset"), operand["offset"])).failures
    assert any("'y (workspace)'" in failure.reason and "are live together" in failure.reason for failure in found)


def test_a_workspace_too_small_for_its_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces = Needs.workspaces

    def smaller(self: Needs, graph: KernelGraph, schedule: Any) -> Any:
        bodies = {kernel: size - 64 for kernel, size in self.bodies.items()}
        return workspaces(replace(self, bodies=bodies), graph, schedule)

    monkeypatch.setattr(Needs, "workspaces", smaller)
    assert "is too small for the" in refusal(Case.of(SCAN))


@pytest.mark.parametrize("dtype", ["float16", "float", "int64"])
def test_a_planner_that_takes_a_transpose_for_a_view_is_refused(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operators(), "Transpose", replace(operators()["Transpose"], same="view"))
    case = Case.of(f"g ({dtype}[4,4] x) => ({dtype}[4,4] y) {{ a = Neg(x) b = Transpose(a) y = Neg(b) }}")
    assert "(Transpose) is no lawful alias of" in refusal(case)


@pytest.mark.parametrize("operator", ["Hardmax", "CumSum", "LRN"])
def test_a_planner_that_writes_over_what_is_still_needed_is_refused(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(operators(), operator, replace(operators()[operator], over=FIRST))
    node = {"CumSum": "b = CumSum(a, axis)", "LRN": "b = LRN<size = 3>(a)"}.get(operator, f"b = {operator}(a)")
    case = Case.of(
        "g (float[1,4,4,4] x) => (float[1,4,4,4] y) "
        f"{{ axis = Constant<value = int64 {{1}}>() a = Neg(x) {node} y = Neg(b) }}"
    )
    assert f"({operator}) is no lawful alias of" in refusal(case)


def test_a_planner_without_lives_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_layout, "live_ranges", _short_lives)
    assert "is live in the steps" in refusal(Case.of(MIXED))


def _short_lives(graph: KernelGraph, schedule: Any) -> dict[int, tuple[int, int]]:
    return {tensor: (first, first + 1) for tensor, (first, _) in live_ranges(graph, schedule).items()}


@pytest.mark.parametrize("field", ["first", "last", "alias", "kind", "node", "dtype"])
def test_rows_that_are_built_wrongly_are_refused(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PlannedBuffer

    def wrong(*given: Any, **named: Any) -> Any:
        values: dict[str, Any] = {"first": 0, "last": 99, "alias": None, "kind": "input", "node": "a", "dtype": "INT8"}
        return made(*given, **{**named, field: values[field]})

    monkeypatch.setattr(rows, "PlannedBuffer", wrong)
    assert refusal(Case.of(MIXED)).startswith("the plan is not sound")


def test_no_rows_at_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtile.planning.model_plan.planned", lambda *_: ())
    assert "has no address for its" in refusal(Case.of(MIXED))


# What it rests on.

PACKAGE = Path(onnxtile.__file__).parent
SHARED = {
    "onnxtile.system.dataclass",
    "onnxtile.system.errors",
    "onnxtile.system.interpreter",
    "onnxtile.model.keys",
    "onnxtile.declare.layout_rules",
    "onnxtile.declare.plan_document",
    "onnxtile.declare.verb",
}


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module in {"onnxtile", "onnxtile.model"}:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def test_the_check_shares_no_code_with_what_it_checks() -> None:
    files = sorted((PACKAGE / "check").glob("*.py"))
    assert len(files) > 8
    for file in files:
        for module in (name for name in _imports(file) if name.split(".")[0] == "onnxtile"):
            is_own = module.startswith("onnxtile.check.")
            assert is_own or module in SHARED or module.startswith(("onnxtile.model.", "onnxtile.shapes.")), (
                f"{file.name} imports {module}"
            )


def test_one_file_of_the_check_knows_a_model_in_memory() -> None:
    """The others read the protobuf: what shape inference knows comes to them as plain data."""
    files = (PACKAGE / "check").glob("*.py")
    assert {file.name for file in files if "\nimport onnx_ir" in file.read_text()} == {"reading.py"}


def test_a_body_whose_last_bytes_are_a_part_of_a_larger_tensor() -> None:
    case = Case.of("""
    g (float[2,3] x, bool p) => (float[4,3] y) {
      a = Relu(x)
      y = If (p) <
        then_branch = t () => (float[4,3] r) { u = Sin(a) v = Exp(a) w = Concat<axis = 0>(u, v) r = Neg(w) },
        else_branch = e () => (float[4,3] s) { s = Concat<axis = 0>(a, a) }>
    }
    """)
    result = case.plan()
    assert any(row.alias is not None and row.offset % 64 for body in result.bodies for row in body.buffers)


def test_rows_may_stand_in_any_order() -> None:
    case, document = planned("If in Loop")
    turned = {**document, "buffers": document["buffers"][::-1], "bodies": document["bodies"][::-1]}
    assert audit(case, turned).sound


CLAIMED: dict[str, type] = {
    **{"": PlanDocument, "buffer": PlannedBuffer, "part": PlannedPart, "body": PlannedBody, "input": PlannedInput},
    **{"arena": Arena, "constant": Constant, "excluded": Excluded, "state": PlannedState},
    **{"movement": PlannedMovement, "memory_copy": MemoryCopy, "transfer_time": TransferTime},
    **{"arena_formula": ArenaFormula, "size_pieces": SizeText},
}
"""By row of the schema, what the check reads it as."""


@pytest.mark.parametrize("row", CLAIMED)
def test_the_schema_has_the_fields_that_the_check_reads(row: str) -> None:
    schema = json.loads((PACKAGE.parent / "docs" / "plan.schema.json").read_text(encoding="utf-8"))
    described = schema["$defs"][row] if row else schema
    assert {*described["properties"]} == {one.name for one in dataclasses.fields(CLAIMED[row])}
