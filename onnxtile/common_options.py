"""Groups of options that several verbs share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile.declare import values
from onnxtile.declare.option import REPORTING, SIZES, WRITING, Choices, Option, Positional
from onnxtile.declare.target import TargetFigures
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.progress import Progress, silent
from onnxtile.system.registry import imported
from onnxtile.system.text import whole

if TYPE_CHECKING:
    from onnxtile.model import load

    Source: TypeAlias = load.Source
else:  # the declarations are read without what models need
    Source: TypeAlias = Any

DimensionSizes: TypeAlias = Mapping[str, int | str | tuple[int, int]]
"""Sizes of symbolic dimensions, by name: a number, or the least and the largest size (1, 8) or "1:8"."""
UpperBounds: TypeAlias = Mapping[str, int]
"""The largest sizes of data-dependent dimensions, by name."""
WholeShapes: TypeAlias = Mapping[str, str | tuple[int | tuple[int, int], ...]]
"""Whole shapes of inputs, by name; a size may be a range, "1x3x48x(1:320)" or (1, 3, 48, (1, 320))."""
NumberRanges: TypeAlias = Mapping[str, tuple[float, float]]
"""The numbers that random inputs have, from the first to below the second, by name."""

ModelArgument: TypeAlias = Annotated[Source, Positional("IN", "an ONNX model", values.SOURCE)]
"""The model that a verb reads: a path, a ModelProto or an onnx_ir.Model."""


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Every verb: `progress` is called with the name of each stage of long work."""

    progress: Progress = silent


@dataclass(frozen=True, kw_only=True)
class SizeOptions(WatchOptions):
    """Verbs that need sizes."""

    dims: Annotated[
        DimensionSizes | None,
        Option(
            "size of a symbolic dimension, or past+1; plan and inspect also take a range 1:8",
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
        sums = {
            name: parts
            for name, parts in self._sums.items()
            if any(isinstance(given.get(part), tuple) for part in parts)
        }
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
        return {name: size for name, size in values.read_dims(self.dims or {}).items() if isinstance(size, tuple)}

    @property
    def has_ranges(self) -> bool:
        """Whether a dimension has a range of sizes."""
        return bool(self.dim_ranges or self.shape_ranges)

    @property
    def single_dims(self) -> dict[str, int]:
        """The sizes of dimensions. Raises UsageError for a range, where one size is needed."""
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
class BoundOptions(SizeOptions):
    """Verbs that plan."""

    bounds: Annotated[
        UpperBounds | None,
        Option("upper bound of a data-dependent dimension", "NAME=N", ("--bound",), SIZES, kind=values.COUNTS),
    ] = None


@dataclass(frozen=True, kw_only=True)
class InputOptions(SizeOptions):
    """Verbs that run the model."""

    inputs: Annotated[
        Path | str | None,
        Option("input values to run on", "FILE.npz", heading=SIZES, default="random", kind=values.FILE),
    ] = None
    ranges: Annotated[
        NumberRanges | None,
        Option("range of random input values", "INPUT=LOW:HIGH", ("--range",), SIZES, kind=values.RANGES),
    ] = None


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(WatchOptions):
    """Verbs that verify by running."""

    verify: Annotated[
        bool, Option("do not run the result beside the original", flags=("--no-verify",), heading=WRITING)
    ] = True


@dataclass(frozen=True, kw_only=True)
class ReportOptions(WatchOptions):
    """Every command: how it reports, and what its runs may take."""

    as_json: Annotated[
        str | None, Option("write the result as JSON, - for stdout", "FILE", ("--json",), REPORTING, main=True)
    ] = None
    quiet: Annotated[bool, Option("print errors only", flags=("-q", "--quiet"), heading=REPORTING)] = False
    debug: Annotated[bool, Option("show the traceback of an error", heading=REPORTING)] = False
    run_seconds: Annotated[
        float | None,
        Option("time limit of a run", "N", heading=SIZES, default="600; 10 with a loop", kind=values.SECONDS),
    ] = None
    run_memory: Annotated[
        int | None,
        Option("memory limit of a run", "4GiB", heading=SIZES, default="available memory", kind=values.SIZE),
    ] = None


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
            replaces={
                "bandwidth": '--target target.toml, and in it bandwidth.dram = "8GB/s"',
                "macs_per_second": '--target target.toml, and in it macs_per_second = "4G"',
                "streams": "--target target.toml, and in it streams = 2",
                "c_kernels": '--target target.toml, and in it c_kernels = "table.toml"',
                "max_rows": "--target target.toml, and in it rows = 4",
                "max_columns": "--target target.toml, and in it columns = 4",
                "max_channels": "--target target.toml, and in it channels = 16",
                "max_filters": "--target target.toml, and in it filters = 16",
            },
        ),
    ] = None

    @cached_property
    def figures(self) -> TargetFigures:
        """The figures of the target beside its limits. Raises UsageError."""
        if self.target is None:
            return TargetFigures()
        found: TargetFigures = imported("onnxtile.tiling.limits:figures_of")(self.target)
        return found


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
            replaces={
                **dict.fromkeys(("names", "no_names"), "--emit plan.html: a button of the page shows names"),
                "color_by": "--emit plan.html: buttons of the page choose the colours",
            },
        ),
    ] = ()
    weights: Annotated[
        str,
        Option(
            "keep the weights of a .c in its code, or in a .weights.bin beside it",
            "code|file",
            heading=WRITING,
            choices=Choices("onnxtile.firmware.weights:HOLDERS"),
        ),
    ] = "code"
    target_cc: Annotated[
        str,
        Option(
            "C compiler for a target, with its options and files, to measure and run a .c",
            '"arm-none-eabi-gcc ..."',
            heading=WRITING,
            default="the compiler of this machine",
        ),
    ] = ""
    runner: Annotated[
        str,
        Option("command that runs a program of the target", '"qemu-system-arm ..."', heading=WRITING, default="none"),
    ] = ""

    @property
    def wants_c(self) -> bool:
        """Whether one of the files is a program in C."""
        return any(file.endswith(".c") or file == "c" for file in self.emit)
