"""Compares the results of two checkouts of onnxtile on every model at hand: a change that is to change nothing is seen to.

    python -m tests.bench.compare_checkouts OLD NEW [--only fuse,plan,...] [--models GLOB] [--also FOLDER] [--jobs N] [--out FOLDER]
        [--renamed OLD=NEW,...] [--ignored PATH,...] [--seconds N] [--verify]

The models are those of the zoo and the graphs beside the repository, of `models/` and of installed packages; random ones and large graphs
of tests/; quantised ones, a decoder and TensorFlow Lite networks, which are made in FOLDER; and MiniMalloc's problems. Each checkout has
one process that imports its package once; every command is a copy of that process with `--seconds` of processor time.

A pair of results is equal, or the figures of `FIGURES` say that the new one is better or worse; without such a figure it is "changed". All
differences go to FOLDER/differences.json with their paths in the JSON of the command, in its files, and in the model it writes. The fields
of --renamed are renamed in the old results. The paths of --ignored are patterns: "sites.*". The exit code is 1 where anything is worse.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from tests.bench.commands import ROOT, SHARED
from tests.bench.large_decoder import DecoderSize
from tests.bench.large_decoder import make as make_decoder
from tests.bench.large_graphs import MAKERS
from tests.bench.quantised_models import FORMS, OCR, add_ocr, quantiser
from tests.bench.subjects import Subject, installed
from tests.random_graphs.generator import random_model

Json: TypeAlias = Any
_SIZES = {"batch": 1, "seq": 16}
"""The sizes of the open dimensions of the zoo, and below the ranges of plans for all of them."""
_RANGES = ("batch=1:8", "seq=1:64")
_SHARES = (0.75, 0.4)
"""The capacities of fit, as parts of the arena that the old checkout plans."""
_RANDOM_SEEDS = range(40)
_LARGE = 400
"""Nodes of each large graph."""
_LISTED = 3
"""Differences of a pair of results that are printed."""
_KEYS = ("name", "node", "call", "op")
"""The fields by which members of lists are compared, where they are unique."""


@dataclass(frozen=True)
class Case:
    """A model, and the options that bind its open dimensions."""

    name: str
    path: Path
    bound: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()

    @property
    def is_onnx(self) -> bool:
        """Whether this is a model in ONNX, rather than in TensorFlow Lite, or a bare problem."""
        return self.path.suffix == ".onnx"


@dataclass(frozen=True)
class Step:
    """A command that is compared: its words after the model, whether it takes sizes, ranges of them or none, and the files it writes."""

    words: tuple[str, ...]
    bound: str = "sizes"
    files: tuple[str, ...] = ()
    kinds: tuple[str, ...] = (".onnx",)


STEPS: Mapping[str, Step] = {
    "fuse": Step(("fuse", "-o", "out.onnx"), "none", ("out.onnx",)),
    "lower": Step(("fuse", "--lower", "onnx", "-o", "out.onnx"), "none", ("out.onnx",)),
    "tile": Step(("tile", "--max", "64", "-o", "out.onnx"), files=("out.onnx",)),
    "plan": Step(
        ("plan", "-o", "out.onnx", "--emit", "out.csv", "--emit", "out.h", "--emit", "out.certificate.json"),
        files=("out.onnx", "out.csv", "out.h", "out.certificate.json"),
    ),
    "plan bare": Step(("plan", "--emit", "out.csv"), files=("out.csv",), kinds=(".csv",)),
    "plan tflite": Step(("plan", "-o", "out.tflite"), files=("out.tflite",), kinds=(".tflite",)),
    "plan ranges": Step(("plan", "--dry-run"), "ranges"),
    "inspect": Step(("inspect",)),
    "fit": Step(("fit", "-o", "out.onnx"), files=("out.onnx",)),
}
_RUNS_MODELS = ("tile", "plan", "fit")
"""The verbs that get --no-verify, unless --verify is given. What fuse finds depends on its runs."""

Figure: TypeAlias = Callable[[Json], float | None]


def _fit_size(said: Json) -> float | None:
    return None if said["fits"] else said["after"]["arena"]


def _equal(said: Json) -> float | None:
    return float(said["verdict"]["equal"]) if said.get("verdict") else None


_PLAN: Mapping[str, Figure] = {
    "-arena": lambda said: sum(one["size"] for one in said["arenas"]),
    "-unplanned": lambda said: len(said.get("unplanned", ())),
    "+bound": lambda said: said["lower_bound"],
    "+optimal": lambda said: float(said["optimal"]) + (said.get("optimal_over") == "any order"),
    "+equal": _equal,
}
_FUSE: Mapping[str, Figure] = {
    "+meta-ops": lambda said: sum(one["fused"] for one in said["patterns"]),
    "-nodes": lambda said: said["nodes_after"],
    "+lowered": lambda said: sum("operator" in one for one in said["lowered"]) if said.get("lowered") else None,
    "+equal": _equal,
}
FIGURES: Mapping[str, Mapping[str, Figure]] = {
    "fuse": _FUSE,
    "lower": _FUSE,
    "plan": _PLAN,
    "tile": {
        "+tiled": lambda said: len(said["tiled"]),
        "-nodes": lambda said: said["nodes_after"],
        "-matmuls": lambda said: sum(one["matmuls"] for one in said["tiled"]),
        "+equal": _equal,
    },
    "fit": {
        "+fits": lambda said: float(said["fits"]),
        "-arena": _fit_size,
        "-MACs": lambda said: said["after"]["macs"],
        "+equal": _equal,
    },
}
"""What makes a result better, by verb: more of it with a plus, less with a minus. A figure that a side does not have is not compared."""


@dataclass(frozen=True)
class Result:
    """What came of a command: its exit code, what it printed on stderr, its documents, and its processor time in seconds."""

    code: int
    err: str
    seconds: float
    said: Json
    files: Mapping[str, Json]

    @property
    def was_ended(self) -> bool:
        """Whether the limit of time ended the command."""
        return self.code < 0

    def document(self) -> Json:
        """Return all of it that is compared."""
        return {"code": self.code, "stderr": self.err, **({"json": self.said} if self.said else {}), **self.files}


@dataclass
class Pair:
    """The two results of a step on a model."""

    case: str
    step: str
    state: str
    figures: list[str]
    differences: list[tuple[str, Json, Json]]
    seconds: tuple[float, float] = field(default=(0.0, 0.0))

    def line(self) -> str:
        """Return what is printed of it."""
        shown = [f"{path}: {_short(old)} | {_short(new)}" for path, old, new in self.differences[:_LISTED]]
        more = len(self.differences) - len(shown)
        return f"{self.state}: {self.case}, {self.step}: " + "; ".join(
            [*self.figures, *shown, *([f"{more} more"] if more > 0 else [])]
        )


class Checkout:
    """The process of a checkout, and a folder in which its commands run."""

    def __init__(self, checkout: Path, folder: Path, seconds: int) -> None:
        self._place, self._seconds = folder / "in", seconds
        self._place.mkdir(parents=True, exist_ok=True)
        self._checkout = checkout.resolve()
        environment = {**os.environ, "PYTHONPATH": str(self._checkout)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "tests/bench/checkout_side.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        package = Path(self._answer()["package"])
        assert package.is_relative_to(self._checkout), f"{package} is not of {self._checkout}"

    def run(self, step: Step, words: Sequence[str]) -> Result:
        """Return what comes of a command."""
        asked = {"arguments": [*words, "--json", "out.json", "-q"], "folder": str(self._place)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**asked, "processor_seconds": self._seconds}) + "\n")
        self._process.stdin.flush()
        ended = self._answer()
        files = {name: self._read(self._place / name) for name in step.files}
        certificate = self._place / "out.certificate.json"
        if certificate.exists():
            files["accepted"] = self._accepted(self._place / "out.onnx", certificate)
        written = self._place / "out.json"
        said = json.loads(written.read_bytes()) if written.exists() else None
        shutil.rmtree(self._place)
        self._place.mkdir()
        return Result(ended["code"], ended["err"], ended["seconds"], said, files)

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()

    def _answer(self) -> Json:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _read(self, path: Path) -> Json:
        """Return the content of a file: of a model its operators and a digest, of a text its lines."""
        if not path.exists():
            return None
        data = path.read_bytes()
        if path.suffix == ".json":
            return json.loads(data)
        if path.suffix == ".tflite":
            return {"digest": hashlib.sha256(data).hexdigest()}
        if path.suffix != ".onnx":
            return data.decode().splitlines()
        model = onnx.load_from_string(data)
        nodes = [*model.graph.node, *(node for one in model.functions for node in one.node)]
        counts = Counter(f"{node.domain}::{node.op_type}" for node in nodes)
        return {"operators": dict(sorted(counts.items())), "digest": hashlib.sha256(data).hexdigest()}

    def _accepted(self, model: Path, certificate: Path) -> Json:
        """Return what the scripts of the checkout say of a certificate."""
        if json.loads(certificate.read_bytes())["proof"] is None:
            return "no proof"
        for name, words in _scripts(self._checkout):
            command = [sys.executable, "-Es", name, *(str({"M": model, "C": certificate}[word]) for word in words)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"refused by {Path(name).name}: {done.stderr.strip()}".replace(str(self._place), "")
        return "accepted"


@cache
def _scripts(checkout: Path) -> list[tuple[str, str]]:
    """Return the scripts that check a certificate, wherever the checkout has them, and what they are given."""
    found = {name: next(checkout.glob(f"onnxtile/**/{name}.py")) for name in ("check_account", "check_bound")}
    return [(str(path), "MC" if name == "check_account" else "C") for name, path in found.items()]


def cases(folder: Path, also: Sequence[Path]) -> Iterator[Case]:
    """Yield all models at hand; those that are made are written to `folder`."""
    for path in sorted((SHARED / "zoo").glob("*.onnx")):
        is_open = "dyn" in path.stem
        bound = tuple(f"{name}={size}" for name, size in _SIZES.items()) if is_open else ()
        yield Case(path.stem, path, _options("--dim", bound), _options("--dim", _RANGES) if is_open else ())
    others = [Subject(path) for place in (SHARED / "graphs", *also) for path in sorted(place.glob("*.onnx"))]
    for subject in (*others, *installed()):
        yield Case(subject.path.stem, subject.path, _options("--shape", subject.shapes))
    for path in sorted((SHARED / "minimalloc").glob("*.csv")):
        yield Case(path.stem, path)
    for path in sorted(path for place in also for path in place.glob("*.tflite")):
        yield Case(path.stem, path)
    yield from _made(folder)


def _made(folder: Path) -> Iterator[Case]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, maker in MAKERS.items():
        yield _written(folder, f"large_{name}", maker(_LARGE))
    for seed in _RANDOM_SEEDS:
        drawn = random_model(seed)
        sizes = tuple(f"{name}={size}" for name, size in drawn.dims.items())
        yield _written(folder, f"random_{seed}", drawn.model, _options("--dim", sizes))
    decoder = folder / "decoder.onnx"
    make_decoder(decoder, DecoderSize(layers=2, hidden=64, heads=4, inner=128, words=100))
    yield Case(decoder.stem, decoder)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    add_ocr(folder)
    quantise = quantiser()
    for name in OCR:
        for form in FORMS if (folder / f"{name}.onnx").exists() else ():
            target = folder / f"{name}.{form}.onnx"
            if not target.exists():
                quantise(folder / f"{name}.onnx", form, target)
            if target.stat().st_size:
                yield Case(f"{name}.{form}", target)
    if importlib.util.find_spec("tflite_micro"):
        from tests.bench.runtime_tables import random_networks

        yield from (Case(path.stem, path) for path in random_networks(folder))


def _written(folder: Path, name: str, model: onnx.ModelProto, bound: tuple[str, ...] = ()) -> Case:
    onnx.save(model, folder / f"{name}.onnx")
    return Case(name, folder / f"{name}.onnx", bound)


def _options(option: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in (option, value))


def commands(case: Case, only: Sequence[str], *, verify: bool) -> Iterator[tuple[str, Step, list[str]]]:
    """Yield the name of each step for a model, the step and its command; fit lacks its capacity."""
    for name in only:
        step = STEPS[name]
        if case.path.suffix not in step.kinds or (step.bound == "ranges" and not case.ranges):
            continue
        verb, *words = step.words
        bound = {"none": (), "sizes": case.bound, "ranges": case.ranges}[step.bound]
        quiet = ["--no-verify"] if verb in _RUNS_MODELS and case.path.suffix != ".csv" and not verify else []
        yield name, step, [verb, str(case.path), *words, *bound, *quiet]


def pairs(case: Case, old: Checkout, new: Checkout, given: argparse.Namespace) -> Iterator[Pair]:
    """Yield the two results of each step on a model, the two checkouts in turn."""
    for name, step, words in commands(case, given.only, verify=given.verify):
        sized = [(name, words)]
        if name == "fit":
            sized = [
                (f"fit at {share:.0%}", [*words, "--capacity", str(capacity)])
                for share, capacity in _capacities(case, old)
            ]
        for title, command in sized:
            yield compared(case.name, title, old.run(step, command), new.run(step, command), given)


def _capacities(case: Case, old: Checkout) -> list[tuple[float, int]]:
    plan = old.run(Step(("plan",)), ["plan", str(case.path), "--dry-run", "--no-verify", *case.bound])
    arena = sum(one["size"] for one in plan.said["arenas"]) if plan.said else 0
    return [(share, int(arena * share)) for share in _SHARES if arena * share >= 1]


def compared(case: str, step: str, old: Result, new: Result, given: argparse.Namespace) -> Pair:
    """Return how the results of a step are to one another."""
    before, after = renamed(old.document(), given.renamed), new.document()
    found = [
        one for one in differences(before, after) if not any(fnmatch.fnmatch(one[0], path) for path in given.ignored)
    ]
    figures: list[str] = []
    if old.was_ended or new.was_ended:
        both = (old.was_ended and new.was_ended) or max(old.seconds, new.seconds) < 1.5 * min(old.seconds, new.seconds)
        state = "ended by the limit" if both else "better" if old.was_ended else "worse"
        figures.append(f"{old.seconds:.1f} s | {new.seconds:.1f} s")
    elif old.code != new.code:
        state = "worse" if new.code > old.code else "better"
    else:
        signs = set()
        table = FIGURES.get(step.partition(" ")[0], {})
        for name, figure in table.items() if old.said and new.said else ():
            one, other = figure(before["json"]), figure(after["json"])
            if one is not None and other is not None and one != other:
                signs.add((other > one) == name.startswith("+"))
                figures.append(f"{name[1:]} {one:,} | {other:,}")
        signs |= {False} if str(before.get("accepted")) == "accepted" != str(after.get("accepted")) else set()
        state = "worse" if False in signs else "better" if signs else "changed" if found else "equal"
    return Pair(case, step, state, figures, found, (old.seconds, new.seconds))


def renamed(said: Json, names: Mapping[str, str]) -> Json:
    """Return `said` with its fields renamed at every depth."""
    if isinstance(said, dict):
        return {names.get(key, key): renamed(value, names) for key, value in said.items()}
    return [renamed(one, names) for one in said] if isinstance(said, list) else said


def differences(old: Json, new: Json, path: str = "") -> Iterator[tuple[str, Json, Json]]:
    """Yield the path, the old and the new value of all that is not equal; members of lists are matched by name where they have one."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = _by_name(old, new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif type(old) is not type(new) or old != new:
        yield path, old, new


def _by_name(old: list[Json], new: list[Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    for key in _KEYS:
        names = [[one.get(key) if isinstance(one, dict) else None for one in side] for side in (old, new)]
        if all(None not in side and len(set(map(str, side))) == len(side) for side in names):
            first, second = (
                {str(name): one for name, one in zip(*both, strict=True)}
                for both in zip(names, (old, new), strict=True)
            )
            shared = [[name for name in side if name in other] for side, other in ((first, second), (second, first))]
            if shared[0] != shared[1]:
                first, second = {**first, "order": shared[0]}, {**second, "order": shared[1]}
            return first, second
    return {str(i): one for i, one in enumerate(old)}, {str(i): one for i, one in enumerate(new)}


def _short(value: Json) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def table(found: Sequence[Pair]) -> Iterator[str]:
    """Yield the lines of the summary: results by step, and new processor time over old."""
    states = ("equal", "changed", "better", "worse", "ended by the limit")
    yield f"| step | {' | '.join(states)} | s, old | s, new | new / old, median | least | most |"
    yield f"|---|{'---:|' * (len(states) + 5)}"
    for step in dict.fromkeys(one.step for one in found):
        rows = [one for one in found if one.step == step]
        counts = Counter(one.state for one in rows)
        times = [one.seconds for one in rows if one.state != "ended by the limit"]
        ratios = [new / old for old, new in times if old > 0] or [1.0]
        sums = (sum(column) for column in zip(*times, strict=True)) if times else (0.0, 0.0)
        cells = [*(str(counts[state]) for state in states), *(f"{one:.1f}" for one in sums)]
        cells += [f"{one:.2f}" for one in (statistics.median(ratios), min(ratios), max(ratios))]
        yield f"| {step} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the summary; return 1 where anything is worse."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", type=_steps, default=list(STEPS), metavar=",".join(STEPS))
    parser.add_argument("--models", default="*", metavar="GLOB,...", help="the names of the models")
    parser.add_argument("--also", type=Path, action="append", default=[], metavar="FOLDER", help="other models")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "onnxtile-checkouts")
    parser.add_argument("--renamed", type=_names, default={}, metavar="OLD=NEW,...")
    parser.add_argument("--ignored", type=lambda text: text.split(","), default=[], metavar="PATH,...")
    parser.add_argument("--seconds", type=int, default=30, help="processor time of a command, at most")
    parser.add_argument("--verify", action="store_true", help="let tile, plan and fit run the models, too")
    given = parser.parse_args(arguments)
    wanted = [
        case
        for case in cases(given.out / "models", given.also)
        if any(fnmatch.fnmatch(case.name, pattern) for pattern in given.models.split(","))
    ]
    found: list[Pair] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        parts = [pool.submit(_part, wanted[i :: given.jobs], given, i, found.append) for i in range(given.jobs)]
        for part in parts:
            part.result()
    by_name = {case.name: number for number, case in enumerate(wanted)}
    found.sort(key=lambda one: by_name[one.case])
    told = [vars(one) for one in found if one.state != "equal"]
    (given.out / "differences.json").write_text(json.dumps(told, indent=1))
    print("\n".join(["", *table(found)]))
    return int(any(one.state == "worse" for one in found))


def _part(wanted: Sequence[Case], given: argparse.Namespace, number: int, add: Callable[[Pair], None]) -> None:
    """Compare on some of the models, with two processes."""
    old, new = (
        Checkout(checkout, given.out / f"{name}{number}", given.seconds)
        for name, checkout in (("old", given.old), ("new", given.new))
    )
    for done, case in enumerate(wanted):
        sys.stderr.write(f"{done} of {len(wanted)}: {case.name}\n")
        for pair in pairs(case, old, new, given):
            add(pair)
            if pair.state != "equal":
                print(pair.line(), flush=True)
    old.end()
    new.end()


def _steps(text: str) -> list[str]:
    verbs = text.split(",")
    found = [name for name in STEPS if name in verbs or name.split()[0] in verbs]
    if not found or not set(verbs) <= {*STEPS, *(name.split()[0] for name in STEPS)}:
        raise argparse.ArgumentTypeError(f"invalid step in {text!r} (choose {', '.join(STEPS)})")
    return found


def _names(text: str) -> dict[str, str]:
    if not re.fullmatch(r"\w+=\w+(,\w+=\w+)*", text):
        raise argparse.ArgumentTypeError(f"invalid names {text!r}: OLD=NEW,...")
    return dict(pair.split("=") for pair in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
