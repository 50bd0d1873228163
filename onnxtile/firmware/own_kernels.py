"""Kernels that run functions in C of one's own, from a table in TOML: which nodes, the arguments of the call, and its workspace.

An entry of the table has a query for one node, a call, and a formula. An argument is a tensor of the node, `workspace`, or what a test of
a query can read of the node: `strides[0]`, `inputs[0].shape[1]`, a whole number. Numbers that differ from node to node are parameters of
one function, as they are in kernels of emx-onnx-cgen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir
import pydantic

from onnxtile.model.constants import Constants
from onnxtile.model.topology import node_id
from onnxtile.query.language import ElementOf, Expression, Name, parse_condition
from onnxtile.query.match import Matcher, compiled
from onnxtile.query.program import Program
from onnxtile.query.tests import TestContext, Unknown, evaluate
from onnxtile.shapes.resolve import Shapes
from onnxtile.shapes.size_rule import SizeRule
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OnnxtileError, UsageError
from onnxtile.system.toml_file import TomlFile, read

WORKING = "workspace"
"""The argument that is the address of the workspace; the name of its place in a call."""

# The table.


class _StrictTable(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class _KernelEntry(_StrictTable):
    node: str
    call: str
    workspace: str = "0"
    axes: dict[Annotated[str, pydantic.Field(pattern=r"^inputs\[\d+\]$")], tuple[int, ...]] = {}


class _KernelTable(_StrictTable):
    include: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    kernels: Annotated[tuple[_KernelEntry, ...], pydantic.Field(min_length=1)]


@dataclass(frozen=True)
class OwnKernel:
    """An entry: the query of its nodes, the function, its arguments, the workspace, and the axes of constants by their place."""

    program: Program
    function: str
    arguments: tuple[tuple[str, Expression | None], ...]
    workspace: SizeRule
    axes: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class OwnKernels:
    """A table: its entries, headers to include, and the files and options by which the proof compiles the functions."""

    kernels: tuple[OwnKernel, ...]
    include: tuple[str, ...]
    sources: tuple[Path, ...]
    options: tuple[str, ...]

    def kernels_of(
        self, model: ir.Model, constants: Constants, shapes: Callable[[], Shapes]
    ) -> dict[ir.Node, tuple[OwnKernel, TestContext]]:
        """Return the entry of each node of `model` that has one, the first that fits, and what its arguments may read."""
        matcher = Matcher(model, constants, shapes=shapes)
        entries: dict[ir.Node, tuple[OwnKernel, TestContext]] = {}
        for kernel in self.kernels:
            facts = matcher.facts(kernel.program.query.text)
            for match in matcher.find(kernel.program):
                if isinstance(match.root, ir.Node):
                    entries.setdefault(match.root, (kernel, facts))
        return entries


def read_own_kernels(path: Path) -> OwnKernels:
    """Return the table at `path`. Raises UsageError, with file and line, for one that cannot be read."""
    file = read(path, UsageError, hint="name a table of kernels in TOML")
    table = file.validated(_KernelTable)
    folder = path.parent
    kernels = tuple(_entry(entry, file, number) for number, entry in enumerate(table.kernels))
    sources = tuple((folder / source).resolve() for source in table.sources)
    for number, source in enumerate(sources):
        if not source.is_file():
            raise UsageError(f"{file.place(('sources', number))}: there is no file {str(source)!r}")
    options = (
        f"-I{folder.resolve()}",
        *(option.replace("{folder}", str(folder.resolve())) for option in table.options),
    )
    return OwnKernels(kernels, table.include, sources, options)


_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*;?\s*$", re.DOTALL)


def _entry(entry: _KernelEntry, file: TomlFile, number: int) -> OwnKernel:
    where = ("kernels", number)
    try:
        program = compiled(entry.node)
        if len(program.query.nodes) != 1:
            raise UsageError("a kernel is one node, and the query has several")
        call = _CALL.match(entry.call)
        if call is None:
            raise UsageError(
                f"{entry.call!r} is no call", hint="write function(inputs[0], outputs[0], workspace, strides[0])"
            )
        arguments = tuple((text, None if text == WORKING else parse_condition(text)) for text in _parted(call[2]))
        axes = {int(name[7:-1]): order for name, order in entry.axes.items()}
        if any(sorted(order) != list(range(len(order))) for order in axes.values()):
            raise UsageError("axes are an order of all axes, such as [0, 2, 3, 1]")
        return OwnKernel(program, call[1], arguments, SizeRule(" ".join(entry.workspace.split())), axes)
    except OnnxtileError as error:
        raise UsageError(f"{file.place(where)}: {error.message}", hint=error.hint) from error


def _parted(text: str) -> Iterator[str]:
    """Yield the arguments in `text`, which commas outside brackets part."""
    depth, start = 0, 0
    for at, char in enumerate(f"{text},"):
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            if text[start:at].strip():
                yield text[start:at].strip()
            start = at + 1


# The arguments of one node.


@dataclass(frozen=True)
class OwnCall:
    """A call of `function`. An argument is the name of an operand or of the workspace, a number, or None for an operand not given."""

    function: str
    include: tuple[str, ...]
    arguments: tuple[str | int | float | None, ...]


_IMPLIED = {"strides": 1, "dilations": 1, "pads": 0}
"""What a convolution or pooling that does not say these means by it."""


def own_call(
    kernel: OwnKernel, include: tuple[str, ...], node: ir.Node, facts: TestContext, names: Mapping[ir.Value, str]
) -> OwnCall:
    """Return the call of `kernel` for `node`; `names` has the names of its operands. Raises UsageError for an argument without a value."""
    arguments = tuple(_argument(text, expression, node, facts, names) for text, expression in kernel.arguments)
    return OwnCall(kernel.function, include, arguments)


def _argument(
    text: str, expression: Expression | None, node: ir.Node, facts: TestContext, names: Mapping[ir.Value, str]
) -> str | int | float | None:
    if expression is None:
        return WORKING
    value: Any = evaluate(expression, node, facts)
    base = expression.base if isinstance(expression, ElementOf) else None
    if isinstance(value, Unknown) and isinstance(base, Name) and base.value in _IMPLIED:
        return _IMPLIED[base.value]
    if isinstance(value, Unknown) and isinstance(base, Name) and base.value in {"inputs", "outputs"}:
        return None
    if isinstance(value, ir.Value) and value in names:
        return names[value]
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bool | int | float | np.generic):
        return float(value) if isinstance(value, float | np.floating) else int(value)
    reason = value.reason if isinstance(value, Unknown) else "it is neither a number nor an operand"
    raise UsageError(f"the argument {text!r} of a kernel for {node_id(node)!r}: {reason}")


def function_in_c(call: OwnCall, ctypes: Mapping[str, str], name: str) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    """Return the text of a function `name` that makes `call`, the operands that it takes, and the numbers.

    `ctypes` has the types in C of the operands by their names. Calls that differ in whole numbers alone have the same text.
    """
    operands, numbers, texts = list[str](), list[int](), list[str]()
    for argument in call.arguments:
        if argument is None:
            texts.append("NULL")
        elif isinstance(argument, str):
            texts.append(f"({ctypes.get(argument, 'void')} *)x[{len(operands)}]")
            operands.append(argument)
        elif isinstance(argument, float):
            texts.append(f"{argument!r}f")
        else:
            texts.append(f"(int32_t)p[{len(numbers)}]")
            numbers.append(argument & 0xFFFFFFFF)
    lines = [f"static void {name}(const idx_t *p, uint8_t *const *x) {{"]
    lines += [f"    (void){parameter};" for parameter, used in (("p", numbers), ("x", operands)) if not used]
    lines += [f"    {call.function}({', '.join(texts)});", "}", ""]
    return "\n".join(lines), tuple(operands), tuple(numbers)


def included(calls: Iterable[OwnCall]) -> str:
    """Return the lines that include the headers of `calls`."""
    return "".join(f'#include "{header}"\n' for header in dict.fromkeys(h for call in calls for h in call.include))


def compiled_objects(
    kernels: OwnKernels, command: Sequence[str], folder: Path, run: Callable[[Sequence[str]], object]
) -> list[Path]:
    """Compile the sources of `kernels` by `command` to objects in `folder`, and return these; `run` runs a command."""
    objects = []
    for number, source in enumerate(kernels.sources):
        objects.append(folder / f"own_{number}.o")
        run([*command, *kernels.options, "-O2", "-c", str(source), "-o", str(objects[-1])])
    return objects
