"""Dataclasses whose methods are compiled at their first use.

The standard library compiles up to six methods for each dataclass, which takes 0.7 milliseconds. A command defines about 250, of which it
compares or prints few and makes instances of half: with these methods at once, a third of the time of a small command goes there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - mypy takes it for the same
else:

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, slots=False, kw_only=False):
        """Return `cls` as the decorator of the standard library does, for the options that are named here."""
        if slots:
            made = dataclasses.dataclass(repr=repr, eq=eq, frozen=frozen, slots=True, kw_only=kw_only)
            return made if cls is None else made(cls)

        def decorate(cls):
            # Only a subclass has to be frozen by the standard library, which compiles two methods for that.
            is_derived = any(map(dataclasses.is_dataclass, cls.__bases__))
            dataclasses.dataclass(cls, init=False, repr=False, eq=False, frozen=frozen and is_derived, kw_only=kw_only)
            needed = {"__init__": True, "__repr__": repr, "__eq__": eq, "__hash__": eq and frozen}
            own = {name for name, value in vars(cls).items() if value is not None}
            for name, is_needed in needed.items():
                if is_needed and name not in own:
                    setattr(cls, name, _AtFirstUse(cls, name, frozen))
            if eq and not frozen and "__hash__" not in own:
                cls.__hash__ = None
            if frozen and not is_derived:
                cls.__dataclass_params__.frozen = True
                cls.__setattr__, cls.__delattr__ = _refuse_assignment, _refuse_deletion
            return cls

        return decorate if cls is None else decorate(cls)


class _AtFirstUse:
    """A method of a dataclass that is written when it is first looked up. Two threads may do so at once."""

    def __init__(self, owner: Any, name: str, frozen: bool) -> None:
        self._owner = owner
        self._name = name
        self._frozen = frozen

    def __get__(self, instance: object, owner: type) -> Any:
        method = self._written()
        method.__qualname__ = f"{self._owner.__qualname__}.{self._name}"
        setattr(self._owner, self._name, method)
        return method.__get__(instance, owner)

    def _written(self) -> Any:
        """Return the method as the standard library writes it for a class that has the same fields and nothing else."""
        fields: list[Any] = [(field.name, field.type, field) for field in dataclasses.fields(self._owner)]
        # A class without a text of its own would get its signature as one, which takes longer than all else.
        members: dict[str, Any] = {"__doc__": "Not empty."}
        if hasattr(self._owner, "__post_init__"):
            members["__post_init__"] = None
        name, is_init = self._name, self._name == "__init__"
        twin = dataclasses.make_dataclass(
            "Twin",
            fields,
            namespace=members,
            init=is_init,
            frozen=is_init and self._frozen,
            repr=name == "__repr__",
            eq=name == "__eq__",
            unsafe_hash=name == "__hash__",
        )
        return vars(twin)[name]


def _refuse_assignment(_instance: object, name: str, _value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_instance: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
