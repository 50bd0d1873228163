"""The command line: arguments, exit codes and messages, nothing else. Results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from onnxtile.errors import OnnxtileError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


pattern_app = typer.Typer(no_args_is_help=True, help="Write patterns of your own.", rich_markup_mode=None)
app.add_typer(pattern_app, name="pattern")


class Result(Protocol):
    """What every verb of the library returns."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        ...


def _json_target(file: str | None) -> str | None:
    """Return `file`, found to be writable before any work is done."""
    if file is not None and file != "-":
        from onnxtile.model.save import require_writable

        require_writable(Path(file))
    return file


In = Annotated[Path, typer.Argument(metavar="IN", help="an ONNX model", show_default=False)]
Out = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="OUT", help="file to write, - for stdout [IN's name with the verb]"),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="write the result as JSON, - for stdout",
        callback=_json_target,
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="print errors only")]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]
Force = Annotated[bool, typer.Option("--force", help="allow OUT to be IN")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="write nothing")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="do not run the result beside the original")]
Dim = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="bind a symbolic dimension")]
Shape = Annotated[
    list[str] | None, typer.Option("--shape", metavar="INPUT=1x3x224x224", help="give an input's whole shape")
]


@app.callback(invoke_without_command=True)
def _onnxtile(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    """Fuse, tile and plan ONNX models for hardware with limits, and prove by running that nothing changed."""
    if version:
        from importlib.metadata import version as installed

        print(installed("onnxtile"))  # noqa: T201
        raise typer.Exit


@app.command()
def match(model: In, query: str, as_json: Json = None, quiet: Quiet = False, debug: Debug = False) -> None:
    """List where QUERY matches; exit 1 when nowhere. Example: onnxtile match model.onnx 'MatMul-*>Add'."""
    del debug
    from onnxtile import api

    with _progress(quiet) as progress:
        result = api.match(model, query, progress=progress)
    _report(result, "match", as_json, quiet)
    if not result.matches:
        raise typer.Exit(1)


@app.command()
def fuse(
    model: In,
    output: Out = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option("-p", "--pattern", metavar="NAME|FILE|QUERY", help="a pattern, a set, a .toml file or a query"),
    ] = None,
    lower: Annotated[
        str,
        typer.Option("--lower", metavar="none|onnx|ort", help="write operators that mean the same instead of calls"),
    ] = "none",
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="NAME", help="write nothing; say where this pattern stopped, and why"),
    ] = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fuse subgraphs into meta-ops. Example: onnxtile fuse model.onnx -p Linear -p LayerNorm."""
    del debug
    from onnxtile import api

    if explain is not None:
        with _progress(quiet) as progress:
            why = api.explain(model, explain, pattern or (), progress=progress)
        _report(why, "explain", as_json, quiet)
        return
    target = _target(model, output, "fused", force, dry_run)
    with _progress(quiet) as progress:
        result = api.fuse(model, pattern or (), lower=lower, verify=not no_verify, progress=progress)
        _write(result.model, target, model, force)
    _report(result, "fuse", as_json, quiet, target)


@app.command()
def unfuse(
    model: In,
    output: Out = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Undo what fuse did. Example: onnxtile unfuse model.fused.onnx -o model.onnx."""
    del debug
    from onnxtile import api

    target = _target(model, output, "unfused", force, dry_run)
    with _progress(quiet) as progress:
        result = api.unfuse(model, verify=not no_verify, progress=progress)
        _write(result.model, target, model, force)
    _report(result, "unfuse", as_json, quiet, target)


@app.command()
def tile(
    model: In,
    output: Out = None,
    most: Annotated[int | None, typer.Option("--max", help="bound on M, K and N")] = None,
    max_m: Annotated[int | None, typer.Option("--max-m", help="bound on M, the rows of the left operand")] = None,
    max_k: Annotated[int | None, typer.Option("--max-k", help="bound on K, the summed axis")] = None,
    max_n: Annotated[int | None, typer.Option("--max-n", help="bound on N, the columns of the right operand")] = None,
    limits_file: Annotated[
        str | None, typer.Option("--target", metavar="FILE|NAME", help="a limits file, or one that ships: 64x64x64 ...")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="256KiB", help="what a tile may hold at once; fewest bytes are moved"),
    ] = None,
    nodes_at_most: Annotated[
        int | None, typer.Option("--nodes-at-most", metavar="N", help="bound on the nodes of all tiles together")
    ] = None,
    accumulate: Annotated[
        str, typer.Option("--accumulate", metavar="WAY", help="how partial sums are added: sum, chain, tree or gemm")
    ] = "sum",
    wrap: Annotated[bool, typer.Option("--wrap", help="put each tiled layer into a local function")] = False,
    dim: Dim = None,
    shape: Shape = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Split matrix products into bounded MatMul, Sum and Concat. Example: onnxtile tile model.onnx --max 64."""
    del debug
    from onnxtile import api
    from onnxtile.tile.limits import Limits
    from onnxtile.tile.options import Options
    from onnxtile.tile.target import find

    base = None if limits_file is None else find(limits_file)
    limits = Limits.of(max=most, m=max_m, k=max_k, n=max_n, memory=_bytes(memory, "memory"), base=base)
    options = Options.of(accumulate=accumulate, nodes_at_most=nodes_at_most, wrap=wrap)
    target = _target(model, output, "tiled", force, dry_run)
    with _progress(quiet) as progress:
        result = api.tile(
            model,
            limits,
            options=options,
            dims=_dims(dim),
            shapes=_shapes(shape),
            verify=not no_verify,
            progress=progress,
        )
        _write(result.model, target, model, force)
    _report(result, "tile", as_json, quiet, target)


@app.command()
def plan(
    model: In,
    output: Out = None,
    dim: Dim = None,
    shape: Shape = None,
    alignment: Annotated[
        int, typer.Option("--alignment", metavar="BYTES", help="every buffer starts at a multiple of it")
    ] = 64,
    planner: Annotated[str, typer.Option("--planner", metavar="NAME", help="how offsets are found")] = "best",
    capacity: Annotated[
        str | None, typer.Option("--capacity", metavar="256KiB", help="fail (exit 1) if the arena is larger")
    ] = None,
    emit: Annotated[
        list[Path] | None, typer.Option("--emit", metavar="FILE", help="write the plan as .json or .csv")
    ] = None,
    no_verify: NoVerify = False,
    force: Force = False,
    dry_run: DryRun = False,
    as_json: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Give every activation an offset in an arena. Example: onnxtile plan model.onnx --dim batch=1 --emit plan.json."""
    del debug
    from onnxtile import api
    from onnxtile.model.save import require_writable, write_whole
    from onnxtile.report.format import format_of

    target = _target(model, output, "planned", force, dry_run)
    files = {path: format_of(path) for path in emit or ()}
    for path in files:
        require_writable(path, source=model)
    with _progress(quiet) as progress:
        result = api.plan(
            model,
            dims=_dims(dim),
            shapes=_shapes(shape),
            alignment=alignment,
            planner=planner,
            capacity=_bytes(capacity),
            verify=not no_verify,
            progress=progress,
        )
        content = {path: form.render(result.plan.to_dict()) for path, form in files.items()}
        _write(result.model, target, model, force)
        for path, data in content.items():
            if not dry_run:
                write_whole(path, data)
    _report(result, "plan", as_json, quiet, target)


@pattern_app.command("new")
def new_pattern(
    model: Annotated[Path, typer.Option("--from", metavar="MODEL", help="the model that has the nodes")],
    nodes: Annotated[str, typer.Option("--nodes", metavar="A,B,C", help="their names, with commas between")],
    name: Annotated[str, typer.Option("--name", help="what the meta-op is to be called")] = "MyMetaOp",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.toml", help="file to write [stdout]")
    ] = None,
    as_json: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write the pattern for chosen nodes. Example: onnxtile pattern new --from m.onnx --nodes Sig_1,Mul_2 -o my.toml."""
    del debug
    from onnxtile import api
    from onnxtile.model.save import require_writable, write_whole

    if output is not None:
        require_writable(output, source=model)
    with _progress(quiet) as progress:
        result = api.draft_pattern(
            model, [part.strip() for part in nodes.split(",") if part.strip()], name, progress=progress
        )
    if as_json is not None:
        _report(result, "pattern", as_json, quiet=True)
    if output is not None:
        write_whole(output, result.text.encode())
    elif as_json != "-":
        sys.stdout.write(result.text)
    if not quiet:
        sys.stderr.write(f"the query matches {result.matches} times in {model}\n")


@app.command()
def verify(
    model: In,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="the model to compare with", show_default=False)],
    dim: Dim = None,
    shape: Shape = None,
    as_json: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run both models and compare every output; exit 1 when they differ. Example: onnxtile verify a.onnx b.onnx."""
    del debug
    from onnxtile import api

    with _progress(quiet) as progress:
        result = api.verify(model, other, dims=_dims(dim), shapes=_shapes(shape), progress=progress)
    _report(result, "verify", as_json, quiet)
    if not result.equal:
        raise typer.Exit(1)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where its files go")] = Path("onnxtile-demo"),
    as_json: Json = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Go the whole way on a small transformer that ships with onnxtile: fuse, tile, plan, verify."""
    del debug
    from onnxtile import demo as tour

    with _progress(quiet) as progress:
        result = tour.demo(folder, progress=progress)
    _report(result, "demo", as_json, quiet)
    if not quiet and as_json != "-":
        _say(
            f"its files are in {folder}/; look at {folder}/transformer.fused.onnx in a viewer such as Netron, then try yours:"
        )
        _say(
            "  onnxtile fuse MODEL.onnx && onnxtile tile MODEL.onnx --max 64 && onnxtile plan MODEL.onnx --emit plan.json"
        )


def main() -> None:
    """Run the command; end with 0 (done), 1 (a check said no) or 2 (bad input or usage)."""
    debug = "--debug" in sys.argv
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        _fail("interrupted", None, 130)
    except typer.TyperException as error:
        _fail(_one_line(error), "onnxtile --help shows the commands and their options", 2)
    except OnnxtileError as error:
        if debug:
            raise
        _fail(str(error), error.hint, error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", None, 130)
    except MemoryError:
        _fail("there is not enough memory for this model", None, 2)
    except Exception as error:  # the last line of defence: a traceback is no message for a user
        if debug:
            raise
        _fail(
            f"internal error: {type(error).__name__}: {_one_line(error)}",
            "this is a bug in onnxtile; --debug shows where",
            2,
        )
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: Exception) -> str:
    formatted: Callable[[], str] = getattr(error, "format_message", lambda: str(error))
    return " ".join(formatted().split())


def _fail(message: str, hint: str | None, code: int) -> None:
    """End with one line that says what is wrong and what to do; a query at fault follows with its caret."""
    first, newline, rest = message.partition("\n")
    sys.stderr.write(f"error: {first}{f' ({hint})' if hint else ''}{newline}{rest}\n")
    sys.exit(code)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show the stage that long work is in, on stderr, as long as that is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _stage: None
        return
    with console.status("starting") as status:
        yield status.update


def _report(result: Result, verb: str, as_json: str | None, quiet: bool, target: str | None = None) -> None:
    """Print the tables of `result` unless stdout is taken, and write its JSON where asked."""
    content = result.to_dict()
    if as_json == "-":
        sys.stdout.write(_json(content))
    elif as_json is not None:
        from onnxtile.model.save import write_whole

        write_whole(Path(as_json), _json(content).encode())
    if quiet or as_json == "-" or target == "-":
        return
    from rich.console import Console

    from onnxtile.report import tables

    render: Callable[[Mapping[str, Any]], list[Any]] = getattr(tables, f"for_{verb}")
    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # in a pipe there is no edge to wrap at
    for part in render(content):
        console.print(part if console.is_terminal else tables.plain(part))
    if target is not None:
        console.print(f"written: {target}", highlight=False)


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _target(model: Path, output: str | None, verb: str, force: bool, dry_run: bool) -> str | None:
    """Return where the result goes, checked before any work is done: a path, "-", or None for nowhere."""
    from onnxtile.model.save import require_writable

    if dry_run:
        return None
    if output == "-":
        return "-"
    path = Path(output) if output is not None else model.with_suffix(f".{verb}.onnx")
    require_writable(path, source=model, force=force)
    return str(path)


def _write(result: ir.Model, target: str | None, source: Path, force: bool) -> None:
    from onnxtile import api
    from onnxtile.model.save import to_bytes

    if target == "-":
        sys.stdout.buffer.write(to_bytes(result))
    elif target is not None:
        api.save(result, target, source=source, force=force)


def _pairs(options: list[str] | None, name: str, example: str) -> Iterator[tuple[str, str]]:
    for option in options or ():
        key, equals, value = option.rpartition("=")
        if not equals or not key:
            raise UsageError(f"--{name} {option} is not of the form {example}")
        yield key, value


def _dims(options: list[str] | None) -> dict[str, int]:
    found = {}
    for name, size in _pairs(options, "dim", "NAME=N"):
        if not size.isdigit():
            raise UsageError(f"--dim {name}={size}: the size of a dimension is a whole number")
        found[name] = int(size)
    return found


def _shapes(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    from onnxtile.model.dims import parse_shape

    return {name: parse_shape(shape) for name, shape in _pairs(options, "shape", "INPUT=1x3x224x224")}


def _bytes(text: str | None, option: str = "capacity") -> int | None:
    """Return the bytes that "256KiB", "1MB" or "4096" mean. Raises UsageError."""
    if text is None:
        return None
    units = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1}
    folded = text.strip().lower()
    unit = next((u for u in units if folded.endswith(u)), "")
    number = folded.removesuffix(unit).strip()
    if not number.isdigit():
        raise UsageError(f"--{option} {text} is not a size in bytes", hint="write 262144, 256KiB or 8MiB")
    return int(number) * units.get(unit, 1)
