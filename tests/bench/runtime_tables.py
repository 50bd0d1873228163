"""Tables of other runtimes that take a plan: TensorFlow Lite Micro, and ExecuTorch with PyTorch's networks."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import onnxtile
from onnxtile.deployment.executorch import memory_planning_algo
from tests.bench.tables import Rows, Table


def micro(given: Namespace) -> Rows:
    """Yield the memory of each TensorFlow Lite model in TensorFlow Lite Micro; without models, of ten random networks."""
    with tempfile.TemporaryDirectory() as folder:
        for path in [subject.path for subject in given.models] or random_networks(Path(folder)):
            found = onnxtile.plan_tflite(path)
            plan, verdict = found.plan, found.verdict
            heads = ("", "", "not run") if verdict is None else (verdict.own_head, verdict.head, "equal")
            yield path.stem, plan.activation_bytes, heads[0], plan.arena_size, *heads[1:]


def random_networks(folder: Path) -> list[Path]:
    """Return the files of ten random networks, which are written to `folder`."""
    from tests.deployment.networks import network

    files = [folder / f"random_{seed}.tflite" for seed in range(10)]
    for seed, file in enumerate(files):
        file.write_bytes(network(seed, operators=10 + 4 * seed))
    return files


_NAMES = (
    *("ghostnet_100", "hgnetv2_b0", "mobilenetv3_small_100", "repghostnet_100", "efficientnet_b0"),
    *("torchvision:mobilenet_v2", "torchvision:resnet18", "torchvision:shufflenet_v2_x1_0"),
    "torchvision:squeezenet1_1",
)


def executorch(given: Namespace) -> Rows:
    """Yield the memory of each network, planned by ExecuTorch and by onnxtile; both programs run in ExecuTorch's runtime."""
    import torch
    from executorch.exir.memory_planning import greedy

    for name in given.names or _NAMES:
        torch.manual_seed(0)
        net, image = _network(name).eval(), torch.randn(1, 3, 224, 224)
        own, ours = (_lowered(net, image, algorithm) for algorithm in (greedy, memory_planning_algo))
        results = [_run(program, image) for program, _ in (own, ours)]
        equal = all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        yield name, own[1], ours[1], f"{100 * (ours[1] / own[1] - 1):+.1f} %", "equal" if equal else "DIFFER"


def _network(name: str) -> Any:
    """Return the network `name` with random weights."""
    if name.startswith("torchvision:"):
        import torchvision

        return torchvision.models.get_model(name.removeprefix("torchvision:"), weights=None)
    import timm

    return timm.create_model(name, pretrained=False)


def _lowered(net: Any, image: Any, algorithm: Any) -> tuple[bytes, int]:
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


def _run(program: bytes, image: Any) -> list[Any]:
    """Return the outputs of `program`, from ExecuTorch's own runtime."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(program).load_method("forward")
    assert method is not None
    return [output.clone() for output in method.execute([image])]


TABLES = {
    "micro": Table(
        "memory of TensorFlow Lite Micro with its own planner and with the plan",
        ("model", "all tensors", "head, own planner", "planned bytes", "head with the plan", "outputs"),
        micro,
    ),
    "executorch": Table(
        "memory of ExecuTorch's programs; it needs the extra executorch, timm and torchvision",
        ("model", "greedy", "onnxtile", "change", "outputs"),
        executorch,
        models=False,
        options={"--names": {"nargs": "+", "help": "of timm, or torchvision:NAME; weights are random"}},
    ),
}
