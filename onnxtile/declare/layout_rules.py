"""The rules of a layout: what a plan has to do with named tensors and workspaces, from a TOML file or a table in Python.

```toml
keep = ["embedding/add"]       # tensors whose bytes are shared with nothing
whole_buffers = true           # all bytes of a buffer are live as long as one is

[pins]                         # the offset of a tensor in its memory
logits = "4KiB"

[places]                       # the memory of a tensor, one of those with a capacity
logits = "sram"

[workspaces]                   # the bytes that a kernel needs beside its operands and results
MatMul = "4096 shared; 64 unique"
"*" = "shared"                 # one workspace for all kernels, as large as the largest
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypedDict

from onnxtile.declare.values import (
    Unreadable,
    ValueKind,
    read_file,
    read_flag,
    read_names,
    read_offsets,
    read_rules,
    read_texts,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, nearest

ALL_KERNELS = "*"
"""The name in `workspaces` that stands for all kernels; its only rule is "shared"."""


class LayoutTable(TypedDict, total=False):
    """The rules of a layout as a table in Python, with the keys of a layout file.

    `pins` are offsets in bytes (4096, or "4KiB") and `places` memories, by the name of a tensor; tensors in `keep` share their bytes with
    nothing. `workspaces` has the bytes of workspaces by operator or node, as texts such as "1KiB". With `whole_buffers`, all bytes of a
    buffer are live as long as one is.
    """

    pins: Mapping[str, int | str]
    places: Mapping[str, str]
    keep: tuple[str, ...] | list[str] | str
    workspaces: Mapping[str, str]
    whole_buffers: bool


@dataclass(frozen=True)
class LayoutRules:
    """The rules of a layout.

    `pins` are offsets in bytes and `places` memories, by the name of a tensor or of a workspace; tensors in `keep` share their bytes with
    nothing. `workspaces` has the bytes of workspaces by operator or node, as texts; `shared_workspaces` says that all kernels use one, the
    largest. With `whole_buffers`, all bytes of a buffer are live as long as one is.
    """

    pins: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    workspaces: Mapping[str, str] = field(default_factory=dict)
    whole_buffers: bool = False
    shared_workspaces: bool = False

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> LayoutRules:
        """Return the rules that a table says. Raises Unreadable with the key at fault."""
        for key in table:
            if key not in _READERS:
                raise Unreadable("there is no such rule", hint=nearest(key, list(_READERS)), key=key)
        said = {key: _read(key, value) for key, value in table.items()}
        workspaces = dict(said.get("workspaces", {}))
        common = workspaces.pop(ALL_KERNELS, None)
        if common not in {None, "shared"}:
            raise Unreadable(f'the rule of "{ALL_KERNELS}" is "shared", not {common!r}', key="workspaces")
        return cls(**{**said, "workspaces": workspaces}, shared_workspaces=common is not None)


def _read(key: str, value: Any) -> Any:
    try:
        return _READERS[key](value)
    except Unreadable as error:
        entry = "" if error.key is None else f"{error.key!r}: "
        raise Unreadable(f"{entry}{error.reason}", hint=error.hint, key=key) from None


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "pins": read_offsets,
    "places": read_names,
    "keep": read_texts,
    "workspaces": read_rules,
    "whole_buffers": read_flag,
}


def rules_in(path: Path) -> LayoutRules:
    """Return the rules in a TOML file. Raises UsageError with the file, the line and the key at fault."""
    from onnxtile.system.toml_file import read

    file = read(path, UsageError)
    try:
        return LayoutRules.of(file.content)
    except Unreadable as error:
        where = () if error.key is None else (error.key,)
        raise UsageError(f"{file.place(where)}: {error.key}: {error.reason}", hint=error.hint) from None


def _read_layout(value: Any) -> LayoutRules | Path:
    """Return the rules in a table; the path of a file stands for the rules in it, which are read later."""
    if isinstance(value, LayoutRules):
        return value
    return LayoutRules.of(value) if isinstance(value, Mapping) else read_file(value)


LAYOUT = ValueKind(
    _read_layout, forms=('"layout.toml"', '{"pins": {"x": 4096}, "places": {"y": "sram"}, "keep": ["z"]}')
)
