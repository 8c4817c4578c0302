# SPDX-License-Identifier: Apache-2.0
"""How the documentation is built: Sphinx, pages in Markdown, the reference from the docstrings of the package."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import api_pages
import docstrings
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
smartquotes = False  # quotes and dashes on these pages are often code

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


# Kinds of cells by the least length of their text.
CELLS = {"passage": 121, "prose": 46, "clause": 19, "phrase": 12}
UNITS = "ms|µs|s|kB|KiB|MB|MiB|GB|GiB|TB|TB/s|MB/s|TFLOP/s|FLOPs|x|%"


def _mark_cells(app: object, doctree: nodes.document, name: str) -> None:
    """Give cells and code in tables classes by their length: site.css says where they break, and how wide they are."""
    for entry in doctree.findall(nodes.entry):
        length = len(entry.astext())
        entry["classes"] += [kind for kind, least in CELLS.items() if length >= least][:1]
        for literal in entry.findall(nodes.literal):
            if len(literal.astext()) > 30:
                literal["classes"].append("long")


def _keep_units(app: object, doctree: nodes.document, name: str) -> None:
    """Keep a number and its unit on one line."""
    for text in list(doctree.findall(nodes.Text)):
        kept = re.sub(rf"(\d) (?=(?:{UNITS})(?![\w/]))", "\\1\N{NO-BREAK SPACE}", text)
        if kept != text and not isinstance(text.parent, (nodes.literal, nodes.literal_block)):
            text.parent.replace(text, nodes.Text(kept))


def setup(app) -> None:
    """Sphinx calls this."""
    operator_page.write(Path(app.srcdir) / "generated")
    api_pages.write(Path(app.srcdir) / "generated")
    docstrings.hide_overloads()
    app.connect("autodoc-process-docstring", docstrings.rst)
    app.connect("autodoc-process-signature", docstrings.signature)
    app.connect("doctree-resolved", _mark_cells)
    app.connect("doctree-resolved", _keep_units)
