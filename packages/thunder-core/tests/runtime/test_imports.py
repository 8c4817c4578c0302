# SPDX-License-Identifier: Apache-2.0
"""What a compiled program imports is light: no language, no tracer, no executor."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import thunder, thunder.runtime.autograd.node, thunder.runtime.lock, thunder.runtime.guards, thunder.runtime.effects
from thunder.executors.torchex import no_autocast
import thunder.core.dtypes, thunder.core.devices
heavy = ("thunder.torch", "thunder.numpy", "thunder.clang", "thunder.core.prims", "thunder.core.trace",
         "thunder.core.symbol", "thunder.passes", "thunder.transforms", "thunder.extend", "thunder.execution",
         "thunder.capture", "thunder.frontend", "thunder.api", "thunder.executors.torchex.base")
print([name for name in sys.modules if any(name == h or name.startswith(h + ".") for h in heavy)])
"""


def test_the_text_of_a_program_imports_no_language_and_no_tracer() -> None:
    """Also what the printed header of every trace imports."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stdout
