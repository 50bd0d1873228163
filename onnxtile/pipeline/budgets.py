"""Budgets: bounds on what a pipeline makes of a model, which turn it into a check."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from onnxtile.declare.values import Unreadable, read_count, read_size
from onnxtile.declare.verb import JsonFields
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.files import require_readable

# The few numbers of each step that a summary shows and budgets bound.


def figures(results: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the figures of a model from the results of its steps, each with the step's name: a later step's count.

    `already` has, by meta-op, the nodes that do the work of the whole one, counted by operator: fuse leaves them. `arena` is the bytes of
    all arenas (None where a tensor is unplanned); `ram` and `flash` are those of a program in C (None where no compiler counted them);
    `error` the worst relative error of all steps that compared (None where that has no bound); `not_compared` the outputs that a step
    could not compare, by name with the reason.
    """
    reached: dict[str, Any] = {}
    fused: Counter[str] = Counter()
    already: dict[str, Mapping[str, int]] = {}
    errors = []
    left: dict[str, str] = {}
    for name, result in results:
        if name == "fuse":
            fused.update({pattern["name"]: pattern["fused"] for pattern in result["patterns"]})
            already |= {pattern["name"]: pattern["already"] for pattern in result["patterns"] if pattern.get("already")}
        if "nodes_after" in result:
            reached["nodes"] = result["nodes_after"]
        if name == "tile":
            reached["tiles"] = sum(layer["matmuls"] for layer in result["tiled"])
        if name == "plan":
            reached["arena"] = None if result["unplanned"] else sum(arena["size"] for arena in result["arenas"])
            reached |= {"optimal": result["optimal"], "optimal_over": result["optimal_over"]}
        reached |= _program_figures(result)
        # The verdict of a plan is of another kind: its run is equal bit for bit, or the step has failed.
        compared = {"verify": result, "plan": None}.get(name, result.get("verdict"))
        errors += [output.get("max_rel") for output in (compared or {}).get("outputs", ())]
        left |= (compared or {}).get("not_compared", {})
    if fused:
        reached["fused"] = fused.total()
        reached["fused_by"] = {name: count for name, count in sorted(fused.items()) if count}
    if already:
        reached["already"] = already
    if errors:
        reached["error"] = None if None in errors else max(errors)
    if left:
        reached["not_compared"] = left
    return reached


def _program_figures(result: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the bytes of the program in C that a step `plan` or `fit` wrote; nothing where it wrote none."""
    if result.get("firmware") is None:
        return {}
    footprint = result["firmware"]["footprint"] or {}
    return {name: footprint.get(name) for name in ("ram", "flash")}


# Types of the fields of a pipeline file outside its steps.


def as_pydantic(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what reads a value as `read` does, with its error as pydantic takes it."""

    def validated(value: Any) -> Any:
        try:
            return read(value)
        except Unreadable as error:
            raise ValueError(f"{value!r}: {error.reason}" + (f" ({error.hint})" if error.hint else "")) from None

    return validated


SizeField = Annotated[int, pydantic.BeforeValidator(as_pydantic(read_size))]
"""Bytes: a number, or text such as "256KiB"."""
CountField = Annotated[int, pydantic.BeforeValidator(as_pydantic(read_count))]


_NEEDS = {
    "max_arena": {"plan"},
    "max_ram": {"fit", "plan"},
    "max_flash": {"fit", "plan"},
    "optimal": {"plan"},
    "min_fused": {"fuse"},
    "max_tiles": {"tile"},
    "max_nodes": {"fuse", "tile", "unfuse"},
    "max_error": {"fuse", "tile", "unfuse", "verify"},
}


@dataclass(frozen=True)
class Judged(JsonFields):
    """A budget, what it allows, what there is, and whether that is within; the `cause` of one that is not met, where that is known.

    `budget` is its key in the file, `limit` what it allows, `value` what there is, `met` whether that is within.
    """

    JSON = "budget limit value met cause?"

    budget: str
    limit: Any
    value: Any
    met: bool
    cause: str | None = None


class Budgets(pydantic.BaseModel):
    """The budgets of models: bytes of all arenas and of a program in C, fused sites by meta-op, tiles, nodes, the worst relative error,
    a proved plan."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    max_arena: SizeField | None = None
    max_ram: SizeField | None = None
    max_flash: SizeField | None = None
    optimal: bool | Literal["any order"] | None = None
    min_fused: dict[str, CountField] = {}
    max_tiles: CountField | None = None
    max_nodes: CountField | None = None
    max_error: float | None = pydantic.Field(default=None, ge=0)

    def needs(self) -> dict[str, set[str]]:
        """Return the steps of which one must be there for each of the budgets that are given."""
        return {name: _NEEDS[name] for name in sorted(self.model_fields_set & _NEEDS.keys())}

    def judged(self, figures: Mapping[str, Any]) -> Iterator[Judged]:
        """Judge the `figures` of a model by each budget that is given."""
        for name in ("max_arena", "max_ram", "max_flash", "max_tiles", "max_nodes", "max_error"):
            limit, value = getattr(self, name), figures.get(name.removeprefix("max_"))
            if limit is not None:
                yield Judged(name, limit, value, value is not None and value <= limit)
        if self.optimal is not None:
            value = figures.get("optimal" if isinstance(self.optimal, bool) else "optimal_over")
            yield Judged("optimal", self.optimal, value, value == self.optimal)
        for meta_op, least in self.min_fused.items():
            count = figures.get("fused_by", {}).get(meta_op, 0)
            kept = figures.get("already", {}).get(meta_op, {}) if count < least else {}
            nodes = ", ".join(f"{number:,} {operator}" for operator, number in kept.items())
            cause = f"already one node: {nodes}" if nodes else None
            yield Judged(f"min_fused.{meta_op}", least, count, count >= least, cause)


class PipelineBudgets(Budgets):
    """The budgets of a pipeline: those of all models, and `models` with others for some, by a pattern of their file names."""

    models: dict[str, Budgets] = {}

    @property
    def tables(self) -> dict[tuple[str, ...], Budgets]:
        """All tables of budgets by their place in the file."""
        return {(): self, **{("models", pattern): budgets for pattern, budgets in self.models.items()}}

    def of(self, model: Path) -> Budgets:
        """Return the budgets of `model`: those of all, each replaced by that of the last pattern that matches and has it."""
        matching = [budgets for pattern, budgets in self.models.items() if fnmatchcase(model.name, pattern)]
        given = {name: getattr(table, name) for table in (self, *matching) for name in table.needs()}
        return Budgets.model_construct(set(given), **given)


# A baseline: the summary of an earlier run, with which the figures of each model are compared.

_LOWER = ("arena", "ram", "flash", "tiles", "nodes")
_HIGHER = ("fused",)
_HINT = "onnxtile run PIPELINE.toml IN ... --json FILE writes one"


@dataclass(frozen=True)
class Baseline:
    """The figures of an earlier run, by model."""

    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def judged(self, model: Path, figures: Mapping[str, Any]) -> Iterator[Judged]:
        """Judge the `figures` of a model by those of the earlier run: nothing larger, no more tiles or nodes, no fewer fused sites.

        A plan that was proved the smallest has to be so again. A model, or a figure, that the earlier run lacks is not compared.
        """
        before = self._figures_of(model) or {}
        for name in (*_LOWER, *_HIGHER):
            if isinstance(before.get(name), int) and name in figures:
                value, limit = figures[name], before[name]
                met = value is not None and (value <= limit if name in _LOWER else value >= limit)
                yield Judged(f"baseline.{name}", limit, value, met)
        if before.get("optimal") is True and "optimal" in figures:
            yield Judged("baseline.optimal", True, figures["optimal"], figures["optimal"] is True)

    def require(self, models: Sequence[Path]) -> None:
        """Raise UsageError where the earlier run had none of `models`, so that nothing would be compared."""
        if self.figures and all(self._figures_of(model) is None for model in models):
            known = ", ".join(list(self.figures)[:3])
            raise UsageError("the baseline has none of the models", hint=f"it has {known}")

    def _figures_of(self, model: Path) -> Mapping[str, Any] | None:
        """Return the figures of a model: of the same path, or of the only one of the same name."""
        named = [path for path in self.figures if Path(path).name == model.name]
        return self.figures.get(str(model)) or (self.figures[named[0]] if len(named) == 1 else None)


def read_baseline(path: Path) -> Baseline:
    """Return the baseline in a file that `onnxtile run --json` wrote. Raises UsageError."""
    require_readable(path, UsageError, hint=_HINT)
    try:
        content = json.loads(path.read_bytes())
        return Baseline({str(Path(model["model"])): dict(model["figures"]) for model in content["models"]})
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path}: this is not the summary of a run", hint=_HINT) from None
