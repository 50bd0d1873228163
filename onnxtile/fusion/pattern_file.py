"""Pattern files: their schema, and the lowerings that they declare, checked against the schemas of the operators.

Files of the library fulfil the schema by a test, so that no command loads it for them.
"""

from __future__ import annotations

from typing import Any, Literal

import onnx
import pydantic

from onnxtile.fusion.island_rule import IslandRule
from onnxtile.fusion.lower.lowering import (
    CallSite,
    Lowering,
    Made,
    NewNode,
    NotLowered,
    Replacement,
    known_dtype,
    value_of,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import PatternError
from onnxtile.system.runtime import contrib_schemas
from onnxtile.system.toml_file import TomlFile

TargetName = Literal["onnx", "ort"]


class Declared(pydantic.BaseModel):
    """The table `[lower.onnx]` or `[lower.ort]` of a pattern file. `inputs` are places among the meta-op's own."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    op: str
    domain: str = ""
    since: int = pydantic.Field(default=0, ge=0)
    inputs: list[int] = [0]
    attributes: dict[str, int | float | str | list[int]] = {}


class _Variant(pydantic.BaseModel):
    """One way in which exporters write the meta-op."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    query: str
    where: tuple[str, ...] = ()
    note: str = ""


class PatternFile(pydantic.BaseModel):
    """The fields of a pattern file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str = pydantic.Field(pattern=r"^[A-Za-z_]\w*$")
    doc: str = pydantic.Field(min_length=1)
    assumes: tuple[str, ...] = ()
    outputs: int = pydantic.Field(default=1, ge=1, strict=True)
    after: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    workspace: str | None = None
    lower: dict[TargetName, Declared] = {}
    fragments: dict[str, str] = {}
    variants: tuple[_Variant, ...] = ()
    island: IslandRule | None = None

    @pydantic.model_validator(mode="after")
    def _has_sites(self) -> PatternFile:
        if bool(self.variants) == (self.island is not None):
            raise ValueError(
                "'variants' is missing" if self.island is None else "a pattern has variants or an island, not both"
            )
        return self


# Lowerings that a pattern file declares: the operator that its meta-op is.

_KINDS = {"FLOAT": float, "INT": int, "STRING": str, "INTS": tuple}


@dataclass(frozen=True)
class _SchemaSignature:
    """What a schema asks of a node: how many inputs and outputs, its attributes' types, and the element types of each input."""

    since: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: dict[str, str]
    required: tuple[str, ...]
    types: tuple[frozenset[str], ...]


class DeclaredLowering(Lowering):
    """A lowering from a file. What it claims is proved by no formula: each different site is run alone beside what it was."""

    def __init__(
        self, name: str, kinds: dict[TargetName, Declared], signatures: dict[TargetName, _SchemaSignature]
    ) -> None:
        self.name = name
        self._kinds = kinds
        self._signatures = signatures

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return the operator of `[lower.onnx]`."""
        return self._proof("onnx", site)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return the operator of `[lower.ort]`, or that of `[lower.onnx]`."""
        return self._proof("ort" if "ort" in self._kinds else "onnx", site)

    def _proof(self, kind: TargetName, site: CallSite) -> Replacement:
        if kind not in self._kinds:
            raise NotLowered(f"its pattern declares no [lower.{kind}]")
        declared, signature = self._kinds[kind], self._signatures[kind]
        if any(index >= len(site.arguments) for index in declared.inputs):
            raise NotLowered(
                f"it has {len(site.arguments)} inputs, and {declared.op} takes input {max(declared.inputs)}"
            )
        arguments = [site.arguments[index] for index in declared.inputs]
        for position, argument in enumerate(arguments):
            admitted = signature.types[min(position, len(signature.types) - 1)]
            name = known_dtype(argument).name.lower()
            if admitted and f"tensor({name})" not in admitted:
                raise NotLowered(f"{declared.op} does not take the element type {name}")
        count = len(site.function.outputs)
        settings = {
            name: tuple(value) if isinstance(value, list) else value for name, value in declared.attributes.items()
        }
        inputs = tuple(value_of(argument) for argument in arguments)
        since = 1 if declared.domain else max(signature.since, declared.since)
        step = NewNode(declared.op, inputs, settings, declared.domain, since, outputs=count)
        return Replacement((step,), tuple(Made(0, i) for i in range(count)), claimed=True)


def checked(name: str, kinds: dict[TargetName, Declared], outputs: int, file: TomlFile) -> DeclaredLowering | None:
    """Return the lowering that a file declares, None where it declares none.

    Raises PatternError with file and line where the operator is unknown, or does not take its inputs, outputs or attributes.
    """
    if not kinds:
        return None
    signatures = {kind: _signature(declared, file, kind) for kind, declared in kinds.items()}
    for kind, declared in kinds.items():
        _require_fit(declared, signatures[kind], outputs, file, kind)
    return DeclaredLowering(name, kinds, signatures)


def _signature(declared: Declared, file: TomlFile, kind: TargetName) -> _SchemaSignature:
    shown = f"{declared.domain}.{declared.op}" if declared.domain else declared.op
    schemas: list[Any] = contrib_schemas(declared.op, declared.domain) if declared.domain else _standard(declared)
    if not schemas:
        version = f" in opset {declared.since}" if declared.since else ""
        raise PatternError(f"{file.place(('lower', kind, 'op'))}: lower.{kind}: unknown operator {shown}{version}")
    schema = max(schemas, key=lambda s: int(s.since_version))
    constraints = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    types = [str(getattr(formal, "type_str", "") or getattr(formal, "typeStr", "")) for formal in schema.inputs]
    return _SchemaSignature(
        int(schema.since_version),
        (int(schema.min_input), int(schema.max_input)),
        (int(schema.min_output), int(schema.max_output)),
        {key: str(attribute.type).rpartition(".")[2] for key, attribute in schema.attributes.items()},
        tuple(key for key, attribute in schema.attributes.items() if attribute.required),
        tuple(constraints.get(text, frozenset({text})) for text in types),
    )


def _standard(declared: Declared) -> list[Any]:
    version = declared.since or onnx.defs.onnx_opset_version()
    try:
        return [onnx.defs.get_schema(declared.op, version, "")]
    except onnx.defs.SchemaError:
        return []


def _require_fit(
    declared: Declared, signature: _SchemaSignature, outputs: int, file: TomlFile, kind: TargetName
) -> None:
    def fail(message: str, *where: str) -> None:
        raise PatternError(f"{file.place(('lower', kind, *where))}: lower.{kind}: {message}")

    least, most = signature.inputs
    if not least <= len(declared.inputs) <= most:
        fail(f"{declared.op} takes {_range(least, most)} inputs, not {len(declared.inputs)}", "inputs")
    if any(index < 0 for index in declared.inputs):
        fail("inputs are counted from 0", "inputs")
    least, most = signature.outputs
    if not least <= outputs <= most:
        fail(f"{declared.op} has {_range(least, most)} outputs, the meta-op {outputs}", "op")
    for name, value in declared.attributes.items():
        if name not in signature.attributes:
            fail(f"{declared.op} has no attribute {name!r}", "attributes", name)
        wanted = _KINDS.get(signature.attributes[name])
        if wanted is None or not (isinstance(value, list) if wanted is tuple else type(value) is wanted):
            text = signature.attributes[name].lower()
            fail(f"the attribute {name!r} of {declared.op} is of type {text}, not {value!r}", "attributes", name)
    missing = [name for name in signature.required if name not in declared.attributes]
    if missing:
        fail(f"{declared.op} needs the attribute {missing[0]!r}")


def _range(least: int, most: int) -> str:
    if most > 1_000:
        return f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"
