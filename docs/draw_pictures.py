# SPDX-License-Identifier: Apache-2.0
"""Draws the committed pictures of the documentation: `python docs/draw_pictures.py` writes docs/pictures/*.svg.

The charts show the numbers of docs/pictures/results.json, which stand in docs/performance.md, too. Each picture is a
card with a background of its own, which follows the colors that the reader prefers: it is readable on any page.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent / "pictures"

STYLE = """\
  <style>
    .card { fill: #ffffff; stroke: #dde3ea } .box { fill: #f4f6f9; stroke: #94a3b8 }
    .own { fill: #e3eefc; stroke: #2f7de1 }
    .bar { fill: #aab4c2 } .bar.ours { fill: #2f7de1 }
    .line { stroke: #64748b; stroke-width: 1.5; fill: none } .head { fill: #64748b }
    text { font-family: Helvetica, Arial, sans-serif; fill: #0f172a } .quiet { fill: #556070 }
    .code { font-family: Menlo, Consolas, DejaVu Sans Mono, monospace }
    @media (prefers-color-scheme: dark) {
      .card { fill: #1a1d21; stroke: #343a42 } .box { fill: #262b32; stroke: #64748b }
      .own { fill: #1b3557; stroke: #5b9cf0 }
      .bar { fill: #566172 } .bar.ours { fill: #5b9cf0 } .line { stroke: #94a3b8 } .head { fill: #94a3b8 }
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

    def arrow(self, *points: tuple[float, float], label: str = "", at: tuple[float, float] | None = None) -> None:
        """Draw an arrow through points, with a label at a point."""
        path = " L ".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="line" d="M {path}" marker-end="url(#arrow)"/>')
        if at is not None:
            self.text(*at, label, size=12, kind="quiet", anchor="middle")

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


def chart(result: dict) -> Picture:
    """Draw the bars of one result; shorter is better in all of them."""
    bars = result["bars"]
    says = ", ".join(f"{name} {value:g}" for name, value in bars.items())
    picture = Picture(300, 76 + 40 * 3 + 24, f"{result['title']}: {result['subject']}: {says}")
    picture.text(18, 32, result["title"], size=17, kind="bold")
    picture.text(18, 52, result["subject"], kind="quiet")
    largest = max(bars.values())
    for number, (name, value) in enumerate(bars.items()):
        y = 70 + 40 * number
        picture.text(18, y + 10, name, size=12, kind="bold" if name == "thunder" else "")
        length = 205 * value / largest
        picture.bar(18, y + 15, length, 13, "bar ours" if name == "thunder" else "bar")
        picture.text(18 + length + 6, y + 26, f"{value:g}", size=12)
    picture.text(18, 206, result["where"], size=11.5, kind="quiet")
    return picture


def life_of_a_call() -> Picture:
    """Draw what happens in a call of a jitted function."""
    p = Picture(860, 400, "The life of a call: its program runs, or it is traced and compiled")
    p.box(30, 30, 180, 64, "Call", "`f(x, scale)`")
    p.box(290, 30, 230, 64, "Prologues", "check the guards of programs", kind="own")
    p.box(620, 30, 210, 64, "Program", "the text of the last trace")
    p.arrow((210, 62), (288, 62))
    p.arrow((520, 62), (618, 62), label="accepted: hit", at=(569, 52))
    p.box(290, 160, 230, 64, "Trace", "your Python runs once, on proxies", kind="own")
    p.arrow((405, 94), (405, 158), label="none accepts: miss", at=(340, 130))
    p.box(290, 290, 230, 80, "Passes", "dead code, gradients, memory,", "your transforms", kind="own")
    p.arrow((405, 224), (405, 288))
    p.box(620, 290, 210, 80, "Executors", "claim operations, fuse regions;", "PyTorch claims the rest", kind="own")
    p.arrow((520, 330), (618, 330))
    p.box(620, 160, 210, 64, "New program", "with its prologue and epilogue")
    p.arrow((725, 288), (725, 226))
    p.arrow((725, 158), (725, 96), label="cached", at=(755, 132))
    p.box(30, 160, 180, 64, "Eager PyTorch", "what cannot be compiled")
    p.arrow((288, 192), (212, 192), label="explain", at=(250, 182))
    p.box(30, 290, 180, 80, "Result", "and assignments of your", "code, by the epilogue")
    p.arrow((830, 62), (846, 62), (846, 386), (120, 386), (120, 372))
    p.arrow((120, 224), (120, 288))
    return p


LAYERS = [
    ("api, examine, cli, dynamo, toolkit", "what you call: thunder.jit, reports, the command line"),
    ("frontend", "jitted functions and modules, caches, the pipeline of passes"),
    ("capture", "tracing: proxies, guards, epilogue"),
    ("execution, executors", "claiming, fusion, memory; torch, Python, Inductor"),
    ("plugins, extend", "installed plugins, executors, their registry"),
    ("passes, transforms", "rewrite traces: gradients, recomputation, autocast, ..."),
    ("torch, numpy", "the operations of PyTorch and NumPy, by decomposition"),
    ("clang", "broadcasting, type promotion, indexing"),
    ("core/prims", "primitives: the meta functions"),
    ("core", "values, operations, traces; printing, verification"),
    ("runtime, saved", "what compiled programs call; programs on disk"),
]


def layers() -> Picture:
    """Draw the packages of thunder, the highest layer first."""
    p = Picture(860, 50 + 40 * len(LAYERS) + 16, "The layers: a module imports only from its own layer or a lower one")
    p.text(30, 32, "A module imports only from its own layer or a lower one", kind="quiet")
    for number, (packages, contents) in enumerate(LAYERS):
        y = 46 + 40 * number
        p.bar(30, y, 800, 34, "own" if packages in ("capture", "passes, transforms", "plugins, extend") else "box")
        p.text(46, y + 22, packages, size=12.5, kind="code")
        p.text(370, y + 22, contents, kind="quiet")
    return p


def life_of_a_plugin() -> Picture:
    """Draw what happens to a plugin, from its wheel to a call."""
    p = Picture(860, 316, "A plugin's life: found, probed, registered, claims, runs")
    p.box(30, 40, 180, 84, "Found", "by the entry point of", "an installed wheel")
    p.box(245, 40, 180, 84, "Probed", "versions, GPU, libraries:", "can it run here?")
    p.box(460, 40, 180, 84, "Registered", "executors, operators,", "passes, options", kind="own")
    p.box(675, 40, 155, 84, "Claims", "checker says yes;", "a reason if not", kind="own")
    for x in (210, 425, 640):
        p.arrow((x, 82), (x + 33, 82))
    p.box(245, 200, 180, 84, "Not used", "with a reason; everything", "else works as before")
    p.arrow((335, 124), (335, 198), label="no", at=(352, 166))
    p.box(460, 200, 180, 84, "PyTorch", "runs what nobody claims")
    p.arrow((700, 124), (700, 160), (550, 160), (550, 198), label="no", at=(625, 152))
    p.box(675, 200, 155, 84, "Runs", "its kernel is a line", "of the program", kind="own")
    p.arrow((780, 124), (780, 198), label="yes", at=(800, 166))
    p.box(30, 200, 180, 84, "Reported", "`python -m thunder doctor`", "`thunder.examine(f, x)`")
    p.arrow((245, 242), (212, 242))
    return p


def pictures() -> dict[str, str]:
    """Return the text of each picture, by the name of its file."""
    results = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    drawn = {result["file"]: chart(result) for result in results}
    drawn |= {"life_of_a_call": life_of_a_call(), "layers": layers(), "life_of_a_plugin": life_of_a_plugin()}
    return {f"{name}.svg": picture.svg() for name, picture in drawn.items()}


if __name__ == "__main__":
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
