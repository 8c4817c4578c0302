# SPDX-License-Identifier: Apache-2.0
"""The generated pages of the reference miss no public name, option or environment variable."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import pkgutil
import re
import zlib
from pathlib import Path
from types import ModuleType

import pytest

import thunder
import thunder.toolkit
from thunder.frontend.environment import VARIABLES

DOCS = Path(__file__).resolve().parents[4] / "docs"


def load(name: str) -> ModuleType:
    """Return a module of docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = load("api_pages")


def test_every_public_module_has_a_page() -> None:
    """Modules of operations are on the page of operations; tests and executors are no API of names."""
    elsewhere = {"clang", "core", "numpy", "prims", "tests", "torch", "executors", "toolkit"}
    covered = {name.partition(".")[2].partition(".")[0] for name in PAGES.MODULES}
    assert covered >= thunder._MODULES - elsewhere
    tools = {f"thunder.toolkit.{each.name}" for each in pkgutil.iter_modules(thunder.toolkit.__path__)}
    assert {name for name in PAGES.MODULES if name.startswith("thunder.toolkit.")} == {
        name for name in tools if not name.rpartition(".")[2].startswith("_")
    }


@pytest.mark.parametrize("name", PAGES.MODULES)
def test_every_public_name_is_listed(name: str) -> None:
    """Each name stands on the page, and each class of thunder with its first sentence."""
    module = importlib.import_module(name)
    rows = {each: (kind, says) for each, kind, says in PAGES.public_names(module)}
    assert set(rows) == {each for each in module.__all__ if not each.startswith("__")}
    ours = {each for each in rows if getattr(getattr(module, each), "__module__", "").startswith("thunder")}
    assert not [each for each, (kind, says) in rows.items() if not says and kind == "class" and each in ours]
    assert (DOCS / "reference" / f"{(name + '.thunder').split('.')[1]}.md").exists()


@pytest.mark.parametrize("name", PAGES.MODULES)
def test_every_public_name_has_an_entry(name: str) -> None:
    """`automodule` documents classes and functions of thunder; a page has an entry of its own for anything else."""
    module = importlib.import_module(name)
    page = (DOCS / "reference" / f"{(name + '.thunder').split('.')[1]}.md").read_text("utf-8")
    automatic = re.search(rf"automodule:: {re.escape(name)}\n", page) is not None
    for each in module.__all__:
        value = getattr(module, each)
        found = automatic and callable(value) and getattr(value, "__module__", "").startswith("thunder")
        if not each.startswith("__") and not inspect.ismodule(value) and not found:
            assert f"{name}.{each}" in page or f"`{each}`" in page, each


def test_every_option_is_described() -> None:
    """The docstring of `thunder.jit` describes each of its options, and the page shows all."""
    keywords = {
        name for name, each in inspect.signature(thunder.jit).parameters.items() if each.kind is each.KEYWORD_ONLY
    }
    page = PAGES.options_page()
    assert keywords <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert set(VARIABLES) == set(re.findall(r"^\| `(THUNDER_\w+)=", page, re.MULTILINE))


def test_the_inventories_are_up_to_date() -> None:
    """`python docs/_inventories/write.py` changes nothing. Compressed bytes may differ between versions of zlib."""
    writing = load("_inventories/write")
    for name, project, pages in (("python", "Python", writing.PYTHON), ("torch", "PyTorch", writing.TORCH)):
        written, committed = writing.inventory(project, pages), (DOCS / "_inventories" / f"{name}.inv").read_bytes()
        assert len({zlib.decompress(text.split(b"zlib.\n", 1)[1]) for text in (written, committed)}) == 1


def test_the_names_of_the_inventories_exist() -> None:
    """Python and torch have each name to which our pages link."""
    writing = load("_inventories/write")
    for pages in (writing.PYTHON, writing.TORCH):
        for name in " ".join(names for kinds in pages.values() for names in kinds.values()).split():
            found = name == "None" or hasattr(builtins, name) or pkgutil.resolve_name(name) is not None
            assert found, name
