# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser: `nox -s browser`. The test command of the packages skips them, and needs no browser."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import thunder

BROWSER = os.environ.get("TEST_BROWSER") and next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(not BROWSER, reason="TEST_BROWSER is not set, or there is no Chromium")

# Shows a page in a frame of a given width. The title is what the page's document says of itself.
FRAME = """<!doctype html><title>waiting</title><iframe id="frame" style="width: {width}px; height: 800px; border: 0"
srcdoc="{page}"></iframe><script>
frame.onload = () => {{
  const inner = frame.contentDocument, root = inner.documentElement;
  const color = inner.defaultView.getComputedStyle(inner.body).backgroundColor;
  document.title = [root.scrollWidth, root.clientWidth, color].join(" ");
}};
</script>"""


class Net(nn.Module):
    """A module with long lines."""

    def __init__(self) -> None:
        super().__init__()
        self.a_layer_with_a_very_long_name = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(self.a_layer_with_a_very_long_name(x).tanh(), (8,)) * self.training


@pytest.fixture(scope="module")
def page() -> str:
    return thunder.examine.profile(thunder.jit(Net()), torch.randn(4, 8), rounds=1).html()


def seen(page: str, folder: Path, width: int, *options: str) -> tuple[int, int, str]:
    """Return the width of the content, the width of the window, and the color of the background."""
    path = folder / "frame.html"
    path.write_text(FRAME.format(width=width, page=html.escape(page)), encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", *options]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r"<title>(\d+) (\d+) (rgb\([^)]*\))</title>", done.stdout)
    assert found is not None, done.stdout[:500]
    return int(found[1]), int(found[2]), found[3]


@pytest.mark.parametrize("width", [360, 1200])
def test_only_wide_content_scrolls(page: str, tmp_path: Path, width: int) -> None:
    """The page itself is as wide as the window, also on a phone."""
    content, window, _ = seen(page, tmp_path, width)
    assert content == window and width - 20 <= window <= width  # the window has a scroll bar


def test_light_and_dark(page: str, tmp_path: Path) -> None:
    """The page follows the colors that the user prefers."""
    assert seen(page, tmp_path, 800)[2] == "rgb(255, 255, 255)"
    assert seen(page, tmp_path, 800, "--force-dark-mode")[2] == "rgb(20, 23, 27)"
