"""Kernels in C: the functions of the different kernels, and those that differ in numbers alone as one function.

emx-onnx-cgen writes a function of loops for each node of a model. Here the nodes are the different kernels, each with inputs of its own.
Some functions are templates of ours. All have their sizes in the text. Those whose text is equal but for whole numbers become one, with
these numbers as parameters: strips of a fitted model, and layers of a network, are calls of few functions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from math import prod
from typing import Any

import onnx
import onnx_ir as ir

from onnxtile.firmware.own_kernels import function_in_c, included
from onnxtile.firmware.program import IR_VERSION, DistinctKernel, OpenNumber, SizePoints
from onnxtile.firmware.templates import HEAD, template_of
from onnxtile.model.formula import SizeFormula
from onnxtile.model.submodel import assembled, tensor_type
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, of_extra

CTYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float",
    onnx.TensorProto.DOUBLE: "double",
    onnx.TensorProto.INT8: "int8_t",
    onnx.TensorProto.UINT8: "uint8_t",
    onnx.TensorProto.INT16: "int16_t",
    onnx.TensorProto.UINT16: "uint16_t",
    onnx.TensorProto.INT32: "int32_t",
    onnx.TensorProto.UINT32: "uint32_t",
    onnx.TensorProto.INT64: "int64_t",
    onnx.TensorProto.UINT64: "uint64_t",
    onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.FLOAT16: "uint16_t",
    onnx.TensorProto.BFLOAT16: "uint16_t",
}
"""The type in C of an element; of floats of 16 bits that of their bits."""

_INSIDE: dict[int, str] = {onnx.TensorProto.FLOAT16: "_Float16"}
"""The type of an element inside kernels, where that is another."""

# Functions of emx-onnx-cgen, read from its text.


@dataclass(frozen=True)
class CParameter:
    """A pointer that a function takes: its element type in C, with const, its name, and its sizes.

    `strides` are the elements from one index of each axis to the next, where the rows of the tensor do not follow each other.
    """

    ctype: str
    name: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoopFunction:
    """A function of loops, as emx-onnx-cgen writes it: `before` are its helpers. Its own name is `KERNEL` in the text.

    `arguments` are the names of the operands in the kernel, in the order of the parameters.
    """

    before: str
    parameters: tuple[CParameter, ...]
    body: str
    arguments: tuple[str, ...]


def require_emx() -> None:
    """Raise UsageError where emx-onnx-cgen is not installed."""
    if find_spec("emx_onnx_cgen") is None:
        raise UsageError("C needs the package emx-onnx-cgen", hint=of_extra("c"))


def require_operators(kernels: Iterable[DistinctKernel]) -> None:
    """Raise UsageError for the first kernel whose operator emx-onnx-cgen lacks."""
    from emx_onnx_cgen.lowering import load_lowering_registry
    from emx_onnx_cgen.lowering.registry import get_lowering_registry

    load_lowering_registry()
    known = get_lowering_registry()
    for kernel in kernels:
        if kernel.op_type not in known:
            raise _lacking(kernel, f"emx-onnx-cgen has no {kernel.op_type}")


def _lacking(kernel: DistinctKernel, reason: str) -> UsageError:
    return UsageError(
        f"no C can be written for the node {kernel.label!r} ({kernel.op_type}): {reason}",
        hint="nothing was written",
    )


def compiled(kernels: Sequence[DistinctKernel]) -> tuple[str, tuple[LoopFunction, ...]]:
    """Return the includes and helpers that the functions of `kernels` share, and the functions.

    Raises UsageError that names the node where emx-onnx-cgen cannot write one.
    """
    from emx_onnx_cgen.errors import CompilerError

    if not kernels:
        return "", ()
    try:
        return _parsed(_emx().compile(model_of(kernels)), kernels)
    except (CompilerError, _UnknownText) as error:
        if len(kernels) == 1:
            raise _lacking(kernels[0], " ".join(str(error).partition(" (while lowering")[0].split())) from error
    half = len(kernels) // 2
    for some in (kernels[:half], kernels[half:]):
        compiled(some)
    raise _lacking(kernels[0], "emx-onnx-cgen takes each kernel alone, but not all of them together")


def model_of(kernels: Sequence[DistinctKernel]) -> onnx.ModelProto:
    """Return a model whose nodes are `kernels`: the one of index 3 has the inputs k3_i0, k3_i1 ... and the outputs k3_o0 ..."""
    nodes: list[onnx.NodeProto] = []
    inputs: dict[str, onnx.TypeProto | None] = {}
    outputs: dict[str, onnx.TypeProto] = {}
    fixed: list[onnx.TensorProto] = []
    for number, kernel in enumerate(kernels):
        node = onnx.NodeProto.FromString(kernel.node)
        node.name = f"k{number}"
        for names in (node.input, node.output):
            names[:] = [name and f"k{number}_{name}" for name in names]
        nodes.append(node)
        constants = dict(kernel.fixed)
        for name, tensor in kernel.tensors:
            unique = f"k{number}_{name}"
            if name in constants:
                proto = onnx.TensorProto.FromString(constants[name])
                proto.name = unique
                fixed.append(proto)
                continue
            kind = tensor_type(ir.DataType(tensor.dtype), tensor.sizes)
            if name.startswith("o"):
                outputs[unique] = kind
            else:
                inputs[unique] = kind
    imports = dict(pair for kernel in kernels for pair in kernel.opsets)
    model = assembled(nodes, inputs, outputs, imports, constants=fixed, ir_version=IR_VERSION)
    for info in model.graph.output:
        info.type.CopyFrom(outputs[info.name])
    return model


@cache
def _emx() -> Any:
    """Return the compiler of emx-onnx-cgen. It reads its templates once, which takes longer than most models do."""
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions

    options = CompilerOptions(
        model_name="kernels", restrict_arrays=False, large_temp_threshold_bytes=0, large_weight_threshold=0
    )
    return Compiler(options)


class _UnknownText(Exception):
    """A text of emx-onnx-cgen in another form than is known here."""


_NODE = re.compile(r"^/\*\n \* Node \d+:\n.*?^ \*/\n", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^EMX_NODE_FN void (\w+)\(([^)]*)\) \{\n(.*?)^\}\n", re.MULTILINE | re.DOTALL)
_WEIGHTS = re.compile(
    r"^/\*\n \* Weight \d+:\n(?: \*.*\n)+? \*/\nconst EMX_UNUSED [^;]*;\n|^extern const [^;]*;\n", re.MULTILINE
)
_PARAMETER = re.compile(r"((?:const )?\w+) (\w+)((?:\[\d+\])*)$")
_CALL = re.compile(r"^ {4}(\w+)\(([^)]*)\);$", re.MULTILINE)
_WEIGHT = re.compile(r"weight\d+_(k\d+_\w+)$")
_CAUSAL = re.compile(r"(qi < (\d+);.*\(ki >= (\w+\[b\])\).*1 && ki > qi \+ )0\)", re.DOTALL)
"""Causal attention with an operand of lengths: the last query reads up to the last key. In emx-onnx-cgen 1.4 the first reads one key."""
_ALLOCATES = re.compile(r"\b(malloc|calloc|realloc|fopen|printf|regcomp)\b")


def _parsed(text: str, kernels: Sequence[DistinctKernel]) -> tuple[str, tuple[LoopFunction, ...]]:
    """Return the head of `text`, which emx-onnx-cgen wrote of `kernels`, and the functions in it."""
    start, *chunks = re.split(_NODE, text)
    functions: dict[str, tuple[str, str, str]] = {}
    rest = ""
    for chunk in chunks:
        header = _FUNCTION.search(chunk)
        if header is None:
            raise _UnknownText("its function is in a form that is not known")
        name, parameters, body = header.groups()
        functions[name] = (chunk[: header.start()], parameters, body)
        rest = chunk[header.end() :]
    arguments = _arguments(rest, functions, len(kernels))
    loops = []
    for number, kernel in enumerate(kernels):
        name, operands = arguments[number]
        before, _, body = functions[name]
        known = {own_name for own_name, _ in kernel.tensors}
        if not set(operands) <= known:
            raise _UnknownText("it needs memory of its own")
        if _ALLOCATES.search(before + body):
            raise _UnknownText("it allocates memory, or reads files")
        # Neither its name nor its number tells it from the same function of another kernel.
        before, parameters, body = (
            re.sub(rf"\bk{number}_", "k_", re.sub(rf"\b{name}", "KERNEL", text)) for text in functions[name]
        )
        if kernel.op_type == "Attention":
            body = _CAUSAL.sub(r"\1\3 - \2)", body)
        loops.append(LoopFunction(before.strip(), _parameters(parameters), body, operands))
    return _WEIGHTS.sub("", start), tuple(loops)


def _arguments(text: str, functions: Collection[str], count: int) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return by the number of each of `count` kernels its function, and the operands that the calls in `text` give it."""
    arguments: dict[int, tuple[str, tuple[str, ...]]] = {}
    for name, given in _CALL.findall(text):
        if name not in functions:
            continue
        names = [_WEIGHT.sub(r"\1", argument) for argument in given.split(", ")]
        owners = {argument.partition("_")[0] for argument in names}
        if len(owners) != 1:
            raise _UnknownText("it is several functions")
        number = int(owners.pop()[1:])
        if number in arguments:
            raise _UnknownText("it is several functions")
        arguments[number] = name, tuple(argument.partition("_")[2] for argument in names)
    if len(arguments) != count:
        raise _UnknownText("it leaves a function out")
    return arguments


def _parameters(text: str) -> tuple[CParameter, ...]:
    parameters = []
    for parameter in text.split(", "):
        match = _PARAMETER.match(parameter)
        if match is None:
            raise _UnknownText(f"it takes {parameter}")
        sizes = tuple(map(int, re.findall(r"\d+", match[3])))
        parameters.append(CParameter(match[1], match[2], sizes))
    return tuple(parameters)


# Functions of one text: arrays become flat, and whole numbers become parameters.

_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?[fFlLuU]*'
    r"|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fFlLuU]*|[A-Za-z_]\w*|\s+|."
)
_NUMBER = re.compile(r"\d+$")
_ARRAY = re.compile(
    r"\s*(?:static\s+)?(?:const\s+)?(?!return\b|else\b|const\b|static\b)(\w+)[\s*]+(?:const\s+)?\w+\s*\["
)


def _flat(tokens: Sequence[str], arrays: Mapping[str, CParameter]) -> list[str]:
    """Return `tokens` with the indices of `arrays` as one index each."""
    flat: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token not in arrays:
            flat.append(token)
            continue
        if flat[-3:] == ["(", "void", ")"]:  # an operator that reads no element, as Shape is
            flat.append(token)
            continue
        array, indices = arrays[token], list[list[str]]()
        while at < len(tokens) and tokens[at] == "[" and len(indices) < len(array.sizes):
            end = _closing(tokens, at)
            indices.append(_flat(tokens[at + 1 : end], arrays))
            at = end + 1
        if array.strides and len(indices) < len(array.strides):
            raise _UnknownText("it reads or writes a growing state as one piece, and the rows of the state are apart")
        if array.strides:
            flat += [token, "[0"]
            for index, stride in zip(indices, array.strides, strict=True):
                flat += [" + (", *index, ") * ", str(stride)]
            flat.append("]")
        else:
            flat += _indexed(token, indices, array.sizes) if indices else [token]
    return flat


def _closing(tokens: Sequence[str], at: int) -> int:
    depth = 0
    for index in range(at, len(tokens)):
        depth += {"[": 1, "]": -1}.get(tokens[index], 0)
        if not depth:
            return index
    raise _UnknownText("its brackets are not closed")


def _indexed(name: str, indices: Sequence[list[str]], sizes: Sequence[int]) -> list[str]:
    """Return the element of the flat array `name` at `indices`, or the address of a row where these are fewer than `sizes`."""
    flat = ["(", *indices[0], ")"]
    for index, size in zip(indices[1:], sizes[1:], strict=False):
        flat = ["(", *flat, " * ", str(size), " + ", *index, ")"]
    rows = sizes[len(indices) :]
    if not rows:
        return [name, "[", *flat, "]"]
    return ["(", name, " + ", *flat, *(part for size in rows for part in (" * ", str(size))), ")"]


def _uses(tokens: Sequence[str]) -> Iterator[str]:
    """Yield for each token what a number there is: "free" to be a variable, in a "list" of an array, the "size" of one, or "fixed"."""
    statement, in_list, use_in_list = "", False, "free"
    for token in tokens:
        if token in {";", "{", "}"} and not in_list:
            declared = _ARRAY.match(statement)
            in_list = token == "{" and declared is not None and statement.rstrip().endswith("=")
            if in_list and declared is not None:
                use_in_list = "fixed" if "static" in statement else "free" if declared[1] == "idx_t" else "list"
            statement = ""
        elif in_list and token == ";":
            in_list, statement = False, ""
        else:
            statement += token
        if in_list:
            yield "fixed" if "#" in statement else use_in_list
        elif "(*" in statement or "case" in statement or "#" in statement:
            yield "fixed"
        else:
            yield "free" if _ARRAY.match(statement) is None else "size"


@dataclass(frozen=True)
class Skeleton:
    """The text of a function with gaps for whole numbers: `texts` has one part more than there are gaps."""

    before: str
    ctypes: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]


_SUFFIXES = {"": "", "LL": "(int64_t)", "u": "(uint32_t)", ".0": "(double)", ".0f": "(float)"}
"""The ends of numbers that are whole, and the cast of a variable in their place."""
_WHOLE = re.compile(r"(\d+)(LL|u|\.0f?)?$")


def _skeleton(functions: Sequence[LoopFunction], points: SizePoints | None) -> tuple[Skeleton, tuple[OpenNumber, ...]]:
    """Return the text that the functions of a kernel at all `points` have, one alone without these, and the numbers in its gaps."""
    first = functions[0]
    types = tuple((parameter.ctype, parameter.name) for parameter in first.parameters)
    lists = [
        _flat(
            [match[0] for match in _TOKEN.finditer(function.body)],
            {parameter.name: parameter for parameter in function.parameters if len(parameter.sizes) > 1},
        )
        for function in functions
    ]
    if len(set(map(len, lists))) > 1 or any(function.before != first.before for function in functions):
        raise _UnknownText(_OTHER)
    texts, numbers = [""], list[OpenNumber]()
    for column, use in zip(zip(*lists, strict=True), _uses(lists[0]), strict=True):
        number, cast = _variable(column, use, points)
        if number is None:
            texts[-1] += column[0]
        elif use == "size" and points is not None:
            texts[-1] += str(points.most(number))
        else:
            texts[-1] += cast
            numbers.append(number)
            texts.append("")
    return Skeleton(first.before, types, tuple(texts)), tuple(numbers)


_OTHER = "from size to size, its C differs in more than whole numbers"


def _variable(column: Sequence[str], use: str, points: SizePoints | None) -> tuple[OpenNumber | None, str]:
    """Return the number that a token is at all sizes, with the cast of a variable there; no number for a token that stays as it is."""
    if len(set(column)) == 1:
        return (int(column[0]) if use == "free" and _NUMBER.match(column[0]) else None), ""
    matches = [_WHOLE.match(token) for token in column]
    values = [int(match[1]) for match in matches if match is not None]
    suffixes = {match[2] or "" for match in matches if match is not None}
    number = points.number(values) if points is not None and len(values) == len(column) else None
    if number is None or use == "fixed" or len(suffixes) > 1:
        raise _UnknownText(_OTHER)
    return number, _SUFFIXES[suffixes.pop()]


@dataclass(frozen=True)
class CFunction:
    """A function in C with its parameters: it takes the numbers `p`, and the addresses `x` of its operands."""

    text: str
    operands: int


@dataclass(frozen=True)
class CKernel:
    """A kernel: the number of its function, the numbers that this takes, and the names of the operands in their order."""

    function: int
    numbers: tuple[OpenNumber, ...]
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class CKernels:
    """The kernels of a program, in the order in which they were given, and their functions. `head` has the includes and helpers."""

    head: str
    functions: tuple[CFunction, ...]
    kernels: tuple[CKernel, ...]


NO_KERNELS = "#define idx_t int32_t\n"
"""What a program declares that has no kernels of emx-onnx-cgen."""


def kernels_in_c(
    kernels: Sequence[DistinctKernel],
    name: str,
    heavy: Collection[DistinctKernel] = frozenset(),
    points: SizePoints | None = None,
) -> CKernels:
    """Return the kernels in C, those of the user's functions too; `name` is the start of the names of functions. Raises UsageError.

    Each of the `heavy` kernels has a function of its own, in which all numbers are constants. Those of a program over ranges are there at
    all `points`.
    """
    loops = _loop_kernels([kernel for kernel in kernels if kernel.own is None], name, heavy, points)
    functions, rows, emx = list(loops.functions), list[CKernel](), iter(loops.kernels)
    numbers: dict[str, int] = {}
    for kernel in kernels:
        if kernel.own is None:
            rows.append(next(emx))
            continue
        types = {operand: CTYPES.get(tensor.dtype, "uint8_t") for operand, tensor in kernel.tensors}
        at_sizes = [
            function_in_c(each.own, types, "KERNEL") for each in (kernel, *kernel.others) if each.own is not None
        ]
        text, operands, fixed_numbers = at_sizes[0]
        own_numbers = fixed_numbers if points is None else _numbers_of_call(kernel, at_sizes, points)
        if text not in numbers:
            numbers[text] = len(functions)
            functions.append(CFunction(text.replace("KERNEL", f"{name}_{len(functions)}"), len(operands)))
        rows.append(CKernel(numbers[text], own_numbers, operands))
    includes = included(kernel.own for kernel in kernels if kernel.own is not None)
    head = f"{loops.head or NO_KERNELS}\n{includes}" if includes else loops.head
    return CKernels(head, tuple(functions), tuple(rows))


def _numbers_of_call(
    kernel: DistinctKernel, at_sizes: Sequence[tuple[str, tuple[str, ...], tuple[int, ...]]], points: SizePoints
) -> tuple[OpenNumber, ...]:
    """Return the numbers of the user's function as formulas, by its calls `at_sizes`."""
    numbers = list(points.numbers([numbers_at_size for _, _, numbers_at_size in at_sizes]))
    if len({text for text, _, _ in at_sizes}) > 1 or None in numbers:
        raise _lacking(kernel, "no formula of the sizes gives one of the numbers that it is called with")
    return tuple(number for number in numbers if number is not None)


def _templated(kernel: DistinctKernel) -> LoopFunction | None:
    """Return the function of a kernel whose text is ours; None for one of emx-onnx-cgen."""
    text, forms = template_of(kernel), dict(kernel.tensors)
    if text is None or (not text.has_axes and any(form.strides for form in forms.values())):
        return None
    parameters = tuple(
        CParameter(
            f"{'' if operand.startswith('o') else 'const '}{_INSIDE.get(forms[operand].dtype, CTYPES[forms[operand].dtype])}",
            operand,
            forms[operand].sizes if text.has_axes else (prod(forms[operand].sizes),),
        )
        for operand in text.operands
    )
    return LoopFunction(text.before, parameters, text.body, text.operands)


def _spread(function: LoopFunction, kernel: DistinctKernel) -> LoopFunction:
    """Return `function` with the distances of rows in memory, where these do not follow each other, in place of the sizes of tensors."""
    forms = dict(kernel.tensors)
    parameters = tuple(
        replace(parameter, strides=tuple(stride // forms[operand].element for stride in forms[operand].strides))
        for parameter, operand in zip(function.parameters, function.arguments, strict=True)
    )
    return replace(function, parameters=parameters)


def _loop_kernels(
    kernels: Sequence[DistinctKernel], name: str, heavy: Collection[DistinctKernel], points: SizePoints | None
) -> CKernels:
    functions_of = {each: _templated(each) for kernel in kernels for each in (kernel, *kernel.others)}
    others = [kernel for kernel, function in functions_of.items() if function is None]
    require_emx()
    require_operators(others)
    shared, written = compiled(others)
    functions_of.update(zip(others, written, strict=True))
    loops = [
        [_spread(function, each) for each in (kernel, *kernel.others) if (function := functions_of[each]) is not None]
        for kernel in kernels
    ]
    groups: dict[tuple[Skeleton, tuple[OpenNumber, ...] | None], list[int]] = {}
    numbers: list[tuple[OpenNumber, ...]] = []
    for index, functions_at_sizes in enumerate(loops):
        try:
            # A kernel that is the same at all sizes has one function.
            skeleton, own_numbers = _skeleton(functions_at_sizes, points)
        except _UnknownText as error:
            raise _lacking(kernels[index], str(error)) from error
        numbers.append(own_numbers)
        groups.setdefault((skeleton, own_numbers if kernels[index] in heavy else None), []).append(index)
    functions: list[CFunction] = []
    rows: dict[int, CKernel] = {}
    for (skeleton, _), indices in groups.items():
        columns = list(zip(*(numbers[index] for index in indices), strict=True))
        varied = {column: None for column in columns if len(set(column)) > 1 or isinstance(column[0], SizeFormula)}
        names = {column: f"n{number}" for number, column in enumerate(varied)}
        gaps = [names.get(column, str(column[0])) for column in columns]
        functions.append(
            CFunction(_function(skeleton, gaps, list(names.values()), f"{name}_{len(functions)}"), len(skeleton.ctypes))
        )
        for row, index in enumerate(indices):
            own_numbers = tuple(column[row] for column in varied)
            rows[index] = CKernel(len(functions) - 1, own_numbers, loops[index][0].arguments)
    head = _needed(_with_includes(shared or HEAD), "".join(function.text for function in functions))
    return CKernels(head, tuple(functions), tuple(rows[index] for index in range(len(kernels))))


_HELPER = re.compile(r"^static inline [\w ]+?(\w+)\([^)]*\) \{\n.*?^\}\n\n?", re.MULTILINE | re.DOTALL)


def _with_includes(head: str) -> str:
    """Return the head of emx's kernels with the headers, too, that the templates need and these kernels do not."""
    missing = [line for line in HEAD.splitlines() if line.startswith("#include") and line not in head]
    return head.replace("#include", "\n".join([*missing, "#include"]), 1)


def _needed(head: str, text: str) -> str:
    """Return `head` without the helpers that neither `text` nor a helper in use calls."""
    helpers = {match[1]: match[0] for match in _HELPER.finditer(head)}
    used: set[str] = set()
    todo = [text]
    while todo:
        news = {word for word in re.findall(r"\w+", todo.pop()) if word in helpers} - used
        used |= news
        todo += [helpers[name] for name in news]
    return _HELPER.sub(lambda match: match[0] if match[1] in used else "", head)


def _function(skeleton: Skeleton, gaps: Sequence[str], numbers: Sequence[str], name: str) -> str:
    body = skeleton.texts[0] + "".join(gap + text for gap, text in zip(gaps, skeleton.texts[1:], strict=True))
    lines = [f"static void {name}(const idx_t *p, uint8_t *const *x) {{"]
    lines += [
        f"    {ctype} *{pointer} = ({ctype} *)x[{index}];" for index, (ctype, pointer) in enumerate(skeleton.ctypes)
    ]
    lines += [f"    const idx_t {number} = p[{index}];" for index, number in enumerate(numbers)]
    lines += [] if numbers else ["    (void)p;"]
    used = set(re.findall(r"\w+", body))
    lines += [f"    (void){pointer};" for _, pointer in skeleton.ctypes if pointer not in used]
    text = "\n".join([*([skeleton.before] if skeleton.before else []), *lines, body + "}", ""])
    return re.sub(r"\bKERNEL", name, text)
