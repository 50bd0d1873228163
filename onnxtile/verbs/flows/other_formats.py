"""Plans of files that are no ONNX models: problems in CSV, and TensorFlow Lite models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from onnxtile.declare.verb import Outcome, VerbResult, declared, narrowed
from onnxtile.deployment.micro_proof import is_installed, micro_runs, require_sound, scratch_bytes
from onnxtile.deployment.tflite_model import ONLINE, MicroGraph, read_tflite, with_offsets
from onnxtile.deployment.tflite_plan import UNIT, MicroProblem, plan_rows, problem_of
from onnxtile.planning.offsets.problem import require_alignment
from onnxtile.planning.problem_plan import plan_buffers, read_problem
from onnxtile.planning.result import PlanResult
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Mismatch, ModelError, UsageError
from onnxtile.system.files import require_readable, require_writable, write_whole
from onnxtile.system.interpreter import collector_paused
from onnxtile.verbs.plan import PlanStep, ProblemOptions, TfliteOptions

_LARGEST = 2**31 - 1
_SPARE = 2**20
"""Bytes beside tensors that a run of a model gets, for what the runtime keeps of each of them."""


@dataclass(frozen=True)
class MicroVerdict:
    """The result of the runs in TensorFlow Lite Micro: `equal` outputs, and the bytes that it took for tensors and scratch.

    `head` is with the plan, `own_head` with its own planner.
    """

    equal: bool
    runs: int
    head: int
    own_head: int


@dataclass(frozen=True, repr=False)
class PlannedTflite(VerbResult):
    """A plan of a TensorFlow Lite model, the file with it, and the verdict of the runs (None: they were not asked for, or not possible)."""

    verb: ClassVar[str] = "plan"

    plan: PlanResult
    data: bytes
    verdict: MicroVerdict | None

    @property
    def summary(self) -> str:
        """The size of the arena, and whether it was proved by a run."""
        return f"{self.plan.summary}, {'run in TensorFlow Lite Micro' if self.verdict else 'not run'}"

    def save(self, path: str | Path) -> None:
        """Write the model with its plan to `path`, whole or not at all. Raises UsageError."""
        require_writable(Path(path))
        write_whole(Path(path), self.data)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `plan`."""
        return {**self.plan.to_dict(), "verdict": self.verdict and dict(vars(self.verdict))}


@declared(TfliteOptions)
def plan_tflite(options: TfliteOptions) -> PlannedTflite:
    """Give every tensor of the TensorFlow Lite model `file` an offset in an arena, for TensorFlow Lite Micro.

    The result holds the model with the plan as its metadata. A replay of the written file checks it. With `verify`, and the extra
    tflite-micro installed, TensorFlow Lite Micro runs the model with and without the plan. Raises ModelError, UsageError; Infeasible over
    `capacity`; CheckFailed where the check fails; Mismatch where the runs differ.
    """
    file, progress = Path(options.file), options.progress
    unit = UNIT if options.alignment is None else options.alignment
    if unit < UNIT:
        raise UsageError(f"TensorFlow Lite Micro aligns tensors to {UNIT} bytes, not to {unit}")
    capacity = options.capacities
    if isinstance(capacity, Mapping) and len(capacity) > 1:
        raise UsageError("TensorFlow Lite Micro has one arena, and the plan has several", hint="give one {capacity}")
    progress("reading the model")
    require_readable(file, ModelError)
    data = file.read_bytes()
    graphs = read_tflite(data, str(file))
    if any(tensor.size > _LARGEST for graph in graphs for tensor in graph.tensors):
        raise UsageError("TensorFlow Lite Micro takes tensors below 2 GiB, and the model has larger ones")
    progress("planning")
    problem = problem_of(graphs, unit, _scratch(data, graphs))
    effort = replace(options.effort, progress=progress)
    planned = plan_buffers(problem.problem, planner=options.planner, effort=effort, capacity=capacity)
    if planned.arena_size > _LARGEST:
        raise UsageError("TensorFlow Lite Micro takes offsets below 2 GiB, and the plan has larger ones")
    result = plan_rows(graphs, problem, planned)
    written = with_offsets(data, _offsets(graphs, problem, planned))
    require_sound(written, planned.arena_size)
    verdict = None
    if options.verify and is_installed():
        progress("running in TensorFlow Lite Micro")
        verdict = _verdict(data, written, result.activation_bytes)
    return PlannedTflite(replace(result, digest=hashlib.sha256(data).hexdigest(), model=file.stem), written, verdict)


def _scratch(data: bytes, graphs: Sequence[MicroGraph]) -> Mapping[int, int]:
    """Return the scratch of each operator, as the reference kernels of TensorFlow Lite Micro ask for it; none where these are not there."""
    if not is_installed():
        return {}
    try:
        return scratch_bytes(data, graphs[0], sum(len(graph.tensors) for graph in graphs[1:]))
    except ModelError:
        return {}


def _offsets(graphs: Sequence[MicroGraph], problem: MicroProblem, planned: PlanResult) -> list[int]:
    at = {row.name: row.offset for row in planned.buffers}
    keys = ((number, index) for number, graph in enumerate(graphs) for index in range(len(graph.tensors)))
    return [at[problem.name(problem.owners[key])] if key in problem.owners else ONLINE for key in keys]


def _verdict(data: bytes, written: bytes, activations: int) -> MicroVerdict | None:
    """Return the verdict of the runs with and without the plan; None where TensorFlow Lite Micro does not run the model at all.

    Raises Mismatch where it runs the model, and with the plan does not, or computes other outputs.
    """
    arena = 2 * activations + len(data) + _SPARE
    try:
        (without_plan,) = micro_runs([data], arena)
    except ModelError:
        return None
    try:
        (ours,) = micro_runs([written], arena)
    except ModelError as error:
        raise Mismatch(f"with the plan, {error.message}", hint="please report it with the model") from error
    if ours.outputs != without_plan.outputs:
        raise Mismatch("the run with the plan differs from the one without", hint="please report it with the model")
    return MicroVerdict(True, len(without_plan.outputs), ours.head, without_plan.head)


# Plan a problem without a model, such as MiniMalloc's.


@declared(ProblemOptions)
def plan_problem(options: ProblemOptions) -> PlanResult:
    """Give every buffer of the problem in the CSV `file` (columns id, lower, upper, size) an offset in an arena.

    Raises UsageError for a file that holds no problem, Infeasible over `capacity`.
    """
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
        raise UsageError(f"{file}: {error.message}", hint=error.hint) from error
    progress("planning")
    return plan_buffers(
        problem,
        planner=options.planner,
        effort=replace(options.effort, progress=progress),
        capacity=options.capacities,
        digest=hashlib.sha256(data).hexdigest(),
    )


def run(options: PlanStep) -> Outcome:
    """Do what the command `plan` asks for of a problem, or of a TensorFlow Lite model."""
    if options.is_bare:
        with collector_paused():
            problem = narrowed(ProblemOptions, options, file=options.model)
            return Outcome(plan_problem.from_options(problem), "plan")
    written = plan_tflite.from_options(narrowed(TfliteOptions, options, file=options.model))
    return Outcome(written, "plan", save=written.save, emitted=written.plan.to_dict())
