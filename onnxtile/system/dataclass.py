"""Dataclasses that define little code at an import.

The standard library compiles up to six methods for each dataclass, which takes 0.7 milliseconds. A command defines about 250, of which it
compares or prints few and makes instances of half: with these methods at once, a third of the time of a small command goes there.
Here only `__init__` is compiled, and only once it has been called so often that the time is won back. Nothing at all is made of a class
before something is asked of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from functools import cached_property, partial
from operator import attrgetter
from reprlib import recursive_repr
from threading import RLock, local
from typing import TYPE_CHECKING, Any, NoReturn

_OFTEN = 500
"""Calls of an `__init__` that take as long, beyond those of the compiled one, as it takes to compile it."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - mypy takes it for the same
else:

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, slots=False, kw_only=False):
        """Return `cls` as the decorator of the standard library does, for the options that are named here."""
        if slots:
            data_class = dataclasses.dataclass(repr=repr, eq=eq, frozen=frozen, slots=True, kw_only=kw_only)
            return data_class if cls is None else data_class(cls)

        decorate = partial(_decorated, repr=repr, eq=eq, frozen=frozen, kw_only=kw_only)
        return decorate if cls is None else decorate(cls)


def _decorated(cls: Any, repr: bool, eq: bool, frozen: bool, kw_only: bool) -> Any:
    bases = list(filter(None, map(_parameters, cls.__bases__)))
    defined = {name for name, value in vars(cls).items() if value is not None}
    methods = {"__init__", *["__repr__"] * repr, *["__eq__"] * eq, *["__hash__"] * (eq and frozen)} - defined
    if eq and not frozen and "__hash__" not in defined:
        cls.__hash__ = None
    if frozen and not bases:
        cls.__setattr__, cls.__delattr__ = _refuse_assignment, _refuse_deletion
    if any(base.frozen != frozen or (frozen and not isinstance(base, _FrozenParameters | _Later)) for base in bases):
        _complete(cls, methods, frozen, kw_only)  # which freezes it, or raises an error
    else:
        _Later.put(cls, methods | _FACTS - defined, frozen, partial(_complete, cls, methods, frozen, kw_only))
    return cls


def _complete(cls: Any, methods: set[str], frozen: bool, kw_only: bool) -> None:
    """Write `methods` of `cls` and the facts of its fields."""
    bases = [_parameters(base) for base in cls.__bases__ if dataclasses.is_dataclass(base)]
    inherits = frozen and bool(bases) and all(isinstance(base, _FrozenParameters) for base in bases)
    # In place of no docstring, the standard library would write a signature, which takes long.
    doc, cls.__doc__ = cls.__doc__, "Not empty."
    # What is not frozen by its bases has to be frozen by the standard library, where it has some.
    is_frozen = frozen and bool(bases) and not inherits
    with _FrozenParameters.hidden(inherits):
        dataclasses.dataclass(cls, init=False, repr=False, eq=False, frozen=is_frozen, kw_only=kw_only)
    cls.__doc__ = doc
    fields = dataclasses.fields(cls)
    compared = [field for field in fields if field.compare]
    generated: dict[str, object] = {
        "__init__": _Initialiser(cls, frozen),
        "__repr__": _repr([field.name for field in fields if field.repr]),
        "__eq__": _eq([field.name for field in compared]),
        "__hash__": _hash([field.name for field in compared if field.hash is not False]),
    }
    for name in methods:
        setattr(cls, name, generated[name])
    if frozen and not is_frozen:
        cls.__dataclass_params__ = _FrozenParameters(cls.__dataclass_params__)


_FACTS = {"__dataclass_fields__", "__dataclass_params__", "__match_args__"}
"""What the standard library writes into a dataclass beside methods."""


class _Later:
    """What a dataclass has in place of its methods and facts until one of them is asked for: a command uses half of the classes."""

    _lock = RLock()

    def __init__(self, name: str, frozen: bool, complete: Callable[[], None]) -> None:
        self._name, self.frozen, self._complete = name, frozen, complete

    @classmethod
    def put(cls, owner: Any, names: set[str], frozen: bool, complete: Callable[[], None]) -> None:
        """Put what calls `complete`, once for all of them, in the place of each of `names` in the class `owner`."""

        def complete_once() -> None:
            with cls._lock:
                later = {name for name in names if isinstance(vars(owner)[name], cls)}
                if "__dataclass_fields__" not in later:
                    return
                for name in later & {"__match_args__"}:
                    delattr(owner, name)  # the standard library keeps one that is there
                complete()

        for name in names:
            setattr(owner, name, cls(name, frozen, complete_once))

    def __get__(self, instance: object, owner: type) -> Any:
        self._complete()
        return getattr(owner if instance is None else instance, self._name)


def _parameters(cls: Any) -> Any:
    """Return the parameters of `cls` or of its nearest base that is a dataclass; None without one. A `_Later` may stand for them."""
    name = "__dataclass_params__"
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


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
    def _known(self) -> tuple[dict[str, Any], list[tuple[str, Any]], frozenset[str], frozenset[str]]:
        """The defaults of fields that are set, MISSING without one; what makes others; the arguments, and those that are needed."""
        fields = [f for f in dataclasses.fields(self._owner) if f.init or f.default_factory is not MISSING]
        factories = [(f.name, f.default_factory) for f in fields if f.default_factory is not MISSING]
        needed = {f.name for f in fields if f.default is MISSING and f.default_factory is MISSING}
        names = frozenset(f.name for f in fields if f.init)
        return {f.name: f.default for f in fields}, factories, names, frozenset(needed)

    def _set_fields(self, instance: Any, /, *given: object, **by_name: object) -> None:
        """Do what the compiled method does; where the arguments do not fit, call that, since it says why."""
        defaults, factories, names, needed = self._known
        values = dict(zip(self._arguments, given, strict=False))
        values |= by_name
        fields = vars(instance)  # a frozen class refuses assignments, which take longer, too
        fields |= defaults  # in the order of the fields
        fields |= values
        for name, factory in factories:
            if name not in values:
                fields[name] = factory()
        if len(values) != len(given) + len(by_name) or not needed <= values.keys() <= names:
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
