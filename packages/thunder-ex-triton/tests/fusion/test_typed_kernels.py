# SPDX-License-Identifier: Apache-2.0
"""The code for GPUs, on any machine: it compiles, and each value has the dtype of the trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_values_have_the_dtype_of_the_trace() -> None:
    """Kernels of most operations and all dtypes compile to Triton's IR (in another process, which takes 5 to 8 s)."""
    script = Path(__file__).with_name("typed_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    kernels, values = map(int, done.stdout.split())
    assert kernels >= 20
    assert values > 1000
