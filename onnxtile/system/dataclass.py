"""Dataclasses that define little code at an import.

The standard library compiles up to six methods for each dataclass, which takes 0.7 milliseconds. A command defines about 250, of which it
compares or prints few and makes instances of half: with these methods at once, a third of the time of a small command goes there.
Here only `__init__` is compiled, and only once it has been called so often that the time is won back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from functools import cached_property, partial
from operator import attrgetter
from reprlib import recursive_repr
from threading import local
from typing import TYPE_CHECKING, Any, NoReturn

_OFTEN = 500
"""Calls of an `__init__` that take as long, beyond those of the compiled one, as it takes to compile it."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - mypy takes it for the same
else:

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, slots=False, kw_only=False):
        """Return `cls` as the decorator of the standard library does, for the options that are named here."""
        if slots:
            made = dataclasses.dataclass(repr=repr, eq=eq, frozen=frozen, slots=True, kw_only=kw_only)
            return made if cls is None else made(cls)

        def decorate(cls):
            bases = [base.__dataclass_params__ for base in cls.__bases__ if dataclasses.is_dataclass(base)]
            inherits = frozen and bool(bases) and all(isinstance(one, _FrozenParameters) for one in bases)
            # In place of no docstring, the standard library would write a signature, which takes long.
            doc, cls.__doc__ = cls.__doc__, "Not empty."
            # What is not frozen by its bases has to be frozen by the standard library, where it has some.
            is_frozen = frozen and bool(bases) and not inherits
            with _FrozenParameters.hidden(inherits):
                dataclasses.dataclass(cls, init=False, repr=False, eq=False, frozen=is_frozen, kw_only=kw_only)
            cls.__doc__ = doc
            own = {name for name, value in vars(cls).items() if value is not None}
            fields = dataclasses.fields(cls)
            compared = [field for field in fields if field.compare]
            methods = {"__init__": _Initialiser(cls, frozen)}
            if repr:
                methods["__repr__"] = _repr([field.name for field in fields if field.repr])
            if eq:
                methods["__eq__"] = _eq([field.name for field in compared])
            if eq and frozen:
                methods["__hash__"] = _hash([f.name for f in compared if f.hash is not False])
            for name in methods.keys() - own:
                setattr(cls, name, methods[name])
            if eq and not frozen and "__hash__" not in own:
                cls.__hash__ = None
            if frozen and not bases:
                cls.__setattr__, cls.__delattr__ = _refuse_assignment, _refuse_deletion
            if frozen and not is_frozen:
                cls.__dataclass_params__ = _FrozenParameters(cls.__dataclass_params__)
            return cls

        return decorate if cls is None else decorate(cls)


class _FrozenParameters:
    """The parameters of a frozen class. They are `hidden` while a subclass is made that has its methods: the standard library
    would compile two more for it.
    """

    _now = local()

    def __init__(self, parameters: Any) -> None:
        self._parameters = parameters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameters, name)

    @property
    def frozen(self) -> bool:
        """Whether the class is frozen, as the standard library asks."""
        return not getattr(self._now, "are_hidden", False)

    @classmethod
    @contextmanager
    def hidden(cls, are_hidden: bool) -> Iterator[None]:
        """Let the parameters of all classes say in this thread that they are not frozen, if `are_hidden`."""
        cls._now.are_hidden = are_hidden
        try:
            yield
        finally:
            cls._now.are_hidden = False


class _Initialiser:
    """The `__init__` of a dataclass, compiled once it has been called often. Two threads may compile it at once."""

    def __init__(self, owner: Any, frozen: bool) -> None:
        self._owner = owner
        self._frozen = frozen
        self._calls = 0

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None and self._calls < _OFTEN:
            self._calls += 1
            return partial(self._set_fields, instance)
        return self._compiled().__get__(instance, owner)

    @cached_property
    def _arguments(self) -> tuple[str, ...]:
        """The names of the arguments that may be given by position."""
        return tuple(field.name for field in dataclasses.fields(self._owner) if field.init and not field.kw_only)

    @cached_property
    def _fields(self) -> list[tuple[str, bool, Any, Any]]:
        """What is set: the name of a field, whether it is an argument, its default, and what makes that; MISSING where it has none."""
        fields = dataclasses.fields(self._owner)
        return [
            (f.name, f.init, f.default, f.default_factory) for f in fields if f.init or f.default_factory is not MISSING
        ]

    def _set_fields(self, instance: Any, /, *given: object, **by_name: object) -> None:
        """Do what the compiled method does; where the arguments do not fit, call that, since it says why."""
        values = dict(zip(self._arguments, given, strict=False)) | by_name
        fits = len(values) == len(given) + len(by_name)
        fields = vars(instance)  # a frozen class refuses assignments, which take longer, too
        for name, is_argument, default, factory in self._fields:
            if is_argument and name in values:
                fields[name] = values.pop(name)
            elif factory is not MISSING:
                fields[name] = factory()
            else:
                fits &= default is not MISSING
                fields[name] = default
        if values or not fits:
            self._compiled()(instance, *given, **by_name)
        elif hasattr(instance, "__post_init__"):
            instance.__post_init__()

    def _compiled(self) -> Any:
        """Return the method as the standard library writes it for a class of the same fields, and put it in place."""
        fields: list[Any] = [(field.name, field.type, field) for field in dataclasses.fields(self._owner)]
        # A class without a text of its own would get its signature as one, which takes longer than all else.
        members: dict[str, Any] = {"__doc__": "Not empty."}
        if hasattr(self._owner, "__post_init__"):
            members["__post_init__"] = None
        twin = dataclasses.make_dataclass("Twin", fields, namespace=members, frozen=self._frozen, repr=False, eq=False)
        method = vars(twin)["__init__"]
        method.__qualname__ = f"{self._owner.__qualname__}.__init__"
        self._owner.__init__ = method
        return method


def _getter(names: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return a function that returns the attributes `names` of an object."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instance: tuple(getattr(instance, name) for name in names)


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def shown(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return shown


def _eq(names: Sequence[str]) -> Callable[[Any, object], bool]:
    values = _getter(names)

    def equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(self) is type(other) else NotImplemented

    return equal


def _hash(names: Sequence[str]) -> Callable[[Any], int]:
    values = _getter(names)

    def hashed(self: Any) -> int:
        return hash(values(self))

    return hashed


def _refuse_assignment(_instance: object, name: str, _value: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(_instance: object, name: str) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
