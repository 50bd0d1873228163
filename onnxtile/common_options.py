"""Groups of options that several verbs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile.declare import values
from onnxtile.declare.values import TargetFigures
from onnxtile.declare.verb import REPORTING, SIZES, WRITING, Choices, Option, Positional
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.long_work import Progress, RunLimits, silent
from onnxtile.system.registry import imported
from onnxtile.system.text import whole

if TYPE_CHECKING:
    from onnxtile.model import load

    Source: TypeAlias = load.Source
else:  # the declarations are read without what models need
    Source: TypeAlias = Any

DimensionSizes: TypeAlias = Mapping[str, int | str | tuple[int | None, int]]
"""Sizes of symbolic dimensions, by name: a number, the least and the largest size (1, 8) or "1:8", or an upper bound ":8"."""
WholeShapes: TypeAlias = Mapping[str, str | tuple[int | tuple[int, int], ...]]
"""Whole shapes of inputs, by name; a size may be a range, "1x3x48x(1:320)" or (1, 3, 48, (1, 320))."""
RandomRanges: TypeAlias = Mapping[str, str | float | tuple[float, float]]
"""The numbers that random inputs have, by name: "0:100" or (0, 100) from 0 to below 100, or 16000 alone."""
RunInputs: TypeAlias = Path | str | RandomRanges | Sequence[Path | str | RandomRanges]
"""What a model is run on: a .npz file with an array for each input, or ranges of random numbers."""

RunWords: TypeAlias = int | str | Sequence[int | str] | values.RunChoice
"""How a model is run: a number of runs 8, a time limit "60s" and a memory limit "4GiB" of each, one of them or several."""

ModelArgument: TypeAlias = Annotated[Source, Positional("IN", "an ONNX model", values.SOURCE)]
"""The model that a verb reads: a path, a ModelProto or an onnx_ir.Model."""


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Every verb: `progress` is called with the name of each stage of long work."""

    progress: Progress = silent


def counted_runs(about: str, usual: int) -> Option:
    """Return the option of a verb that chooses how often it runs a model: what runs so often, and how often where nothing is said."""
    return Option(
        f"{about}; time and memory limit of a run",
        "8|60s|4GiB",
        heading=SIZES,
        default=str(usual),
        kind=values.RUNS,
    )


@dataclass(frozen=True, kw_only=True)
class RunLimitOptions(WatchOptions):
    """Verbs that run a model."""

    runs: Annotated[
        RunWords | None,
        Option(
            "time and memory limit of a run",
            "60s|4GiB",
            heading=SIZES,
            default="600s, or 10s with a loop",
            kind=values.LIMITS,
        ),
    ] = None

    @property
    def run_count(self) -> int | None:
        """How often the model is run; None where nothing is said."""
        return self._runs.count

    @property
    def run_limits(self) -> RunLimits:
        """The limits of each run."""
        return RunLimits(self._runs.seconds, self._runs.memory)

    @property
    def _runs(self) -> values.RunChoice:
        return values.RunChoice() if self.runs is None else values.read_runs(self.runs)


@dataclass(frozen=True, kw_only=True)
class SizeOptions(WatchOptions):
    """Verbs that need sizes."""

    dims: Annotated[
        DimensionSizes | None,
        Option(
            "size of a dimension, or past+1; plan and inspect take 1:8, plan also a bound :8",
            "NAME=N",
            ("--dim",),
            SIZES,
            kind=values.DIMS,
            main=True,
        ),
    ] = None
    shapes: Annotated[
        WholeShapes | None,
        Option(
            "whole shape of an input; plan and inspect also take 1x3x8x(1:64)",
            "INPUT=1x3x8x8",
            ("--shape",),
            SIZES,
            kind=values.SHAPES,
            main=True,
        ),
    ] = None

    @property
    def fixed_dims(self) -> dict[str, int]:
        """The dimensions of one size. Raises UsageError for a sum of dimensions that have none."""
        given = values.read_dims(self.dims or {})
        fixed = {name: size for name, size in given.items() if isinstance(size, int)}
        for name, parts in self._sums.items():
            if name not in self.dim_sums:
                sizes = [fixed.get(part) if part in fixed else whole(part) for part in parts]
                fixed[name] = sum(size for size in sizes if size is not None)
        return fixed

    @property
    def dim_sums(self) -> dict[str, str]:
        """The dimensions that are a sum of others, of which one has a range: the sum in words of ONNX, "past + 1"."""
        given = values.read_dims(self.dims or {})
        sizes = {name: str(size) for name, size in given.items() if isinstance(size, int)}
        sums = {name: parts for name, parts in self._sums.items() if any(part in self.dim_ranges for part in parts)}
        return {name: " + ".join(sizes.get(part, part) for part in parts) for name, parts in sums.items()}

    @property
    def _sums(self) -> dict[str, list[str]]:
        given = values.read_dims(self.dims or {})
        sums = {name: size.split(" + ") for name, size in given.items() if isinstance(size, str)}
        known = given.keys() - sums.keys()
        for name, parts in sums.items():
            left = next((part for part in parts if part not in known and whole(part) is None), None)
            if left is not None:
                raise UsageError(
                    f"the size of {name!r} depends on {left!r}, which has no size",
                    hint=f"add --dim {left}=N or {left}=1:N",
                )
        return sums

    @property
    def dim_ranges(self) -> dict[str, tuple[int, int]]:
        """The dimensions that have a range of sizes: the least and the largest."""
        given = values.read_dims(self.dims or {})
        ends_by_name = {name: size for name, size in given.items() if isinstance(size, tuple)}
        return {name: (low, high) for name, (low, high) in ends_by_name.items() if low is not None}

    @property
    def dim_bounds(self) -> dict[str, int]:
        """The upper bounds of dimensions that depend on the data."""
        given = values.read_dims(self.dims or {})
        return {name: size[1] for name, size in given.items() if isinstance(size, tuple) and size[0] is None}

    @property
    def has_ranges(self) -> bool:
        """Whether a dimension has a range of sizes."""
        return bool(self.dim_ranges or self.shape_ranges)

    @property
    def single_dims(self) -> dict[str, int]:
        """The sizes of dimensions. Raises UsageError for a range or an upper bound, where one size is needed."""
        self.require_no_bounds()
        return self.unranged_dims

    def require_no_bounds(self) -> None:
        """Raise UsageError for an upper bound of a dimension, which only plans have."""
        for name, most in self.dim_bounds.items():
            raise UsageError(f"an upper bound of a dimension is for plan: {name}=:{most}", hint="leave it out")

    @property
    def unranged_dims(self) -> dict[str, int]:
        """The sizes of dimensions, beside upper bounds. Raises UsageError for a range."""
        for name, (low, high) in self.dim_ranges.items():
            raise UsageError(
                f"a range of sizes is for plan and inspect: {name}={low}:{high}",
                hint=f"give one size, as in {name}={high}",
            )
        return self.fixed_dims

    @property
    def whole_shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shapes of inputs. Raises UsageError for a range, where one size is needed."""
        for name in self.shape_ranges:
            raise UsageError(
                f"a range of sizes is for plan and inspect: the shape of {name!r}", hint="give each dimension one size"
            )
        return self.fixed_shapes

    @property
    def fixed_shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shapes of inputs that have no range."""
        given = values.read_shapes(self.shapes or {})
        sizes_by_input = {name: tuple(size for size in shape if isinstance(size, int)) for name, shape in given.items()}
        return {name: sizes for name, sizes in sizes_by_input.items() if len(sizes) == len(given[name])}

    @property
    def shape_ranges(self) -> dict[str, tuple[int | tuple[int, int], ...]]:
        """The whole shapes of inputs in which a dimension has a range of sizes."""
        given = values.read_shapes(self.shapes or {})
        return {name: shape for name, shape in given.items() if not all(isinstance(size, int) for size in shape)}


@dataclass(frozen=True, kw_only=True)
class InputOptions(RunLimitOptions, SizeOptions):
    """Verbs that run the model."""

    inputs: Annotated[
        RunInputs | None,
        Option(
            "values to run on: a file, or a range of the random numbers of an input",
            "FILE.npz|INPUT=LOW:HIGH",
            heading=SIZES,
            default="random",
            kind=values.INPUTS,
        ),
    ] = None

    @property
    def input_file(self) -> Path | None:
        """The file of the inputs; None for random ones."""
        return next((entry for entry in self._inputs if isinstance(entry, Path)), None)

    @property
    def input_ranges(self) -> dict[str, tuple[float, float]]:
        """The least number of random inputs, and the one that they stay below, by name."""
        ranges = (entry for entry in self._inputs if isinstance(entry, values.InputRange))
        return {entry.name: (entry.low, entry.high) for entry in ranges}

    @property
    def _inputs(self) -> values.InputValues:
        return () if self.inputs is None else values.read_inputs(self.inputs)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RunLimitOptions):
    """Verbs that verify by running."""

    verify: Annotated[
        bool, Option("do not run the result beside the original", flags=("--no-verify",), heading=WRITING)
    ] = True


@dataclass(frozen=True, kw_only=True)
class ReportOptions(WatchOptions):
    """Every command: how it reports."""

    as_json: Annotated[
        str | None, Option("write the result as JSON, - for stdout", "FILE", ("--json",), REPORTING, main=True)
    ] = None
    quiet: Annotated[
        bool,
        Option("print errors only", flags=("-q", "--quiet"), heading=REPORTING),
    ] = False


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ReportOptions):
    """Every command that writes a model."""

    output: Annotated[
        str | None,
        Option("output file, - for stdout", "OUT", ("-o", "--output"), WRITING, default="beside IN", main=True),
    ] = None
    force: Annotated[bool, Option("allow OUT to be IN", heading=WRITING)] = False
    dry_run: Annotated[bool, Option("do not write the model", heading=WRITING)] = False


@dataclass(frozen=True, kw_only=True)
class TargetOptions(WatchOptions):
    """Verbs that take limits and figures of the hardware from a file."""

    target: Annotated[
        str | Path | Mapping[str, Any] | None,
        Option(
            "hardware: limits of a tile, speeds, streams; a file or a name: 64x64x64 ...",
            "FILE|NAME",
            kind=values.TARGET,
            choices=Choices("onnxtile.tiling.limits:ready_made", open=True),
            main=True,
        ),
    ] = None

    @cached_property
    def figures(self) -> TargetFigures:
        """The figures of the target beside its limits. Raises UsageError."""
        if self.target is None:
            return TargetFigures()
        figures: TargetFigures = imported("onnxtile.tiling.limits:figures_of")(self.target)
        return figures


@dataclass(frozen=True, kw_only=True)
class EmitOptions:
    """The files that a plan is written to."""

    emit: Annotated[
        tuple[str, ...],
        Option(
            "also write the plan, as .json .csv .c .h .bin .html .svg .png .tflm ...",
            "FILE",
            heading=WRITING,
            kind=values.TEXTS,
            endings=Choices("onnxtile.report.format:endings"),
            main=True,
        ),
    ] = ()

    @property
    def wants_c(self) -> bool:
        """Whether one of the files is a program in C."""
        return any(file.endswith(".c") or file == "c" for file in self.emit)
