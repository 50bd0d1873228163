"""Each field of the schema of plans is in a plan of some kind, and is refused where it is edited so that the plan is untrue."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from onnxtile.declare.plan_document import from_json
from onnxtile.system.errors import UsageError
from tests.hostile.plan_edits import KINDS, Edit, Way, at, base, changed, group, is_given, judged, leaves, other, untrue

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "plan.schema.json").read_text(encoding="utf-8"))


def fields(schema: Any, name: str = "") -> Iterator[str]:
    """Yield the fields of `schema` that have no fields of their own; one inside itself once."""
    if "$ref" in schema:
        schema = {**SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], **schema}
    inner = schema.get("properties", {})
    if inner:
        for key, one in inner.items():
            if not name.startswith("bodies.*") or key not in {"bodies", "buffers"}:
                yield from fields(one, f"{name}.{key}" if name else key)
    elif "items" in schema and "attributes" not in name:
        yield from fields(schema["items"], f"{name}.*")
    elif isinstance(schema.get("additionalProperties"), dict) and "attributes" not in name:
        yield from fields(schema["additionalProperties"], f"{name}.*")
    else:
        yield name


@cache
def ways() -> dict[str, list[tuple[str, Way]]]:
    """Return the kinds of plans that have each field, and the way to it."""
    found: dict[str, list[tuple[str, Way]]] = {}
    for kind in KINDS:
        for way, _ in leaves(base(kind).document):
            found.setdefault(group(way), []).append((kind, way))
    return found


VALUES: tuple[Any, ...] = (None, 0.5, {})


def test_the_schema_allows_the_types_that_the_document_has() -> None:
    """Each field is once null, once a fraction, once an object: the schema and the reader of documents allow it, or neither does."""
    allowed, differing = jsonschema.Draft202012Validator(SCHEMA), []
    sizes = {kind: len(json.dumps(base(kind).document)) for kind in KINDS}
    for name, found in ways().items():
        kind, way = min(found, key=lambda place: sizes[place[0]])
        for value in VALUES:
            document = changed(base(kind).document, way, value)
            if allowed.is_valid(document) != is_read(document):
                differing.append((name, value))
    assert not differing


def is_read(document: Any) -> bool:
    try:
        return not from_json(json.dumps(document).encode(), "plan.json").surplus
    except UsageError:
        return False


def test_each_kind_of_plan_is_accepted() -> None:
    assert {kind: base(kind).refusal(base(kind).document) for kind in KINDS} == dict.fromkeys(KINDS)


def test_each_field_of_the_schema_is_in_a_plan() -> None:
    told = {name for name in fields(SCHEMA) if "attributes" not in name}
    seen = {name for name in ways() if "attributes" not in name}
    # A tensor of a known shape without an address is one of an unknown type, which no engine leaves.
    assert told - seen == {"unplanned.*.shape.*"}
    # Some lists and objects may be null.
    left = {name for name in seen - told if not any(one.startswith(f"{name}.") for one in told)}
    assert {name for name in left if not name.startswith("bodies.*")} == set()


def test_each_field_is_refused_where_it_is_made_untrue() -> None:
    rng = random.Random(0)
    unsure = set()
    for name, places in ways().items():
        tried = 0
        for _ in range(60):
            kind, way = rng.choice(places)
            document = base(kind).document
            made = changed(document, way, other(at(document, way), way, document, rng))
            if untrue(Edit(document, made, way)):
                tried += 1
                assert base(kind).refusal(made) is not None, (kind, way, at(document, way), at(made, way))
            if tried == 3:
                break
        if not tried:
            unsure.add(name)
    assert [name for name in unsure if not is_given(ways()[name][0][1])] == []  # other tests edit those


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_edits_by_seed(first: int) -> None:
    faults = [fault for seed in range(first, first + 50) if (fault := judged(seed)[1]) is not None]
    assert faults == []
