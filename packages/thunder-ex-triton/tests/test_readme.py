# SPDX-License-Identifier: Apache-2.0
"""The trace that the repository's README shows for Triton is the one that its code prints where Triton is installed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import torch

import thunder

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_trace_with_triton() -> None:
    """The same, but for the milliseconds of a pass and, on a GPU, the device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    (code,) = re.findall(r"```python\n(import torch, thunder\n.*?)```", README, re.DOTALL)
    (shown,) = re.findall(r"<!-- with Triton -->\n```text\n(.*?)```", README, re.DOTALL)
    printed, namespace = io.StringIO(), {"__name__": "__main__"}
    with torch.device(device), contextlib.redirect_stdout(printed):
        exec(code, namespace)
    expected = shown.replace('"cpu ', '"cuda:0 ' if device == "cuda" else '"cpu ')
    assert re.sub(r"took \d+ \w+", "took 0 milliseconds", printed.getvalue()) == expected
    assert "tl.store" in thunder.examine.fusions(namespace["swiglu"])[0].source
