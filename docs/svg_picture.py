# SPDX-License-Identifier: Apache-2.0
"""SVG files that are drawn step by step, in the colors of the documentation, light and dark."""

from __future__ import annotations

from xml.sax.saxutils import escape

STYLE = """\
  <style>
    .card { fill: #ffffff; stroke: #dde3ea } .box { fill: #f4f6f9; stroke: #94a3b8 }
    .own { fill: #e3eefc; stroke: #2f7de1 } .green { fill: #e9f8ee; stroke: #2f9e57 }
    .orange { fill: #fff3e6; stroke: #d9730d } .open { stroke-dasharray: 5 4 }
    .bar { fill: #aab4c2 } .bar.ours { fill: #2f7de1 } .bar.part { fill: #9cc3f5 } .bar.dark { fill: #6b7788 }
    .bar.light { fill: #d5dbe3 }
    .line { stroke: #64748b; stroke-width: 1.5; fill: none } .head { fill: #64748b }
    text { font-family: Helvetica, Arial, sans-serif; fill: #0f172a } .quiet { fill: #556070 }
    .code { font-family: Menlo, Consolas, DejaVu Sans Mono, monospace; white-space: pre }
    @media (prefers-color-scheme: dark) {
      .card { fill: #1a1d21; stroke: #343a42 } .box { fill: #262b32; stroke: #64748b }
      .own { fill: #1b3557; stroke: #5b9cf0 } .green { fill: #17382a; stroke: #4fbf7b }
      .orange { fill: #45301a; stroke: #e8944a }
      .bar { fill: #7d899a } .bar.ours { fill: #5b9cf0 } .bar.part { fill: #2c5894 } .bar.dark { fill: #aeb8c6 }
      .bar.light { fill: #4a5463 } .line { stroke: #94a3b8 } .head { fill: #94a3b8 }
      text { fill: #e6eaf0 } .quiet { fill: #a3afbf }
    }
  </style>
"""


class Picture:
    """An SVG file that is drawn step by step."""

    def __init__(self, width: int, height: int, title: str):
        self.size, self.title = (width, height), title
        self.parts: list[str] = [
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>'
        ]

    def text(self, x: float, y: float, text: str, *, size: float = 13, kind: str = "", anchor: str = "start") -> None:
        """Write one line; the font is bold if `kind` contains "bold"."""
        weight = ' font-weight="bold"' if "bold" in kind else ""
        names = " ".join(name for name in kind.split() if name != "bold")
        cls = f' class="{names}"' if names else ""
        self.parts.append(
            f'<text{cls} x="{x:g}" y="{y:g}" font-size="{size:g}"{weight} text-anchor="{anchor}">{escape(text)}</text>'
        )

    def bar(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a bar of a chart."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>')

    def box(self, x: float, y: float, width: float, height: float, title: str, *lines: str, kind: str = "box") -> None:
        """Draw a box with a title and lines below it; a line in backquotes is code."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>')
        top = y + (height - 18 * len(lines)) / 2 + 5
        self.text(x + width / 2, top, title, size=14, kind="bold", anchor="middle")
        for number, line in enumerate(lines, start=1):
            code = line.startswith("`")
            self.text(
                x + width / 2, top + 18 * number, line.strip("`"), size=11.5 if code else 12.5,
                kind="code" if code else "quiet", anchor="middle",
            )  # fmt: skip

    def label(self, x: float, y: float, width: float, height: float, name: str, kind: str) -> None:
        """Draw a box with one line in its middle."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        self.text(x + width / 2, y + height / 2 + 4.5, name, size=12.5, anchor="middle")

    def code(self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "own") -> None:
        """Draw a box with lines of code."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>')
        for number, line in enumerate(lines):
            self.text(x + 12, y + 28 + 22 * number, line, size=11.5, kind="code")

    def arrow(self, *points: tuple[float, float], label: str = "", at: tuple[float, float] | None = None) -> None:
        """Draw an arrow through points, with a label at a point."""
        path = " L ".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="line" d="M {path}" marker-end="url(#arrow)"/>')
        if at is not None:
            self.text(*at, label, size=11.5, kind="quiet", anchor="middle")

    def svg(self) -> str:
        """Return the text of the file."""
        width, height = self.size
        body = "\n".join(f"  {part}" for part in self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-labelledby="title">\n  <title id="title">{escape(self.title)}</title>\n{STYLE}'
            '  <defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="head" d="M 0 1 L 10 5 L 0 9 z"/></marker></defs>\n'
            f"{body}\n</svg>\n"
        )
