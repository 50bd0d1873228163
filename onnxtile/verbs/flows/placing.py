"""Plan a problem without a model, such as MiniMalloc's."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnxtile.system.errors import UsageError
from onnxtile.system.files import require_readable

if TYPE_CHECKING:
    from onnxtile.planning.result import PlanResult
    from onnxtile.verbs.options.plan import ProblemOptions


def plan_problem(options: ProblemOptions) -> PlanResult:
    """Plan a bare problem as `onnxtile.api.plan_problem` says."""
    from onnxtile.planning.offsets.csv_problem import read_problem
    from onnxtile.planning.offsets.problem import require_alignment
    from onnxtile.planning.problem_plan import plan_buffers

    file, progress = options.file, options.progress
    alignment = 1 if options.alignment is None else options.alignment
    require_alignment(alignment)
    progress("reading the problem")
    require_readable(Path(file), UsageError)
    try:
        data = Path(file).read_bytes()
        text = data.decode()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    try:
        problem = read_problem(text, alignment=alignment)
    except UsageError as error:
        raise UsageError(f"{file}: {error}", hint=error.hint) from error
    progress("planning")
    return plan_buffers(
        problem,
        planner=options.planner,
        effort=replace(options.search, progress=progress),
        capacity=options.capacities,
        digest=hashlib.sha256(data).hexdigest(),
    )
