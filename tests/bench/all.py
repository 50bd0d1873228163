"""All tables of the docs that are between marks, measured by one command at one commit.

    python -m tests.bench.all FOLDER --torch PYTHON [--only NAME,...] [--list]

FOLDER takes nets, peers, and a folder for each commit, with rows and logs. PYTHON is one with
`pip install torch torchvision timm transformers onnx onnxscript onnxruntime`; it exports the nets. A step that ended well at this commit is
not run again, so a run that was ended goes on. A step that fails leaves its table as it was; the others go on, and the exit code is 1.
A step has the name of its table in `tests.bench.measure`. The step `compare` measures the peers. An export has the name of its folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.commands import ROOT, SHARED
from tests.bench.peers import Peers, own_version
from tests.bench.subjects import in_package

CUTS = {
    "mobilenet_v2 fit 2 MiB": ("mobilenet_v2", "2MiB"),
    "mobilenet_v2 fit 1 MiB": ("mobilenet_v2", "1MiB"),
    "mobilenet_v2_qdq fit 512 KiB": ("mobilenet_v2_qdq", "512KiB"),
}
"""The models of the table of copies that `fit` cuts first: the model, and the memory."""
LIGHT = "backend/test/data/light/light_{}.onnx"
OPEN_SIZES = ("--dim", "batch=1:2", "--dim", "seq=1:16")
DECODER_SIZES = ("batch=1:3", "seq=1:8", "past=1:63", "source=1:32")
MOVED = ("timm_hgnetv2_b0", "timm_ghostnet_100")
STATES = ("llama_step", "gpt2_step", "whisper_step")


@dataclass(frozen=True)
class Step:
    """A command, with the words after its Python; `name` is that of its table, or of what it makes."""

    name: str
    words: Sequence[object]
    python: str | Path = sys.executable


def steps(folder: Path, rows: Path, torch: str, onnxsim: str) -> Iterator[Step]:
    """Yield what is run, in this order: each step finds what the ones before it wrote. `torch` and `onnxsim` are Pythons that have them."""
    nets = folder / "nets"
    for table in ("orders", "quantised"):
        yield Step(f"export {table}", ("-m", "tests.bench.export_nets", table, nets / table), torch)
    for name, module in (("edge", "edge_nets"), ("ranges", "ranges"), ("decoders", "decoders")):
        yield Step(f"export {name}", ("-m", f"tests.bench.export_{module}", nets / name), torch)
    moved = nets / "moved"
    yield Step("export moved", ("models/make_mobilenet_v2.py", moved / "mobilenet_v2.onnx", "--seed", 0))
    quantised = (moved / "mobilenet_v2.onnx", "qdq", moved / "mobilenet_v2_qdq.onnx", "--dim", "batch=1")
    yield Step("export moved quantised", ("models/make_quantised.py", *quantised))
    for name, (model, capacity) in CUTS.items():
        words = ("fit", moved / f"{model}.onnx", "--capacity", capacity, "-o", moved / f"{name}.onnx", "--force")
        yield Step(f"export {name}", ("-m", "onnxtile", *words))

    given = ("--quantised", nets / "quantised")
    yield Step("compare", ("-m", "tests.bench.compare", "--peers", folder / "peers", "--rows", rows, *given))
    yield measured("orders", *sorted((nets / "orders").glob("*.onnx")), "--onnxsim", onnxsim)
    yield measured("tiles")
    yield measured("loop-orders", "--tiles", 800)
    yield measured("fuse-memory", *sorted((nets / "orders").glob("*.onnx")))
    yield measured("ranges", *sorted((SHARED / "zoo").glob("*dyn*.onnx")), *OPEN_SIZES, "--onnxsim", onnxsim)
    sizes = [word for size in DECODER_SIZES for word in ("--dim", size)]
    ocr = (f"{one.path},x=(1:4)x3x48x(32:320)" for one in in_package("rapidocr_onnxruntime", "models/*v4_rec*.onnx"))
    yield measured("random-ranges", *sorted((nets / "ranges").glob("*.onnx")), *ocr, *sizes)
    light = (one.path for name in ("resnet50", "densenet121") for one in in_package("onnx", LIGHT.format(name)))
    steps_of = [nets / "decoders" / f"{name}.onnx" for name in STATES]
    whole = (*light, *(nets / "orders" / f"{name}.onnx" for name in MOVED), SHARED / "zoo" / "gpt2_dy20.onnx")
    cut = (moved / f"{name}.onnx" for name in CUTS)
    yield measured("movement", *whole, *cut, *(f"{path},past=31" for path in steps_of[:2]))
    yield measured("decode-steps", *(f"{path},past=0:63" for path in steps_of))
    edge = sorted((nets / "edge").glob("*.onnx"))
    for name in ("fit", "fit-c"):
        yield measured(name, *edge, "--rows", rows / f"{name}.jsonl")
    for name in ("fit-costs", "fit-published"):
        yield measured(name, "--rows", rows / "fit.jsonl")
    yield measured("firmware", "--folder", folder / "firmware")


def measured(name: str, *words: object) -> Step:
    """Return the step that measures the table `name` and writes it into its page."""
    return Step(name, ("-m", "tests.bench.measure", name, *words, "--docs"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what has not ended well at this commit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--torch", required=True, metavar="PYTHON", help="exports the nets")
    parser.add_argument("--only", metavar="NAME,...", help="steps; all by default")
    parser.add_argument("--list", action="store_true", help="run nothing; list the steps, and which are done")
    given = parser.parse_args(arguments)
    folder = given.folder.resolve()
    place = folder / own_version().replace(", ", "-").replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    chosen, failed = set(given.only.split(",")) if given.only else None, []
    onnxsim = "" if given.list else Peers(folder / "peers").python("onnxsim") or ""
    for step in steps(folder, place, given.torch, onnxsim):
        done = place / f"{step.name}.done"
        if chosen is not None and step.name not in chosen:
            continue
        if given.list:
            print(f"{'done' if done.exists() else 'to do':6} {step.name}")
        elif not done.exists() and not ran_well(step, place / f"{step.name}.log", done):
            failed.append(step.name)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}; the logs are in {place}")


def ran_well(step: Step, log: Path, done: Path) -> bool:
    """Run a step, its output in `log`; where it ends well, write `done`."""
    print(step.name, flush=True)
    with log.open("w", encoding="utf-8") as lines:
        command = [str(word) for word in (step.python, *step.words)]
        code = subprocess.run(command, cwd=ROOT, stdout=lines, stderr=subprocess.STDOUT, check=False).returncode
    if code == 0:
        done.touch()
    return code == 0


if __name__ == "__main__":
    main()
