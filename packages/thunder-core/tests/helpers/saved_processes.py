# SPDX-License-Identifier: Apache-2.0
"""Runs of a program in processes of their own, which share a directory of saved programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["HEADER", "run", "start"]

HEADER = """
import json, sys
import torch, thunder

def report(jitted, *values):
    stats = thunder.compile_stats(jitted)
    print("REPORT" + json.dumps({
        "values": [v.detach().double().flatten().tolist() if isinstance(v, torch.Tensor) else v for v in values],
        "hits": stats.cache_hits, "misses": stats.cache_misses, "saved_hits": stats.saved_hits,
        "notes": [e.reason for e in stats.events.of("saved")],
        "compiler": "thunder.frontend.compiler" in sys.modules,
    }))
"""


def start(folder: Path, source: str, **variables: str) -> subprocess.Popen[str]:
    """Start a program, whose file is in `folder`. The directory of saved programs is `folder/cache`."""
    file = folder / "program.py"
    file.write_text(HEADER + source)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("THUNDER_")}
    environment |= {"THUNDER_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(file)]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(folder: Path, source: str, **variables: str) -> dict[str, Any]:
    """Run a program, and return its last report."""
    process = start(folder, source, **variables)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return json.loads(output.split("REPORT")[-1])
