# SPDX-License-Identifier: Apache-2.0
"""Figures of matplotlib, an optional requirement: reports write them as PNG, SVG or PDF, by the suffix of the path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["COLORS", "FAINT", "PANEL", "TEXT", "new_figure", "write_figure"]

#: The colors of executors and levels, in light mode, as on the pages of `thunder.examine`.
COLORS = ("#2f6fbf", "#b4570a", "#2b7d46", "#8a3fb0", "#b3274f", "#0f7c84", "#7a6a00", "#59616b")
TEXT, FAINT, PANEL = "#1b1f24", "#5c6570", "#f5f6f8"
_PIXELS_PER_INCH = 100
# A PNG is larger by this factor, as screens of high density show it. Neither side may have 2**16 pixels or more.
_SCALE, _MAX_PIXELS = 2.0, 65_000


def new_figure(width: float, height: float) -> Any:
    """Return a figure with a size in pixels, on a white background, without a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "pictures are drawn by matplotlib, which is not installed: pip install 'thunder-core[pictures]' "
            "(or pip install matplotlib)"
        ) from None
    return Figure(figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH), layout="constrained")


def write_figure(figure: Any, path: str | Path) -> None:
    """Write a figure. The suffix of `path` is the format. Equal figures are equal files."""
    import matplotlib

    suffix = Path(path).suffix.lower().removeprefix(".")
    formats = ("png", "svg", "pdf")
    if suffix not in formats:
        raise ValueError(f"{str(path)!r} must end in {', '.join(f'.{each}' for each in formats)}: this is the format")
    longest = float(max(figure.get_size_inches())) * _PIXELS_PER_INCH
    dots = min(_SCALE, _MAX_PIXELS / longest) * _PIXELS_PER_INCH
    undated: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
    # Text stays text, so that a picture can be searched; the salt makes the identifiers in an SVG reproducible.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "thunder"}):
        figure.savefig(path, format=suffix, dpi=dots, metadata=undated, facecolor="white")
