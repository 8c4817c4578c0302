# SPDX-License-Identifier: Apache-2.0
"""`nox -s release_check`: which tables it refuses, and what it says about them."""

from __future__ import annotations

from pathlib import Path

import pytest

import release_check
from release_check import HEADER, main
from thunder.plugins.sources import hash_of_sources
from thunder.tests.report import Outcome, Run, Summary, write_report

NAME = "thunder-ex-acme"
COMMAND = "python -m thunder conformance acme --thunder-dtypes float32"
RUN = Run(COMMAND, {"torch": "2.13"}, selected=2, finished=2)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one package with a table of its sources, as `--thunder-report` writes it."""
    monkeypatch.setattr(release_check, "CHECKS", (release_check.check_tables,))
    for name, module in ((NAME, "thunder_ex_acme"), ("thunder-core", "thunder")):
        source = tmp_path / "packages" / name / "src" / module / "__init__.py"
        source.parent.mkdir(parents=True)
        source.write_text("x = 1\n")
        (tmp_path / "packages" / name / "pyproject.toml").write_text("")
    table(tmp_path)
    return tmp_path


def table(root: Path, kind: str = "passed", run: Run = RUN, sources: str | None = "", executor: str = "acme") -> Path:
    """Write a page with a table."""
    if sources == "":
        sources = f"{NAME} 1.0, {hash_of_sources(root / 'packages' / NAME / 'src' / 'thunder_ex_acme')}"
    counted = {"executor": executor, "operator": "add", "family": "elementwise", "claimed": True, "sources": sources}
    path = root / "docs" / "conformance" / "acme-cuda.md"
    write_report(Summary([Outcome(kind, counted), Outcome("xfailed", {**counted, "operator": "sub"})]), path, run)
    return path


def told(root: Path, capsys: pytest.CaptureFixture[str], *packages: str) -> str:
    """Return what is said about a package that is refused."""
    assert main(packages or (NAME,), root) == 1
    return capsys.readouterr().out


def test_a_table_of_the_sources(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Known failures and text around the table are fine."""
    path = root / "docs" / "conformance" / "acme-cuda.md"
    path.write_text(f"# acme on a GPU\n\nOne machine.\n\n{path.read_text()}\n\nMore measurements.\n")
    assert main([NAME], root) == 0
    assert capsys.readouterr().out == f"{NAME}: can be released\n"


def test_changed_sources(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused with the command; the same sources again, with other line endings, are accepted."""
    source = root / "packages" / NAME / "src" / "thunder_ex_acme" / "__init__.py"
    source.write_text("x = 2\n")
    found = told(root, capsys)
    assert found.startswith(
        f"{NAME}: cannot be released before its conformance tables are made anew; all else is right"
    )
    assert f"docs/conformance/acme-cuda.md:3: the sources of {NAME} have changed since" in found
    assert "make it anew on a GPU, with --thunder-report=PATH" in found
    assert f"    {COMMAND}\n" in found
    source.write_bytes(b"x = 1\r\n")
    assert main([NAME], root) == 0


@pytest.mark.parametrize("sources", [None, f"{NAME} 1.0, sha256:12", "none"])
def test_no_hash(root: Path, capsys: pytest.CaptureFixture[str], sources: str | None) -> None:
    """Sources that are unknown or no hash; so is a table from before there were hashes."""
    path = table(root, sources=sources)
    assert "acme-cuda.md:3: it does not say from which sources it was made" in told(root, capsys)
    path.write_text(
        f"`{COMMAND}\n-n 2`, quick tier\n\n{HEADER}\n|---|---:|---:|---:|---:|---:|\n| all | 0 | 0 | 0 | 0 | 1 |\n"
    )
    found = told(root, capsys)
    assert "acme-cuda.md:4: it does not say from which sources it was made" in found
    assert f"    {COMMAND} -n 2\n" in found


def test_each_table_of_a_page(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sources of one table say nothing about another."""
    path = root / "docs" / "conformance" / "acme-cuda.md"
    path.write_text(f"{HEADER}\n|---|\n| all | 0 | 0 | 0 | 0 | 0 |\n\n{path.read_text()}")
    found = told(root, capsys)
    assert "acme-cuda.md:1: it does not say" in found
    assert found.count("acme-cuda.md:") == 1


def test_failed_rows(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is named."""
    table(root, "failed")
    found = told(root, capsys)
    assert "acme-cuda.md:3: elementwise has 1 failed" in found
    assert "acme-cuda.md:3: all has 1 failed" in found


def test_what_is_not_in_the_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was interrupted, and one with a failure of no operator."""
    table(root, run=Run(COMMAND, {}, selected=5, finished=2, failed=("test_known_failures_match[acme]",)))
    found = told(root, capsys)
    assert "Incomplete: only 2 of 5 tests ended." in found
    assert "Failed, and not in the table: test_known_failures_match[acme]." in found


def test_sources_of_another_package(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same hash under another distribution's name."""
    now = hash_of_sources(root / "packages" / NAME / "src" / "thunder_ex_acme")
    table(root, sources=f"thunder-ex-other 1.0, {now}")
    assert f"made from the sources of another distribution than {NAME}" in told(root, capsys)


def test_no_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No page, a page without a table, and a page of no package, when all packages are checked."""
    page = root / "docs" / "conformance" / "acme-cuda.md"
    page.write_text("# acme\n")
    assert "acme-cuda.md: has no conformance table" in told(root, capsys)
    page.rename(page.with_name("stranger-cuda.md"))
    assert main([], root) == 1
    found = capsys.readouterr().out
    assert f"{NAME}: cannot be released before its conformance tables are made anew; all else is right\n" in found
    assert "  docs/conformance/acme-cuda.md: there is no conformance table; make it with\n" in found
    assert "python -m thunder conformance acme" in found
    assert "thunder-core: cannot be released before its" in found
    assert "docs/conformance/stranger-cuda.md is of no package" in found


def test_an_unknown_package(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The packages are listed."""
    with pytest.raises(SystemExit):
        main(["thunder-ex-nonesuch"], root)
    assert "the packages are thunder-core, thunder-ex-acme" in capsys.readouterr().err
