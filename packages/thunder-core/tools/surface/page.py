# SPDX-License-Identifier: Apache-2.0
"""The page of torch's surface (`docs/operators.md`), generated from the results of a walk."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import torch

from surface.names import NAMESPACES
from surface.reasons import REASONS, reason_of
from surface.walk import METADATA, NOT, OPAQUE, OWN, Finding

__all__ = ["counts", "names_on", "page", "rows"]

INTRODUCTION = """\
# torch's operators

This page lists every public name of `torch`, `torch.nn.functional`, `torch.linalg`, `torch.fft`, `torch.special` and
`torch.Tensor`, and what a traced program does with it. This command writes the page:

```sh
python -m nox -s surface -- --write docs/operators.md
```

The command calls each name through `thunder.jit` and compares with torch: results, writes to arguments, memory shared
with arguments, strides, gradients of first and second order, in-place variants, and `out=`.

- **own**: thunder has its own operation, which gradients, transforms and fusion executors can decompose.
- **opaque**: torch runs it as one operation of the trace, with torch's gradients of any order. `thunder.examine`
  lists opaque operations.
- **metadata**: the result is known while the program is traced (`x.shape`, `x.is_contiguous()`), and is guarded.
- **no operation**: it computes nothing from tensors, or needs tensors that thunder does not trace. The reasons are
  below.
"""

_TITLES = {OWN: "Own", OPAQUE: "Opaque", METADATA: "Metadata"}
_WIDTH = 118


def counts(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    """Count the names of each namespace by result. The last row contains the sums."""
    table = {namespace: dict.fromkeys((OWN, OPAQUE, METADATA, NOT), 0) for namespace in (*NAMESPACES, "all")}
    for finding in findings:
        for row in (finding.entry.namespace, "all"):
            table[row][finding.kind] += 1
    return table


def rows(findings: Iterable[Finding]) -> list[tuple[object, ...]]:
    """Return the `counts` as rows of a table."""
    return [
        (namespace, *(found[kind] for kind in (OWN, OPAQUE, METADATA, NOT)), sum(found.values()))
        for namespace, found in counts(findings).items()
    ]


HEADER = ("namespace", "own", "opaque", "metadata", "no operation", "all")


def page(findings: Sequence[Finding]) -> str:
    """Return the page as Markdown."""
    version = ".".join(torch.__version__.split(".")[:2])
    calls, gradients, second, out = (
        sum(getattr(f, what) for f in findings) for what in ("samples", "gradients", "second", "out")
    )
    compared = f"{calls} calls were compared, {gradients} also with gradients, {second} with second-order gradients"
    parts = [
        INTRODUCTION,
        f"torch {version}: {compared}, and {out} with `out=`.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---|" + "---:|" * (len(HEADER) - 1),
        *(f"| {' | '.join(map(str, row))} |" for row in rows(findings)),
        "",
    ]
    for kind, title in _TITLES.items():
        parts += [f"## {title}", ""]
        for namespace in NAMESPACES:
            names = [f.entry.name for f in findings if f.kind == kind and f.entry.namespace == namespace]
            parts += _listed(f"**{namespace}**", names)
    parts += ["## No operation", ""]
    for reason in REASONS:
        paths = [f.entry.path for f in findings if f.kind == NOT and reason_of(f.entry.path) == reason]
        parts += _listed(reason, paths)
    return "\n".join(parts).rstrip() + "\n"


def _listed(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    text = " ".join(f"`{name}`" for name in names)
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [*textwrap.wrap(title, _WIDTH), "", *lines, ""]


def names_on(text: str) -> dict[str, str]:
    """Return the qualified names on a page, with the heading of each."""
    found: dict[str, str] = {}
    kind = namespace = ""
    for line in text.splitlines():
        if line.startswith("## "):
            kind, namespace = line[3:], ""
        elif line.startswith("**"):
            namespace = line.strip("*") + "."
        elif kind and line.startswith("`"):
            found.update({f"{namespace}{name}": kind for name in line.strip("`").split("` `")})
    return found
