"""fuse: turn subgraphs into meta-ops."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile.common_options import ModelArgument, VerifyOptions, WatchOptions, WriteOptions
from onnxtile.declare import values
from onnxtile.declare.verb import Choices, Option, Outcome, Positional, Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import about_options
from onnxtile.system.registry import imported

if TYPE_CHECKING:
    from onnxtile.fusion.pattern import Patterns
else:  # the declarations are read without what models need
    Patterns: TypeAlias = Any

PatternsOption: TypeAlias = Annotated[
    Patterns,
    Option(
        "pattern to apply: a name, a set, a .toml file, a query, or NAME=QUERY",
        "NAME|FILE|QUERY",
        ("-p", "--pattern"),
        default="all",
        kind=values.PATTERNS,
        choices=Choices("onnxtile.fusion.pattern:pattern_names", open=True),
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
            choices=Choices("onnxtile.fusion.site_check:EdgeRule"),
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
            choices=Choices("onnxtile.fusion.pattern:pattern_names", open=True),
        ),
    ] = None


def _require(options: FuseOptions) -> None:
    from onnxtile.fusion.pattern import chosen_patterns

    if isinstance(options, FuseCommand) and options.explain is not None and options.output is not None:
        raise about_options("{explain} writes no model", hint="leave {output} out")
    chosen_patterns(options.patterns)


def _run(options: FuseOptions) -> Outcome:
    """Fuse the model, or explain a pattern."""
    is_explained = isinstance(options, FuseCommand) and options.explain is not None
    done: Outcome = imported(f"onnxtile.verbs.flows.{'match' if is_explained else 'fuse'}:run")(options)
    return done


FUSE = Verb(
    "fuse",
    FuseCommand,
    _run,
    FuseOptions,
    writes=lambda options: "fused" if options.explain is None else None,
    require=_require,
)
