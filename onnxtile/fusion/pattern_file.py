"""The schema of a pattern file. Files of the library fulfil it by a test, so that no command loads it for them."""

from __future__ import annotations

from typing import Literal

import pydantic

from onnxtile.fusion.island_rule import IslandRule

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
