# SPDX-License-Identifier: Apache-2.0
"""How the documentation is built: Sphinx, pages in Markdown, the reference from the docstrings of the package."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import api_pages
import operator_page
from docutils import nodes

project = "thunder"
author = "The thunder developers"
project_copyright = "The thunder developers"
release = version = importlib.metadata.version("thunder-core")

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.viewcode", "sphinx_copybutton",
]  # fmt: skip
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"thunder {release}"
html_copy_source = False
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]

# Committed (docs/_inventories/write.py), so that a build needs no network.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "_inventories/python.inv"),
    "torch": ("https://docs.pytorch.org/docs/stable", "_inventories/torch.inv"),
}
copybutton_selector = "div.highlight-python pre, div.highlight-sh pre, div.highlight-bash pre"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}


def _code_spans(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Our docstrings have Markdown's `code` and indented programs, which reStructuredText writes in other ways."""
    text = re.sub(r"(?m)^((?! |\.\. ).*[^:\s]:?)\n\n(?=    \S)", r"\1\n\n.. code-block:: python\n\n", "\n".join(lines))
    lines[:] = re.sub(r"(?<![`:\w])`([^`\n]+)`(?![`_])", r"``\1``", text).split("\n")


def _own_docstrings_only(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """A class without a docstring of its own shows none, and not the one of `object` or `Enum`; nor do named fields."""
    inherited = inspect.isclass(obj) and obj.__dict__.get("__doc__") is None
    if inherited or (lines and lines[0].startswith("Alias for field number")):
        lines.clear()


def _mark_cells(app: object, doctree: nodes.document, name: str) -> None:
    """Give long code and prose in tables classes: site.css lets the one break, and keeps columns of the other wide."""
    for entry in doctree.findall(nodes.entry):
        if len(entry.astext()) > 45:
            entry["classes"].append("prose")
        for literal in entry.findall(nodes.literal):
            if len(literal.astext()) > 30:
                literal["classes"].append("long")


def setup(app) -> None:
    """Sphinx calls this."""
    operator_page.write(Path(app.srcdir) / "generated")
    api_pages.write(Path(app.srcdir) / "generated")
    app.connect("autodoc-process-docstring", _own_docstrings_only)
    app.connect("autodoc-process-docstring", _code_spans)
    app.connect("doctree-resolved", _mark_cells)
