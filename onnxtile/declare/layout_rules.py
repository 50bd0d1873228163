"""The rules of a layout: what a plan has to do with named tensors and workspaces, from a TOML file, a table in Python, or metadata.

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
from typing import Any, NamedTuple, TypedDict

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
from onnxtile.model import keys
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, nearest
from onnxtile.system.text import whole

# The rules for named tensors: a plan says them, and its check compares them with the rows.


class FixedRule(NamedTuple):
    """A rule for named tensors. `title` describes such a tensor; `key` is the rule's key in a layout file, and `read` parses its value.

    `mark` is the metadata key that gives a value the same rule; `read_mark` parses its text, and returns None where there is no rule.
    `holds` makes the field of FixedRules from the entries by tensor name. Both parsers raise Unreadable.
    """

    title: str
    key: str
    read: Callable[[Any], Any]
    mark: str
    read_mark: Callable[[str], Any]
    holds: Callable[[Mapping[str, Any]], Any] = dict
    takes_workspaces: bool = True


def _offset_of(text: str) -> int:
    number = whole(text)
    if number is None:
        raise Unreadable(f"is {text!r}, not a number of bytes")
    return number


def _flag_of(text: str) -> bool | None:
    if text not in {"true", "false"}:
        raise Unreadable(f"is {text!r}", hint="write true or false")
    return text == "true" or None


FIXED: Mapping[str, FixedRule] = {
    "pins": FixedRule("pinned", "pins", read_offsets, keys.PREFIX + "pin", _offset_of),
    "places": FixedRule("placed", "places", read_names, keys.PREFIX + "place_in", str),
    "keeps": FixedRule("kept", "keep", read_texts, keys.PREFIX + "keep", _flag_of, tuple, takes_workspaces=False),
}
"""The fields of FixedRules."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FixedRules:
    """The tensors and workspaces that a user names.

    `pins` are their offsets in bytes, `places` their memories. Tensors of `keeps` share bytes with nothing for the whole run, so their
    values may be read at any time after they are made.
    """

    pins: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()

    @property
    def fixed_entries(self) -> dict[str, dict[str, Any]]:
        """The entries of each rule by the name of the tensor; True where a rule only names it."""
        every = {rule: getattr(self, rule) for rule in FIXED}
        return {rule: dict(of) if isinstance(of, Mapping) else dict.fromkeys(of, True) for rule, of in every.items()}

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """All names in it, each once."""
        return tuple(dict.fromkeys(name for of in self.fixed_entries.values() for name in of))

    @property
    def fixed_fields(self) -> dict[str, Any]:
        """The fields, by name."""
        return {rule: FIXED[rule].holds(of) for rule, of in self.fixed_entries.items()}

    @property
    def rules(self) -> dict[str, Any]:
        """The rules that name a tensor, ready for JSON."""
        return {rule: list(of) if isinstance(of, tuple) else of for rule, of in self.fixed_fields.items() if of}

    def over(self, others: Mapping[str, Mapping[str, Any]]) -> FixedRules:
        """Return these rules and the entries of `others`, by rule and name; those of a tensor that has an entry here are left out."""
        return FixedRules(
            **{rule: FIXED[rule].holds({**others[rule], **of}) for rule, of in self.fixed_entries.items()}
        )

    def renamed(self, new: Callable[[str], str]) -> FixedRules:
        """Return the rules for tensors with `new` names."""
        entries = {rule: {new(name): entry for name, entry in of.items()} for rule, of in self.fixed_entries.items()}
        return FixedRules().over(entries)


# The rules of a layout: those, and what it says of workspaces and buffers.

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


@dataclass(frozen=True, kw_only=True)
class LayoutRules(FixedRules):
    """The rules of a layout.

    `workspaces` has the bytes of workspaces by operator or node, as texts; `shared_workspaces` says that all kernels use one, the largest.
    With `whole_buffers`, all bytes of a buffer are live as long as one is.
    """

    workspaces: Mapping[str, str] = field(default_factory=dict)
    whole_buffers: bool = False
    shared_workspaces: bool = False

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> LayoutRules:
        """Return the rules that a table says. Raises Unreadable with the key at fault."""
        for key in table:
            if key not in _READERS:
                raise Unreadable("there is no such rule", hint=nearest(key, list(_READERS)), key=key)
        rules = {_READERS[key][0]: _read(key, value) for key, value in table.items()}
        workspaces = dict(rules.get("workspaces", {}))
        common = workspaces.pop(ALL_KERNELS, None)
        if common not in {None, "shared"}:
            raise Unreadable(f'the rule of "{ALL_KERNELS}" is "shared", not {common!r}', key="workspaces")
        return cls(**{**rules, "workspaces": workspaces}, shared_workspaces=common is not None)


def _read(key: str, value: Any) -> Any:
    try:
        return _READERS[key][1](value)
    except Unreadable as error:
        entry = "" if error.key is None else f"{error.key!r}: "
        raise Unreadable(f"{entry}{error.reason}", hint=error.hint, key=key) from None


_READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    **{rule.key: (name, rule.read) for name, rule in FIXED.items()},
    "workspaces": ("workspaces", read_rules),
    "whole_buffers": ("whole_buffers", read_flag),
}
"""The field that each key of a layout is, and what reads it."""


def rules_in(path: Path) -> LayoutRules:
    """Return the rules in a TOML file. Raises UsageError with the file, the line and the key at fault."""
    from onnxtile.system.toml_file import read

    file = read(path, UsageError)
    try:
        return LayoutRules.from_table(file.content)
    except Unreadable as error:
        where = () if error.key is None else (error.key,)
        raise UsageError(f"{file.place(where)}: {error.key}: {error.reason}", hint=error.hint) from None


def _read_layout(value: Any) -> LayoutRules | Path:
    """Return the rules in a table; the path of a file stands for the rules in it, which are read later."""
    if isinstance(value, LayoutRules):
        return value
    return LayoutRules.from_table(value) if isinstance(value, Mapping) else read_file(value)


LAYOUT = ValueKind(
    _read_layout, forms=('"layout.toml"', '{"pins": {"x": 4096}, "places": {"y": "sram"}, "keep": ["z"]}')
)
