# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a program: what it shows, and that it needs no network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from faulty import operator_executor
from torch import nn

import thunder
from thunder.core.errors import ThunderError
from thunder.examine import Report
from thunder.examine.graph import MAX_NODES, draw
from thunder.examine.lines import lines_of
from thunder.examine.program import compile_call
from thunder.extend import get_all_executors

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Parsed(HTMLParser):
    """The elements of a page. Elements that are not closed in order are errors."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def classes(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a class."""
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]


class Net(nn.Module):
    """A module that saves values for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return (self.layer(x) * scale).tanh()  # <the user's line>


def rejects(a: torch.Tensor) -> str:
    return "only <float64>"


def test_a_page(tmp_path: Path) -> None:
    """All sections, for a jitted module that was compiled twice."""
    jitted = thunder.jit(Net())
    for scale in (2.0, 3.0):
        jitted(torch.randn(4, 8), scale)
    text = thunder.examine(jitted, torch.randn(4, 8)).html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    page = Parsed(text)
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert identifiers == ["forward", "backward", "graph", "memory", "saved", "guards", "calls", "passes"]
    targets = [str(attributes["href"]) for tag, attributes in page.elements if tag == "a"]
    assert sorted(targets) == sorted(f"#{name}" for name in identifiers)
    assert "(self.layer(x) * scale).tanh()  # <the user's line>" in page.text
    assert "scale was 2.0 and is 3.0" in page.text and "2 calls: 0 cache hits, 2 compilations" in page.text
    assert "Predicted peak" in page.text and "saved" in text
    assert [name for name in ("Common Subexpression Elimination", "Delete Last Used") if name in page.text]
    assert any("+" in line for line in page.text.splitlines()) and page.classes("added")
    rows = page.classes("row")
    call = compile_call(Net(), (torch.randn(4, 8),), {})
    assert len(rows) == sum(len(list(lines_of(name, trace))) for name, trace in call.programs)


def test_it_needs_no_network() -> None:
    """No scripts, and no address of another file."""
    page = Parsed(thunder.examine(Net(), torch.randn(4, 8)).html())
    assert not [tag for tag, _ in page.elements if tag in ("script", "link", "img", "iframe")]
    assert not [a for _, a in page.elements if "src" in a or not str(a.get("href", "#")).startswith("#")]
    assert "@import" not in page.text and "url(" not in page.text


def test_why_an_executor_does_not_claim() -> None:
    """The reason is in the tooltip, and the executors have colors."""
    with operator_executor("acme", tanh=torch.tanh) as acme:
        import thunder.torch as ltorch

        op = acme.register_operator("acme_mul", like=ltorch.mul, fn=torch.mul)
        acme.register_implementation(ltorch.mul, op, checker=lambda *args, **kwargs: rejects(args[0]))
        page = Parsed(thunder.examine(Net(), torch.randn(4, 8), executors=[acme]).html())
    titles = [attributes["title"] for tag, attributes in page.elements if tag == "summary" and "title" in attributes]
    assert any(title and "not acme: only <float64> (mul)" in title for title in titles)
    assert page.classes("e0") and page.classes("e1")
    assert re.search(r"acme:\s+1 operation\b", page.text)


def test_no_reason_of_executors_that_run_no_such_operation() -> None:
    """The default executors include some for few operations: the page says nothing of them elsewhere, as the text."""
    page = Parsed(thunder.examine(Net(), torch.randn(4, 8)).html())
    assert "flex_attention" in [executor.name for executor in get_all_executors()]
    assert not page.classes("why") and "flex_attention" not in page.text


def test_what_differs_between_the_programs_of_a_function() -> None:
    """Each program with the reason of its compilation; the second one shows the line that differs."""
    jitted = thunder.jit(lambda x, n: (x * n).sin())
    for n in (2.0, 3.0):
        jitted(torch.ones(2), n)
    page = Parsed(thunder.examine(jitted, torch.ones(2), 3.0).html())
    assert "program 1: no program was cached" in page.text and "program 2: n was 2.0 and is 3.0" in page.text
    assert re.search(r"-  t0 = torch.mul\(x, 2.0\).*\n?.*\+  t0 = torch.mul\(x, 3.0\)", page.text)
    assert "Each program that this function" not in Parsed(thunder.examine(Net(), torch.randn(4, 8)).html()).text


def test_without_gradients_and_without_a_call() -> None:
    """No backward program, nothing saved."""
    with torch.no_grad():
        page = Parsed(thunder.examine(lambda x: x.sin(), torch.ones(2)).html())
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert identifiers == ["forward", "graph", "memory", "guards", "calls", "passes"]
    assert "it was compiled for this page" in page.text


def test_notebooks() -> None:
    """The page is in a frame, so that its styles do not change the notebook."""
    shown = thunder.examine(lambda x: x.sin(), torch.ones(2))._repr_html_()
    ((tag, attributes),) = Parsed(shown).elements
    assert tag == "iframe" and str(attributes["srcdoc"]).startswith("<!doctype html>")
    with pytest.raises(ThunderError, match="no program"):
        Report([], None).html()


def test_memory_at_the_peak() -> None:
    """The values that are alive, with their bytes; views count once."""

    def f(x: torch.Tensor) -> torch.Tensor:
        a = x.sin()
        return (a.t() @ a).sum()

    report = thunder.examine.memory(f, torch.ones(16, 16))
    assert sum(size for _, size in report.at_peak) == report.peak == 3 * 16 * 16 * 4
    assert report.at_peak[0][1] == 1024 and "x" in dict(report.at_peak)
    step = thunder.examine.memory(Net(), torch.ones(4, 8))
    assert sum(size for _, size in step.at_peak) == step.peak  # with results that the caller holds


def test_the_graph() -> None:
    """An operation is below those whose results it reads, and no two share a place."""

    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = x.sin(), x.cos()
        return (a + b) * a

    ((_, trace),) = compile_call(f, (torch.ones(2),), {}).programs
    drawing = draw(list(lines_of("forward", trace)))
    rows = {node.text: node.y for node in drawing.nodes}
    assert rows["sin"] == rows["cos"] < rows["add"] < rows["mul"]
    assert len({(node.x, node.y) for node in drawing.nodes}) == 4 == len(drawing.paths)
    assert all(node.x + drawing.node_width <= drawing.width for node in drawing.nodes)
    many = list(lines_of("forward", trace)) * MAX_NODES
    assert draw(many).left_out == 3 * MAX_NODES and draw([]).nodes == []
