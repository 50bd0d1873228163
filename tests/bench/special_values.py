"""Special values through every lowering: `python -m tests.bench.special_values 0 2000 --jobs 2`.

Each seed is a site (`tests.lowering.special_sites`) that `fuse --lower` may lower. Where it does, the model is run before and after on
inputs with zeros, NaN, infinities and numbers at the ends of their type. Outputs that differ have to be named by the result, with the
effect that the documentation gives for it. The comparison shares no code with onnxtile: rounding is what the original is off from itself
in double.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from multiprocessing import Pool
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto

from onnxtile import api
from onnxtile.model.exact_products import sums_saturate, unsigned_products
from onnxtile.system.errors import NoKernel
from onnxtile.verbs.flows.results import FuseResult
from tests.lowering.conftest import require_documented, retyped
from tests.lowering.special_sites import FLOATS, Site, draws, random_site
from tests.random_graphs.kernels import Kernels, session_of

DRAWS = 24
"""How many sets of inputs a site is run on."""
RELATIVE = {"float16": 2e-2, "float": 1e-3, "double": 1e-3}
EXTREME = {"huge", "-huge", "denormal", "tiny"}
SIGNED = {"-0": "0", "-huge": "huge", "+inf": "inf", "-inf": "inf"}
"""Numbers that the result names without their sign."""


def faults(seed: int) -> tuple[str, list[str]]:
    """Return what became of the site of a seed, and each difference that the result neither names nor refuses."""
    site = random_site(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            result = api.fuse(site.model, lower=site.target)
        except NoKernel:
            return f"{site.name} -> {site.target}: no kernel for {site.dtype}", []
        require_documented(result)
        written = [one.operator for one in result.lowered if one.operator]
        fate = f"{site.name} -> {site.target}: {', '.join(written) or 'stays'}"
        return fate, list(_unnamed(site, result, seed)) if written else []


def _unnamed(site: Site, result: FuseResult, seed: int) -> Iterable[str]:
    before, after = _session(site.model), _session(ir.to_proto(result.model))
    exact = _exact(site)
    told = {(effect, number) for one in result.lowered for effect, found in one.edges.items() for number in found}
    kernels = Kernels(site.model)
    for named, feeds in draws(site, np.random.default_rng([seed, 1]), DRAWS):
        try:
            expected = before.run(None, feeds)
        except Exception:
            continue
        got = after.run(None, feeds)
        truth = exact.run(None, _wide(feeds)) if exact is not None else expected
        for value, other, right in zip(expected, got, truth, strict=True):
            relative = RELATIVE.get(site.dtype, 1e-3)
            effect = difference(value, other, right, relative)
            if effect and site.dtype == "float16" and not _is_told(effect, named, told):
                effect = difference(_node_by_node(site.model, feeds, kernels), other, right, relative)
            if effect and named & EXTREME and _overflows(value, right):
                continue
            if effect and not _is_told(effect, named, told):
                yield f"{site.name} {site.dtype} -> {site.target}, {sorted(named)}: {effect}; named: {sorted(told)}"


def _overflows(before: Any, exact: Any) -> bool:
    """Return whether numbers are lost in the original that it has in double: the order of operations makes what it gives."""
    return bool((~np.isfinite(before) & np.isfinite(exact)).any())


def _is_told(effect: str, named: set[str], told: set[tuple[str, str]]) -> bool:
    about = {how for how, number in told if number in {SIGNED.get(name, name) for name in named}}
    if named & EXTREME and "beyond range" in about:
        return True
    return effect.split(":", maxsplit=1)[0] in about


def difference(before: Any, after: Any, exact: Any, relative: float) -> str:
    """Return how `after` differs from `before`, nothing where it does not: "kinder", "no number", or "worse: …"."""
    if before.dtype.kind in "iu":
        off = np.abs(before.astype(np.int64) - after.astype(np.int64)).max(initial=0)
        return f"worse: off by {off}" if off > 1 else ""
    a, b, c = (_in_range(value, before.dtype) for value in (before, after, exact))
    are_numbers, stay_numbers = np.isfinite(a), np.isfinite(b)
    if (are_numbers & ~stay_numbers).any():
        return f"worse: {(are_numbers & ~stay_numbers).sum()} of {are_numbers.sum()} numbers are lost"
    others = ~are_numbers & ~stay_numbers & (np.isnan(a) != np.isnan(b)) | (np.isinf(a) & np.isinf(b) & (a != b))
    if others.any():
        return "no number" if not are_numbers.any() else "worse: an infinity becomes another or NaN"
    rounding = np.abs(np.where(are_numbers & np.isfinite(c), a - c, 0.0)).max(initial=0.0)
    size = np.abs(np.where(are_numbers, a, 0.0))
    off = np.abs(np.where(are_numbers, a, 0.0) - np.where(are_numbers, b, 0.0))
    least = float(np.finfo(before.dtype).smallest_normal)
    beyond = off > relative * size + relative * size.max(initial=0.0) / 2 + 4 * rounding + least
    if beyond.any():
        return f"worse: {a[beyond][0]} becomes {b[beyond][0]}"
    return "kinder" if (~are_numbers & stay_numbers).any() else ""


def _in_range(array: Any, dtype: Any) -> Any:
    """Return floats in double, as infinite those that rounding may carry past the largest number."""
    wide, bounds = array.astype(np.float64), np.finfo(dtype)
    wide[wide > float(bounds.max) * 0.999] = np.inf
    wide[wide < float(bounds.min) * 0.999] = -np.inf
    return wide


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Return a session in which sums of products of integers do not saturate, on any processor."""
    content = model.SerializeToString()
    return session_of(unsigned_products(content) if sums_saturate() else content)


def _exact(site: Site) -> ort.InferenceSession | None:
    """Return the site in double; None for quantised sites, and where onnxruntime has no kernels for it."""
    if site.dtype not in FLOATS or site.name.startswith(("dynamic", "MatMulNBits")):
        return None
    copy = onnx.ModelProto.FromString(site.model.SerializeToString())
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == FLOATS[site.dtype]:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in copy.graph.initializer:
        if tensor.data_type == FLOATS[site.dtype]:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), tensor.name))
    try:
        return session_of(retyped(copy, TensorProto.DOUBLE).SerializeToString())
    except Exception:
        return None


def _node_by_node(model: onnx.ModelProto, feeds: Mapping[str, Any], kernels: Kernels) -> Any:
    """Return y with every value between two nodes rounded: in one session, onnxruntime keeps some that are of float16 in float."""
    values = dict(feeds) | {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        values |= dict(zip(node.output, kernels.run(node, values), strict=True))
    return values[model.graph.output[0].name]


def _wide(feeds: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in feeds.items()}


def _told(seed: int) -> tuple[int, str, list[str]]:
    return (seed, *faults(seed))


def main() -> int:
    """Run, print each fault and how often which site was lowered; return 1 where there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    seeds, start, count = range(given.first, given.end), time.monotonic(), 0
    fates = Counter[str]()
    with Pool(given.jobs) as pool:
        for seed, fate, found in pool.imap(partial(_told), seeds, 4):
            fates[fate] += 1
            count += bool(found)
            for text in dict.fromkeys(found):
                print(f"{seed} {text}", flush=True)
    for fate, times in sorted(fates.items()):
        print(f"{times:6} {fate}")
    print(f"{len(seeds):,} sites, {count:,} with faults, {time.monotonic() - start:.0f} s")
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main())
