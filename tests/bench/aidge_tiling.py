"""Eclipse Aidge's matMul_tiling: a process of its own, run by a Python that has aidge-core and need not have onnxtile.

    PYTHON tests/bench/aidge_tiling.py M K N BOUND

It prints one line of JSON: the seconds that matMul_tiling took, and how many nodes there are of each type after it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter


def main() -> None:
    """Tile one MatMul of (M, K) by (K, N) into results of BOUND × BOUND at most; Aidge does not cut K."""
    import aidge_core  # type: ignore[import-not-found, unused-ignore]
    import numpy as np

    m, k, n, bound = map(int, sys.argv[1:])
    aidge_core.Log.set_console_level(aidge_core.Level.Fatal)
    product = aidge_core.MatMul("product")
    for index, shape in enumerate([(m, k), (k, n)]):
        operand = aidge_core.Producer(aidge_core.Tensor(np.ones(shape, np.float32)), f"operand{index}")
        operand.add_child(product, 0, index)
    view = aidge_core.GraphView()
    view.add(product)
    view.forward_dims()
    start = time.perf_counter()
    aidge_core.matMul_tiling(product, [bound, bound])
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "nodes": Counter(node.type() for node in view.get_nodes())}))


if __name__ == "__main__":
    main()
