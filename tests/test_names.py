"""One type name has one meaning in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import onnxtile

PACKAGE = Path(onnxtile.__file__).parent


def _types(file: Path) -> set[str]:
    """Return the names of the classes of a module, at any depth, and of its type aliases."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {one.id for one in targets if isinstance(one, ast.Name) and one.id.lstrip("_")[:1].isupper()}
    return {name for name in found if not name.isupper()}


def test_no_two_types_have_one_name() -> None:
    places = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for name in _types(file):
            places[name.lstrip("_")].append(str(file.relative_to(PACKAGE)))
    assert len(places) > 300
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
