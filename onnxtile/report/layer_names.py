"""The layer of each node, read from its name: exporters write the path of modules before the operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile

_NUMBERED = re.compile(r"(.*[._])?\d+")
"""A module that is one of several: `layers.3`, `h_2`, or `5`."""
_NUMBERED_INSIDE = re.compile(r"(.*\.)?\d+")
"""The same right inside such a module, where `norm_1` is a part of the layer."""


def layer_names(nodes: Iterable[str]) -> dict[str, str]:
    """Return the layer of each of `nodes` by its name; empty where the names tell no two layers apart.

    A layer is the path to the first counted module, with counted modules right inside it: `/m/encoder/layers.0/blocks.1/attn/MatMul` is of
    `layers.0/blocks.1`. A node outside of counted modules is of its outermost module; one outside of all is of "model".
    """
    paths = {node: tuple(part for part in node.split("/")[:-1] if part) for node in nodes}
    shared = _shared([path for path in paths.values() if path])
    layers = {node: _layer(path[shared:]) for node, path in paths.items()}
    return layers if len(set(layers.values())) > 1 else {}


def _shared(paths: Sequence[tuple[str, ...]]) -> int:
    """Return how many modules all of `paths` begin with: as many as the first and the last of them in alphabetical order."""
    if not paths:
        return 0
    pairs = zip(min(paths), max(paths), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _layer(path: Sequence[str]) -> str:
    start = next((i for i, part in enumerate(path) if _NUMBERED.fullmatch(part)), None)
    if start is None:
        return path[0] if path else "model"
    end = start + 1
    while end < len(path) and _NUMBERED_INSIDE.fullmatch(path[end]):
        end += 1
    counted = path[start:end]
    # `blocks.3/blocks.3.0` says it twice.
    return "/".join(
        part for i, part in enumerate(counted) if not "".join(counted[i + 1 : i + 2]).startswith(f"{part}.")
    )
