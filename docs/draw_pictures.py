# SPDX-License-Identifier: Apache-2.0
"""Draws the committed pictures of the documentation: `python docs/draw_pictures.py` writes docs/pictures/*.svg.

The charts (chart_pictures.py) show the numbers of docs/measurements/*.json, which stand on the pages of
docs/performance, too. Each picture is a card with a background of its own, which follows the colors that the reader
prefers: it is readable on any page.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chart_pictures import charts
from svg_picture import Picture

FOLDER = Path(__file__).resolve().parent / "pictures"


def overview() -> Picture:
    """Draw the architecture: from Python to kernels."""
    p = Picture(860, 300, "From Python to kernels: a trace is captured, rewritten, and claimed by executors")
    for x, title in ((103, "Python"), (325, "Trace"), (545, "Transforms"), (760, "Executors")):
        p.text(x, 38, title, size=16, kind="bold", anchor="middle")
    p.code(
        20,
        54,
        170,
        150,
        "@thunder.jit",
        "def f(x, gate, up):",
        "  a = F.silu(x @ gate)",
        "  return a * (x @ up)",
        kind="box",
    )
    p.code(244, 54, 162, 150, "t0 = matmul(x, gate)", "t4 = silu(t0)", "t5 = matmul(x, up)", "t6 = mul(t4, t5)")
    p.text(36, 190, "a function or a module", size=12, kind="quiet")
    p.text(256, 190, "straight-line Python", size=12, kind="quiet")
    for number, name in enumerate(("gradients", "what to save, recompute", "autocast, LoRA, int8", "yours")):
        p.label(464, 54 + 39.5 * number, 162, 31.5, name, "green open" if name == "yours" else "green")
    executors = {"Triton, nvFuser": "orange", "cuDNN, apex": "orange", "TransformerEngine": "orange"}
    executors |= {"yours: a wheel": "orange open", "PyTorch: the rest": "box"}
    for number, (name, kind) in enumerate(executors.items()):
        p.label(684, 54 + 31 * number, 152, 26, name, kind)
    for x, name in ((186, "capture"), (406, "rewrite"), (626, "claim")):
        p.arrow((x + 5, 129), (x + 53, 129), label=name, at=(x + 29, 118))
    p.arrow((760, 212), (760, 262), (103, 262), (103, 210))
    p.text(
        430,
        284,
        "guards: the next call runs the compiled program, or recompiles",
        size=12.5,
        kind="quiet",
        anchor="middle",
    )
    return p


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
    drawn = {
        "overview": overview(),
        "life_of_a_call": life_of_a_call(),
        "layers": layers(),
        "life_of_a_plugin": life_of_a_plugin(),
    }
    return {f"{name}.svg": picture.svg() for name, picture in {**charts(), **drawn}.items()}


if __name__ == "__main__":
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
