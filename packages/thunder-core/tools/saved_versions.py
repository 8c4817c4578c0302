# SPDX-License-Identifier: Apache-2.0
"""Saved programs of several Pythons and torches: `python -m saved_versions INTERPRETER...`.

All interpreters write into one directory. Each of them then runs again, and must

- read its own programs, and compute the same bits as the process that saved them;
- find none if the directory contains the programs of the others only, or if the files of the others lie where its own
  are looked for;
- run the files that every interpreter has exported, with the same results but for rounding, or refuse one with an error
  that names the versions of the interpreter that wrote it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["check", "main"]

# Torches of other versions may round differently.
TOLERANCE = 1e-5
EXPORTED = "exported.thunder"


# -- one process ------------------------------------------------------------------------------------------------------
def child(folder: Path, exporting: bool) -> dict[str, Any]:
    """Run the programs with the directory `folder`, load the files beside it, and return what became of them."""
    import torch

    import thunder
    from thunder.core.errors import ThunderError

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -1, 1)

    def branching(x: torch.Tensor, scale: Mapping[str, Any]) -> Any:
        y = torch.softmax(x * scale["by"], -1)
        return (y.cumsum(-1), [y.var()]) if x.sum() > 0 else (y, [])

    found: dict[str, Any] = {"versions": [sys.version.split()[0], torch.__version__], "programs": {}, "loaded": {}}
    x = torch.linspace(-1, 2, 12).view(3, 4)
    given, by = x.clone().requires_grad_(), {"by": 2.5}
    for name, fn, calls in (("model", model, [(given,)]), ("function", branching, [(x, by), (-x, by)])):
        jitted = thunder.jit(fn, save=str(folder))
        tensors = [t for args in calls for t in torch.utils._pytree.tree_leaves(jitted(*args))]
        if tensors[0].requires_grad:
            tensors[0].square().sum().backward()
            tensors += [given.grad, *(p.grad for p in model.parameters())]
        stats = thunder.compile_stats(jitted)
        found["programs"][name] = {
            "values": [float(v).hex() for t in tensors for v in t.detach().flatten()],
            "hits": stats.saved_hits,
            "compilations": stats.cache_misses,
            "notes": [e.reason for e in stats.events.of("saved")],
        }
    if exporting:
        exported = thunder.export(model.eval(), x, dynamic_shapes=[[0]]).add(x[:1])
        exported.save(folder.parent / (folder.name + "." + EXPORTED))
    for file in sorted(folder.parent.glob(f"*.{EXPORTED}")):
        try:
            loaded = thunder.load(file)
            found["loaded"][file.name] = [*loaded(x).flatten().tolist(), *loaded(x[:1]).flatten().tolist()]
        except ThunderError as error:
            found["loaded"][file.name] = str(error)
    return found


# -- all processes ----------------------------------------------------------------------------------------------------
class Interpreter(NamedTuple):
    """A Python with a torch. Its folder contains the programs that it has saved."""

    command: str
    folder: Path
    report: dict[str, Any]

    @property
    def title(self) -> str:
        """The versions."""
        return "Python {}, torch {}".format(*self.report["versions"])


def run(command: str, folder: Path, *, exporting: bool = False) -> dict[str, Any]:
    """Run the programs in a process of an interpreter."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("THUNDER_")} | {"OMP_NUM_THREADS": "1"}
    arguments = [command, str(Path(__file__).resolve()), "--child", str(folder), *["--exporting"] * exporting]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stderr}")
    return json.loads(done.stdout.rpartition("FOUND")[2])  # type: ignore[no-any-return]


def check(commands: Sequence[str], folder: Path) -> list[str]:
    """Return what is wrong with the programs that these interpreters save and read in a folder."""
    failures: list[str] = []
    together = folder / "all"
    interpreters = []
    for i, command in enumerate(commands):
        own = joined(folder / f"of{i}", [])
        interpreters.append(Interpreter(command, own, run(command, own, exporting=True)))
        failures += wrong(interpreters[-1], interpreters[-1].report, "first process", hit=False)
        shutil.copytree(own, together, dirs_exist_ok=True)
        together.chmod(0o700)
    for each in interpreters:
        others = [other for other in interpreters if other is not each]
        report = run(each.command, together)
        failures += wrong(each, report, "second process", hit=True)
        failures += wrong_files(each, report, interpreters)
        failures += wrong(each, run(each.command, joined(folder / "others", others)), "programs of others", hit=False)
        if others:
            misplaced = relabelled([other.folder for other in others], each.folder, folder / "misplaced")
            title = "programs of others in its own place"
            failures += wrong(each, run(each.command, misplaced), title, hit=False, refused=True)
        print(f"{each.title}: {len(failures)} failures so far", flush=True)
    return failures


def wrong(each: Interpreter, report: Mapping[str, Any], title: str, *, hit: bool, refused: bool = False) -> list[str]:
    """Return what is wrong with a report: other values than those of the first process, or no hit, or a hit."""
    failures = []
    for name, found in report["programs"].items():
        first = each.report["programs"][name]
        lines = [note for note in found["notes"] if note.startswith("miss")]
        problems = {
            "it computes other values": found["values"] != first["values"],
            "it is compiled": hit and (found["hits"] == 0 or found["compilations"] != 0),
            "a program is found": not hit and found["hits"] != 0,
            "not every miss is explained by one line": not hit and len(lines) != found["compilations"],
            "the files are not refused": refused and "damaged" not in "".join(lines),
        }
        failures += [f"{each.title}, {name}, {title}: {p} {found['notes']}" for p, is_so in problems.items() if is_so]
    return failures


def wrong_files(each: Interpreter, report: Mapping[str, Any], interpreters: Sequence[Interpreter]) -> list[str]:
    """Return which exported files an interpreter neither runs like the one that wrote them nor refuses clearly."""
    failures = []
    for writer in interpreters:
        file = f"{writer.folder.name}.{EXPORTED}"
        found, expected = report["loaded"][file], writer.report["loaded"][file]
        if isinstance(found, str):
            named = all(version in found for version in writer.report["versions"])
            problem = "" if named and writer is not each else f"is refused: {found}"
            print(f"{each.title} refuses the file of {writer.title}: {found}")
        else:
            difference = max(abs(x - y) for x, y in zip(found, expected))
            problem = f"differs by {difference}" if difference > (0 if writer is each else TOLERANCE) else ""
        failures += [f"{each.title}, the file of {writer.title} {problem}"] if problem else []
    return failures


def joined(target: Path, interpreters: Sequence[Interpreter]) -> Path:
    """Return a directory with the programs of some interpreters."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    for each in interpreters:
        shutil.copytree(each.folder, target, dirs_exist_ok=True)
    target.chmod(0o700)
    return target


def relabelled(sources: Sequence[Path], own: Path, target: Path) -> Path:
    """Return a directory with the files of `sources` in the folders in which the reader of `own` looks for its own."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    files = [file for source in sources for file in source.glob("*/*")]
    for key in own.iterdir():
        (target / key.name).mkdir(mode=0o700)
        for file in files:
            shutil.copy2(file, target / key.name / file.name)
    return target


def main() -> int:
    """Check the interpreters of the command line, and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m saved_versions", description=__doc__)
    parser.add_argument("interpreters", nargs="*", metavar="INTERPRETER", help="a Python with torch and thunder")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--exporting", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print("FOUND" + json.dumps(child(args.child, args.exporting)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        failures = check(args.interpreters, Path(folder))
    print("\n".join([*failures, f"{len(args.interpreters)} interpreters, {len(failures)} failures"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
