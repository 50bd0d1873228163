"""fuse: turn subgraphs into meta-ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxtile.declare.option import declared, narrowed
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.verbs.options.fuse import ExplainOptions, FuseCommand, FuseOptions

if TYPE_CHECKING:
    from onnxtile.verbs.flows.explaining import Explanation
    from onnxtile.verbs.flows.results import FuseResult


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
