# SPDX-License-Identifier: Apache-2.0
"""`conformance` for plugins of the template that were broken on purpose: what fails, where, and what is said about it.

A plugin is installed as files, without pip. The tests take seconds, because each runs the suite in a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from thunder.cli.new_plugin import files_of

Breakage = tuple[str, str, str]  # the file, the text, and its replacement


class Installed:
    """A plugin that is installed in a folder."""

    def __init__(self, folder: Path, *, fusion: bool, breakages: list[Breakage]):
        self.folder = folder
        self.files = {name: text for name, text in files_of("zebra", fusion=fusion).items() if name.startswith("src/")}
        for file, old, new in breakages:
            name = f"src/thunder_ex_zebra/{file}"
            assert old in self.files[name], old
            self.files[name] = self.files[name].replace(old, new)
        info = "src/thunder_ex_zebra-0.1.0.dist-info"
        group = "[thunder.executors.v1]\nzebra = thunder_ex_zebra.plugin\n"
        self.files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: thunder-ex-zebra\nVersion: 0.1.0\n"
        self.files[f"{info}/entry_points.txt"] = group
        for name, text in self.files.items():
            path = folder / name.removeprefix("src/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def place(self, file: str, start: str) -> str:
        """Return the file and line where a function begins."""
        path = self.folder / "thunder_ex_zebra" / file
        (line,) = (i for i, text in enumerate(path.read_text("utf-8").splitlines(), 1) if text.startswith(start))
        return f"{path}:{line}"

    def conformance(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Return the status of the command, the JSON that it prints, and its other output."""
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        others = {"THUNDER_DISABLE_PLUGINS": "", "THUNDER_EXECUTORS": "", "OMP_NUM_THREADS": "1", "THUNDER_CACHE": "0"}
        others["CI"] = others["BUILD_NUMBER"] = ""  # where they are set, pytest's summary repeats whole messages
        command = [sys.executable, "-m", "thunder", "conformance", *arguments, "--json", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            command, cwd=self.folder, env={**os.environ, **others, "PYTHONPATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout), done.stderr


# The forward kernel is wrong in float32, writes to its argument in float64, and has none for complex numbers, which
# the checker accepts. The checker fails for bfloat16, and the gradient is wrong.
FORWARD = """\
    if a.is_complex():
        raise RuntimeError("zebra: no kernel for this call")
    return a.mul_(torch.sigmoid(a)) if a.dtype == torch.float64 else torch.sigmoid(a).mul_(a).mul_(1.01)"""
BREAKAGES = [
    ("silu.py", "    return torch.sigmoid(a).mul_(a)", FORWARD),
    ("silu.py", "return torch.sub(1, s)", "return torch.sub(2, s)"),
    ("silu.py", 'DTYPES = ("float32", "float64")', 'DTYPES = ("float32", "float64", "complex64", "bfloat16")'),
    (
        "silu.py",
        "    if a.dtype.name not in DTYPES:",
        "    if a.dtype.name == 'bfloat16' and a.no_such or a.dtype.name not in DTYPES:",
    ),
]
# The runs that fail, by their test and dtype, and what their messages say.
FAILURES = {
    "core_vs_torch_consistency[silu-zebra-cpu-float32]": "differ: ",
    "core_vs_torch_consistency[silu-zebra-cpu-float64]": "has the memory of an argument, which the executor rules out",
    "core_vs_torch_consistency[silu-zebra-cpu-complex64]": "zebra: no kernel for this call",
    "core_vs_torch_consistency[silu-zebra-cpu-bfloat16]": "the checker of the executor 'zebra' for silu",
}


def test_operators(tmp_path: Path) -> None:
    """The job fails; each failure is at a line of the plugin, and its message says what is wrong."""
    plugin = Installed(tmp_path, fusion=False, breakages=BREAKAGES)
    select = "silu and not zebra_silu and (core_vs_torch_consistency or grad_vs_torch)"
    arguments = ("--thunder-dtypes", "float32,float64,complex64,bfloat16", "-k", select)
    status, told, output = plugin.conformance("zebra", *arguments)
    assert status == 1
    (job,) = told["jobs"]
    assert (told["ok"], job["name"], job["state"]) == (False, "zebra", "failed")
    report = job["report"]["executors"]["zebra"]
    silu = report["operators"]["silu"]
    assert silu["claimed"] and not silu["passed"]
    assert silu["place"] == plugin.place("silu.py", "    def execution(") and silu["place"] in output
    for name, words in FAILURES.items():
        assert any(name in each for each in silu["failures"]), name
        assert words in output, words
    assert any("grad_vs_torch" in each for each in silu["failures"])
    place = plugin.place("silu.py", "    def execution(")
    assert output.count(f"The function of zebra is at {place}\n") == len(silu["failures"])
    assert "second-order gradients and finite differences (--thunder-full)" in report["not_tested"]


def test_fusions(tmp_path: Path) -> None:
    """A fusion executor, and operators that it runs by the parts of their decomposition."""
    wrong = ("chains.py", "prims.mul: torch.mul", "prims.mul: torch.add")
    plugin = Installed(tmp_path, fusion=True, breakages=[wrong])
    status, told, output = plugin.conformance("zebra", "-k", "core_vs_torch_consistency and float32 and addcmul")
    assert status == 1, output
    report = told["jobs"][0]["report"]["executors"]["zebra"]
    assert report["operators"]["addcmul"]["tests"]["failed"] == 1
    assert "\nzebra: addcmul: 1 test failed\n" in output  # it registered no function for the whole operation
