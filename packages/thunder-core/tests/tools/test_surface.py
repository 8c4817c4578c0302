# SPDX-License-Identifier: Apache-2.0
"""torch's surface: all of its names, a reason or a sample for each, a part of the walk, and the page.

`nox -s surface` walks all of them.
"""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from surface import walk as walking
from surface.__main__ import main
from surface.derived import samples_of
from surface.names import Entry, entries, entry_of, overridable
from surface.page import counts, names_on, page
from surface.reasons import patterns, reason_of
from surface.samples import SAMPLES
from surface.walk import METADATA, NOT, OPAQUE, OWN, Finding, examine

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

ALL = entries()
PATHS = {entry.path for entry in ALL}
PAGE = Path(__file__).parents[4] / "docs" / "operators.md"
VERSION = ".".join(torch.__version__.split(".")[:2])
TITLES = {OWN: "Own", OPAQUE: "Opaque", METADATA: "Metadata", NOT: "No operation"}


def test_every_name() -> None:
    """All that torch calls overridable is here, but what is private and second names in torch.functional."""
    second = ("torch.functional.", "torch.foreach.")  # the latter since torch 2.15, of `torch._foreach_…`
    missing = {path for path in overridable() - PATHS if not path.startswith(second)}
    assert {path for path in missing if not path.rpartition(".")[2].startswith("_")} <= {"torch.autocast"}
    assert len(PATHS) == len(ALL) > 1500


def test_reasons_and_samples_are_about_names_that_exist() -> None:
    """A pattern that matches nothing, and a name that has both, is out of date."""
    unmatched = [p for p in patterns() if not any(fnmatch.fnmatchcase(path, p) for path in PATHS)]
    assert unmatched == [] or not torch.__version__.startswith("2.13")
    assert [path for path in SAMPLES if reason_of(path) is not None] == []


def test_every_name_has_a_reason_or_a_sample() -> None:
    """Nothing is left out silently."""
    without = [e.path for e in ALL if reason_of(e.path) is None and not samples_of(e)]
    assert without == [] or not torch.__version__.startswith("2.13")


SOME = [entry for i, entry in enumerate(e for e in ALL if reason_of(e.path) is None) if i % 30 == 7]


@pytest.mark.parametrize("entry", SOME, ids=lambda entry: entry.path)
def test_a_part_of_the_walk(entry: Entry) -> None:
    """One name in thirty agrees with torch, and is what the page says."""
    finding = examine(entry)
    assert finding.failures == []
    if VERSION in PAGE.read_text(encoding="utf-8"):
        assert names_on(PAGE.read_text(encoding="utf-8"))[entry.path] == TITLES[finding.kind]


def test_the_page_has_every_name() -> None:
    """`nox -s surface -- --write docs/operators.md` writes it anew."""
    text = PAGE.read_text(encoding="utf-8")
    if f"torch {VERSION}:" not in text:
        return  # another torch has other names
    found = names_on(text)
    assert set(found) == PATHS
    assert {path for path, kind in found.items() if kind == "No operation"} == {p for p in PATHS if reason_of(p)}


def test_a_page() -> None:
    """What is written can be read again."""
    findings = [
        Finding(entry_of("torch.add"), OWN, samples=2),
        Finding(entry_of("torch.linalg.svd"), OPAQUE),
        Finding(entry_of("torch.Tensor.shape"), METADATA),
        Finding(entry_of("torch.save"), NOT),
    ]
    text = page(findings)
    assert names_on(text) == {f.entry.path: TITLES[f.kind] for f in findings}
    assert counts(findings)["all"] == {OWN: 1, OPAQUE: 1, METADATA: 1, NOT: 1}
    assert "2 calls were compared" in text and "Load tensors before the traced program" in text


WRONGS = {
    "torch.linalg.vector_norm": (lambda x: x + 1, "differ"),
    "torch.nn.functional.pixel_shuffle": (lambda x: x.mT.contiguous().mT, "strides"),
    "torch.Tensor.mT": (lambda x: x.clone(), "shares memory"),
    "torch.Tensor.add_": (lambda x: x.detach(), "requires_grad"),
    "torch.sin": (lambda x: x.detach() + (x - x.detach()) * 2, "differ"),
}


@pytest.mark.parametrize("path", WRONGS)
def test_what_is_wrong_is_found(path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong numbers, other strides, a copy where torch has a view, no gradient, a wrong one: the command says which."""
    original = walking.thunder
    wrong, word = WRONGS[path]

    class Wrong:
        def __init__(self, fn: Any):
            self.jitted = original.jit(fn)

        def __call__(self, *args: Any) -> Any:
            return wrong(self.jitted(*args))

    class Stub:
        jit = Wrong

        @staticmethod
        def last_traces(fn: Any) -> Any:
            return original.last_traces(fn.jitted)

    monkeypatch.setattr(walking, "thunder", Stub)
    assert main(["--only", path]) == 1
    told = capsys.readouterr().err
    assert path in told and word in told


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table, JSON, a page."""
    written = tmp_path / "page.md"
    assert main(["--only", "torch.fft.rfft", "--write", str(written)]) == 0
    out = capsys.readouterr().out
    assert "names agree with torch" in out
    assert "torch.fft.rfft2" in names_on(written.read_text())
    assert main(["--only", "torch.trunc", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["entry"] for each in told] == ["torch.trunc", "torch.trunc_"]
    assert main(["--only", "torch.no_such_name"]) == 1
