"""The nodes of an `inspect` result as CSV, one row for each node; unknown values are empty."""

from __future__ import annotations

from onnxtile.report.table import ResultJson
from onnxtile.system.text import as_csv

_COLUMNS = (
    *("node", "operator", "body", "inputs", "outputs", "macs", "flops", "bias_additions"),
    *("bytes_read", "weight_bytes_read", "bytes_written", "workspace", "traffic", "intensity"),
)


def render(result: ResultJson) -> bytes:
    """Return the file's content; an input or output is written `name:float[1x3x224x224]`, several with a space between."""
    rows: list[list[object]] = [list(_COLUMNS)]
    for node in result["nodes"]:
        tensors = (" ".join(map(_tensor, node[side])) for side in ("inputs", "outputs"))
        rows.append([node["node"], node["op"], node["body"], *tensors, *(node[key] for key in _COLUMNS[5:])])
    return as_csv(rows)


def _tensor(one: ResultJson) -> str:
    shape = "?" if one["shape"] is None else "x".join("?" if dim is None else str(dim) for dim in one["shape"])
    return f"{one['name']}:{one['dtype'] or '?'}[{shape}]"
