# SPDX-License-Identifier: Apache-2.0
"""The table of results, and the numbers of operators compiled by symbols that must not fall."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from operator_database.check import EAGER, OPAQUE, SYMBOLS
from operator_database.results import FAILED, NO_CALLS, Result
from thunder.core.tables import format_table

__all__ = ["compiled", "fallen", "summary", "table", "write"]

_STORED = Path(__file__).with_name("compiled.json")
_COLUMNS = (SYMBOLS, OPAQUE, EAGER, FAILED, NO_CALLS)


def table(results: Iterable[Result]) -> str:
    """Return a line for each operator and dtype."""
    rows = [
        (r.name, r.dtype, r.handling, *(str(r.calls.get(each, 0)) for each in (SYMBOLS, OPAQUE, EAGER)), str(r.failed))
        for r in sorted(results, key=lambda r: (r.name, r.dtype))
    ]
    return format_table(("operator", "dtype", "handled by", SYMBOLS, OPAQUE, EAGER, FAILED), rows)


def summary(results: Sequence[Result]) -> str:
    """Return the number of operators by handling, for each dtype."""
    rows = []
    for dtype in dict.fromkeys(r.dtype for r in results):
        counts = Counter(r.handling for r in results if r.dtype == dtype)
        calls = sum(r.failed + sum(r.calls.values()) for r in results if r.dtype == dtype)
        rows.append((dtype, *(str(counts[each]) for each in _COLUMNS), str(sum(counts.values())), str(calls)))
    return format_table(("dtype", *_COLUMNS, "operators", "calls"), rows)


def compiled(results: Iterable[Result]) -> dict[str, int]:
    """Return the number of operators whose first call is compiled by symbols, by dtype."""
    return dict(Counter(r.dtype for r in results if r.first == SYMBOLS))


def fallen(results: Sequence[Result]) -> list[str]:
    """Return what fell below the stored numbers, which are of one version of torch."""
    stored = json.loads(_STORED.read_text(encoding="utf-8"))
    if stored["torch"] != torch.__version__.partition("+")[0]:
        return []
    found = compiled(results)
    return [
        f"{dtype}: {found.get(dtype, 0)} operators are compiled by symbols, {stored['compiled'][dtype]} were"
        for dtype in dict.fromkeys(r.dtype for r in results)
        if found.get(dtype, 0) < stored["compiled"].get(dtype, 0)
    ]


def write(results: Sequence[Result]) -> None:
    """Store the numbers of these results."""
    stored = {"torch": torch.__version__.partition("+")[0], "compiled": compiled(results)}
    _STORED.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
