"""Plans models for ExecuTorch and runs them in its own runtime: `python -m tests.bench.executorch_models [NAME ...]`.

It needs the extra executorch, timm and torchvision. A name is one of timm, or torchvision:NAME; weights are random.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from onnxtile.deployment.micro_run import memory_planning_algo

_NAMES = (
    *("ghostnet_100", "hgnetv2_b0", "mobilenetv3_small_100", "repghostnet_100", "efficientnet_b0"),
    *(
        "torchvision:mobilenet_v2",
        "torchvision:resnet18",
        "torchvision:shufflenet_v2_x1_0",
        "torchvision:squeezenet1_1",
    ),
)


def main(names: list[str]) -> None:
    """Print a line of the table in docs/consumers.md for each model."""
    import torch
    from executorch.exir.memory_planning import greedy

    print("| model | greedy | onnxtile | change | outputs |\n|---|---|---|---|---|")
    for name in names or _NAMES:
        torch.manual_seed(0)
        net, image = model(name).eval(), torch.randn(1, 3, 224, 224)
        start = time.monotonic()
        own, ours = (lowered(net, image, algorithm) for algorithm in (greedy, memory_planning_algo))
        results = [run(program, image) for program, _ in (own, ours)]
        equal = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        change = f"{100 * (ours[1] / own[1] - 1):+.1f} %"
        print(f"| {name} | {own[1]:,} | {ours[1]:,} | {change} | {'equal' if equal else 'DIFFER'} |", flush=True)
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)


def model(name: str) -> Any:
    """Return the network `name` with random weights."""
    if name.startswith("torchvision:"):
        import torchvision

        return torchvision.models.get_model(name.removeprefix("torchvision:"), weights=None)
    import timm

    return timm.create_model(name, pretrained=False)


def lowered(net: Any, image: Any, algorithm: Any) -> tuple[bytes, int]:
    """Return the program of `net`, planned by `algorithm`, and the bytes of its memories."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    planning = MemoryPlanningPass(memory_planning_algo=MemoryPlanningAlgorithmSuite([algorithm]))
    exported = torch.export.export(net, (image,))
    program = to_edge(exported).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    sizes = program.executorch_program.execution_plan[0].non_const_buffer_sizes
    return program.buffer, sum(sizes)


def run(program: bytes, image: Any) -> list[Any]:
    """Return the outputs of `program`, from ExecuTorch's own runtime."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(program).load_method("forward")
    assert method is not None
    return [output.clone() for output in method.execute([image])]


if __name__ == "__main__":
    main(sys.argv[1:])
