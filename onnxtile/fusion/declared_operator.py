"""The operator that a pattern file says its meta-op is."""

from __future__ import annotations

from typing import Literal

import pydantic

TargetName = Literal["onnx", "ort"]


class Declared(pydantic.BaseModel):
    """The table `[lower.onnx]` or `[lower.ort]` of a pattern file. `inputs` are places among the meta-op's own."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    op: str
    domain: str = ""
    since: int = pydantic.Field(default=0, ge=0)
    inputs: list[int] = [0]
    attributes: dict[str, int | float | str | list[int]] = {}
