"""fuse: turn subgraphs into meta-ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile.common_options import ModelArgument, VerifyOptions, WatchOptions, WriteOptions
from onnxtile.declare import values
from onnxtile.declare.option import Choices, Option, Positional, declared, narrowed
from onnxtile.declare.verb import Outcome, Verb

if TYPE_CHECKING:
    from onnxtile.fusion.pattern import Pattern
    from onnxtile.verbs.flows.explaining import Explanation
    from onnxtile.verbs.flows.fusing import FuseResult
else:
    Pattern: TypeAlias = Any

Patterns: TypeAlias = str | Iterable[str | tuple[str, str] | Pattern]
"""A pattern or several: names, sets, .toml files, queries, (name, query) pairs."""

PatternsOption: TypeAlias = Annotated[
    Patterns,
    Option(
        "pattern to apply: a name, a set, a .toml file, a query, or NAME=QUERY",
        "NAME|FILE|QUERY",
        ("-p", "--pattern"),
        default="all",
        kind=values.PATTERNS,
        choices=Choices("onnxtile.verbs.flows.listing:pattern_names", open=True),
    ),
]


@dataclass(frozen=True)
class FuseOptions(VerifyOptions):
    """The options of `fuse`."""

    model: ModelArgument
    patterns: PatternsOption = ()
    _: KW_ONLY
    lower: Annotated[
        str,
        Option(
            "replace meta-ops by operators that mean the same",
            "none|onnx|ort|qdq",
            choices=Choices("onnxtile.fusion.lower.lowering:Target", also=("none",)),
        ),
    ] = "none"
    edge: Annotated[
        str,
        Option(
            "which lowered sites may differ on edge rows: where the operator is kinder, none, or any",
            "kinder|strict|any",
            choices=Choices("onnxtile.fusion.edge_rows:EdgeRule"),
        ),
    ] = "kinder"
    for_memory: Annotated[bool, Option("leave out meta-ops that make the arena of the default plan larger")] = False


@dataclass(frozen=True)
class ExplainOptions(WatchOptions):
    """The options of `explain`."""

    model: ModelArgument
    pattern: Annotated[str, Positional("PATTERN", "the pattern to explain", values.TEXT)]
    patterns: PatternsOption = ()


@dataclass(frozen=True)
class FuseCommand(WriteOptions, FuseOptions):
    """Fuse subgraphs into meta-ops: calls of functions inside the model.

    Examples:
        onnxtile fuse model.onnx
        onnxtile fuse model.onnx -p LayerNorm -p my.toml -o small.onnx
        onnxtile fuse model.onnx -p Linear='MatMul-*>Add' --lower onnx
        onnxtile fuse model.onnx --explain LayerNorm
    """

    _: KW_ONLY
    explain: Annotated[
        str | None,
        Option(
            "explain where this pattern stopped; write nothing",
            "NAME",
            choices=Choices("onnxtile.verbs.flows.listing:pattern_names", open=True),
        ),
    ] = None


@declared(FuseOptions)
def fuse(options: FuseOptions) -> FuseResult:
    """Fuse the subgraphs that `patterns` describe into meta-ops: calls of model-local functions.

    A pattern is a name of the library, a set of it, a TOML file, or a query; by default the whole library. `lower` turns calls into
    operators that mean the same where that is proved: "onnx" into standard ones, raising the opset where they ask for it, "ort" into
    those that onnxruntime runs best. `edge` says which of them may differ from the call on zeros, NaN, infinities and extreme numbers:
    "kinder" where a number comes in place of NaN, "strict" none, "any" all. With `for_memory`, meta-ops are left out until the arena of
    the default plan is no larger than that of `model`. Marks of a plan are taken off. With `verify`, each different site and the whole
    model are run beside the original. Raises ModelError, QueryError, PatternError, UsageError; Mismatch where the outputs differ.
    """
    from onnxtile.verbs.flows import fusing

    return fusing.fuse(options)


@declared(ExplainOptions)
def explain(options: ExplainOptions) -> Explanation:
    """Fuse `model` in memory with `patterns` (the library by default) up to `pattern`, and say where that one stopped, and why.

    `pattern` is a name among `patterns`, or what `fuse` takes for one, which then stands by itself. Raises as `fuse` does.
    """
    from onnxtile.verbs.flows import explaining

    return explaining.explain(options)


def _run(options: FuseOptions) -> Outcome:
    from onnxtile.verbs.flows import explaining, fusing

    if isinstance(options, FuseCommand) and options.explain is not None:
        return Outcome(explaining.explain(narrowed(ExplainOptions, options, pattern=options.explain)), "explain")
    result = fusing.fuse(options)
    # The whole library is an offer; patterns that are named are a wish.
    if not options.patterns or result.lowered or any(one.matches for one in result.patterns):
        return Outcome(result, "fuse", result.model)
    note = "error: no pattern that was named matches (--explain NAME says why)"
    return Outcome(result, "fuse", result.model, reason="no match", note=note)


def _require(options: FuseOptions) -> None:
    from onnxtile.verbs.flows.fusing import chosen_patterns

    chosen_patterns(options.patterns)


FUSE = Verb(
    "fuse",
    FuseCommand,
    _run,
    FuseOptions,
    writes=lambda options: "fused" if options.explain is None else None,
    require=_require,
)
