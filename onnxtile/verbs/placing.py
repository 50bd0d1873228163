"""Plan a problem without a model, such as MiniMalloc's."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnxtile.errors import UsageError
from onnxtile.paths import require_readable
from onnxtile.progress import Progress, silent

if TYPE_CHECKING:
    from onnxtile.planning.offsets.effort import Effort
    from onnxtile.planning.offsets.memories import Capacity
    from onnxtile.planning.result import PlanResult


def plan_problem(
    file: str | Path,
    *,
    alignment: int = 1,
    planner: str = "best",
    effort: Effort | None = None,
    capacity: Capacity = None,
    progress: Progress = silent,
) -> PlanResult:
    """Give every buffer of the problem in the CSV `file` (columns id, lower, upper, size) an offset in an arena.

    `alignment` and `capacity` are in bytes; a mapping gives the capacities of several arenas, the fastest first. Raises UsageError for
    a file that is not a problem, Infeasible over `capacity`.
    """
    from onnxtile.planning.offsets.csv_problem import read_problem
    from onnxtile.planning.offsets.effort import NORMAL
    from onnxtile.planning.offsets.problem import require_alignment
    from onnxtile.planning.problem_plan import plan_buffers

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
        planner=planner,
        effort=replace(effort or NORMAL, progress=progress),
        capacity=capacity,
        digest=hashlib.sha256(data).hexdigest(),
    )
