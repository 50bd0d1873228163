"""Dataclasses that compile little behave as those of the standard library."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from onnxtile.system import dataclass as module

Decorator = Callable[..., Any]


def _classes(dataclass: Decorator) -> dict[str, Any]:
    @dataclass(frozen=True)
    class Base:
        """A base."""

        a: int
        b: str = "b"
        c: list[int] = dataclasses.field(default_factory=list, compare=False)

    @dataclass(frozen=True)
    class Derived(Base):
        """A subclass with a field of its own, a default of its own, and a field that is no argument."""

        b: str = "other"
        d: tuple[int, ...] = ()
        e: dict[str, int] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)

        def __post_init__(self) -> None:
            self.e["a"] = self.a

    @dataclass
    class Loose:
        """One whose fields change."""

        a: int
        b: list[int] = dataclasses.field(default_factory=list)

    @dataclass(frozen=True, kw_only=True, repr=False)
    class Named:
        """One with names alone, and a text of its own."""

        a: int = 1
        b: int

        def __repr__(self) -> str:
            return f"named {self.a} {self.b}"

    @dataclass(frozen=True, eq=False)
    class Itself:
        """One that equals itself alone."""

        a: int

    @dataclass(frozen=True)
    class Odd:  # noqa: PLW1641 - the decorator writes the other
        """One with an equality of its own, whose fields have the names that the writer of methods may use."""

        put: int
        absent: int = 2
        cls: int = 3

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd)

    @dataclass(frozen=True, slots=True)
    class Slotted:
        """One with slots."""

        a: int

    return {one.__name__: one for one in (Base, Derived, Loose, Named, Itself, Odd, Slotted)}


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Base", (1,), {}),
    ("Base", (1, "x", [3]), {}),
    ("Base", (), {"a": 1, "c": [2]}),
    ("Base", (), {}),
    ("Base", (1, "b", [], 4), {}),
    ("Derived", (1,), {}),
    ("Derived", (1,), {"d": (2,)}),
    ("Derived", (1,), {"e": {}}),
    ("Loose", (1,), {}),
    ("Loose", (1, [2]), {}),
    ("Named", (1, 2), {}),
    ("Named", (), {"b": 2}),
    ("Itself", (1,), {}),
    ("Odd", (1,), {}),
    ("Odd", (1, 5), {"cls": 6}),
    ("Slotted", (1,), {}),
    ("Slotted", (), {"b": 1}),
]


def _said(work: Callable[[], object]) -> object:
    """Return what `work` returns, or the error that it raises."""
    try:
        return work()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


def _facts(classes: dict[str, Any], name: str, values: tuple[Any, ...], by_name: dict[str, Any]) -> list[object]:
    cls = classes[name]
    one = _said(lambda: cls(*values, **by_name))
    if isinstance(one, tuple):
        return [one]
    other = cls(*values, **by_name)
    is_itself = cls.__eq__ is object.__eq__
    return [
        _said(lambda: one == other),
        _said(lambda: None if is_itself else hash(one) == hash(other)),
        repr(one),
        _said(lambda: setattr(one, "a", 9)),
        _said(lambda: delattr(other, "a")),
        _said(lambda: dataclasses.asdict(one)),  # type: ignore[call-overload]
        _said(lambda: repr(dataclasses.replace(other, a=7))),
        [(field.name, field.default, field.kw_only) for field in dataclasses.fields(cls)],
        cls.__match_args__,
        cls.__init__.__qualname__,
        [(p.name, p.kind, p.default is inspect.Parameter.empty) for p in inspect.signature(cls).parameters.values()],
    ]


@pytest.mark.parametrize("often", [0, 1, 500])
@pytest.mark.parametrize(("name", "values", "by_name"), CALLS)
def test_each_dataclass_is_that_of_the_standard_library(
    name: str, values: tuple[Any, ...], by_name: dict[str, Any], often: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OFTEN", often)
    expected = _facts(_classes(dataclasses.dataclass), name, values, by_name)
    assert repr(_facts(_classes(module.dataclass), name, values, by_name)) == repr(expected)


@pytest.mark.parametrize(
    "ask", [lambda cls: cls(1), dataclasses.fields, lambda cls: cls.__match_args__, inspect.signature]
)
def test_a_class_gets_its_methods_when_something_is_asked_of_it(ask: Callable[[Any], object]) -> None:
    derived = _classes(module.dataclass)["Derived"]
    both = [*vars(derived.__base__).values(), *vars(derived).values()]
    assert sum(isinstance(value, module._Later) for value in both) == 14
    ask(derived)
    assert not any(isinstance(value, module._Later) for one in derived.__mro__ for value in vars(one).values())


def test_an_initialiser_is_compiled_once_it_is_called_often() -> None:
    base = _classes(module.dataclass)["Base"]
    made = [base(1) for _ in range(module._OFTEN)]
    assert isinstance(vars(base)["__init__"], module._Initialiser)
    made += [base(a=1), base(1)]
    assert inspect.isfunction(vars(base)["__init__"])
    assert {repr(one) for one in made} == {repr(made[0])}
    assert set(made) == {base(1)}


@pytest.mark.parametrize(
    ("first", "second"), [(module.dataclass, dataclasses.dataclass), (dataclasses.dataclass, module.dataclass)]
)
def test_either_decorator_extends_a_class_of_the_other(first: Decorator, second: Decorator) -> None:
    @first(frozen=True)
    class Base:
        """A base."""

        a: int

    @second(frozen=True)
    class Derived(Base):
        """A class that extends it."""

        b: int = 2

    assert repr(Derived(1)).endswith("Derived(a=1, b=2)")  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Derived(1).a = 3  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="cannot inherit"):
        second(type("Loose", (Base,), {}))

    @first
    class Loose:
        """A class that is not frozen."""

    with pytest.raises(TypeError, match="cannot inherit"):
        second(frozen=True)(type("Frozen", (Loose,), {}))


def test_a_subclass_of_a_frozen_class_compiles_nothing_and_is_frozen() -> None:
    derived = _classes(module.dataclass)["Derived"]
    last: Any = module.dataclass(frozen=True)(type("Last", (derived,), {"__annotations__": {"f": "int"}, "f": 5}))
    assert vars(last).keys().isdisjoint({"__setattr__", "__delattr__"})
    assert last.__dataclass_params__.frozen
    for change in (partial(setattr, last(1), "f", 6), partial(delattr, last(1), "f")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()


@module.dataclass(frozen=True)
class Sent:
    """One that another process sends."""

    a: int


def test_an_instance_that_another_process_sends_needs_no_call_of_the_class() -> None:
    assert pickle.loads(pickle.dumps(Sent(3))) == Sent(3)


def test_threads_that_use_a_class_at_once_all_get_its_methods() -> None:
    count = 8
    barrier = Barrier(count)

    def use(cls: Any) -> object:
        barrier.wait()
        return repr(cls(1)), cls(1) == cls(1), hash(cls(1)) == hash(cls(1))

    with ThreadPoolExecutor(count) as pool:
        for _ in range(50):
            base = _classes(module.dataclass)["Base"]
            assert len(set(pool.map(use, [base] * count))) == 1
