# SPDX-License-Identifier: Apache-2.0
"""The field's words: names and phrases that were thunder's own, and what docs/glossary.md calls them now.

An engineer from outside cannot search for a private word. What was replaced stays replaced: identifiers and phrases on
these lists do not come back, in sources, tests or pages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]

# Identifiers, and the names that stand for them now.
IDENTIFIERS = {
    "Told": "DerivedScalars",
    "Undecided": "DataDependentError",
    "undecided": "is_unbacked",
    "Plants": "Substitutions",
    "uproot": "restore",
    "overlook": "hide_in_snapshots",
    "kind_of": "classify",
    "Youth": "NewObjects",
    "hush": "pause_profile",
    "Paused": "RecordingPaused",
    "holder_of": "describe_referrer",
    "leave_to_python": "fall_back",
    "RunsInPieces": "ModuleFallback",
    "Pieces": "PerModule",
    "in_pieces": "partly_eager",
    "Acquired": "Captured",
    "Differentiable": "DifferentiableProgram",
    "Reaches": "GradientRouting",
    "Apart": "SavedTensorRetention",
    "fuse_whole_rejection": "why_not_fusible",
    "footprint": "estimate_memory",
}

# Modules, by their old paths below `src/`.
MODULES = {
    "thunder/core/history",
    "thunder/core/numbers",
    "thunder/core/sizes",
    "thunder/core/symbolic",
    "thunder/execution/footprint",
    "thunder/execution/views",
    "thunder/frontend/acquire",
    "thunder/frontend/apart",
    "thunder/frontend/codes",
    "thunder/frontend/compiled",
    "thunder/frontend/conversions",
    "thunder/frontend/disabled",
    "thunder/frontend/effects",
    "thunder/frontend/entry_points",
    "thunder/frontend/holders",
    "thunder/frontend/inserted",
    "thunder/frontend/kinds",
    "thunder/frontend/leaves",
    "thunder/frontend/packing",
    "thunder/frontend/parts",
    "thunder/frontend/places",
    "thunder/frontend/planting",
    "thunder/frontend/reaches",
    "thunder/frontend/reads",
    "thunder/frontend/recurrent",
    "thunder/frontend/refusals",
    "thunder/frontend/remembered",
    "thunder/frontend/special",
    "thunder/frontend/stages",
    "thunder/frontend/told",
    "thunder/frontend/unknown",
    "thunder/transforms/alike",
    "thunder/transforms/captured",
    "thunder/transforms/seeded",
    "thunder_ex_triton/kept",
    "thunder_ex_triton/fusion/timed",
    "thunder_ex_triton/fusion/warm",
    "thunder_ex_triton/fusion/expressions",
    "thunder_ex_triton/fusion/source",
    "thunder_ex_triton/fusion/space",
    "thunder_ex_triton/fusion/readable",
    "thunder_ex_cudnn/attention/triangles",
    "thunder_ex_cudnn/attention/places",
    "thunder_ex_cudnn/attention/products",
    "thunder_ex_cudnn/attention/ragged",
    "thunder_ex_cudnn/machine",
    "thunder_ex_triton/machine",
    "thunder_ex_apex/library",
    "thunder_ex_nvfuser/library",
    "thunder_ex_te/library",
}

# Phrases, and what to write.
PHRASES = {
    "only running tells": "data-dependent",
    "hangs on": "depends on",
    "hang on its": "depend on its",
    "hands on": "re-exports, passes on",
    "in pieces": "partly eager",
    "traced anew": "recompiled",
    "tensors that only record": "handles that record operations instead of computing them",
    "by a cached program": "cache hits",
    "good for one call only": "not cached",
    "functions of functions": "transforms",
    "apart from each other": "separate",
}

# These pages keep what was measured or released under the words of its time.
KEPT = {"CHANGELOG.md", "test_words.py"}


TOP = ("noxfile.py", ".ci/*.py")


def texts() -> Iterator[tuple[str, str]]:
    """Yield each of our sources, tests and pages."""
    for pattern in (*(f"packages/*/{each}" for each in ("src/**/*.py", "tests/**/*.py", "benchmarks/*.py")), *TOP):
        for path in ROOT.glob(pattern):
            if path.name not in KEPT:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for pattern in ("README.md", "docs/*.md", "docs/[a-z]*/*.md", "packages/*/README.md"):
        for path in ROOT.glob(pattern):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def occurrences(words: dict[str, str], pattern: str) -> list[str]:
    """List where a word of `words` stands, with what to write instead."""
    found = re.compile(pattern % "|".join(map(re.escape, words)), re.IGNORECASE if pattern.startswith("(?i") else 0)
    wrong = []
    for name, text in texts():
        for match in found.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            wrong.append(f"{name}:{line}: {match[1]!r}; write {words.get(match[1]) or words[match[1].lower()]!r}")
    return wrong


def test_identifiers() -> None:
    """No identifier that was replaced comes back."""
    wrong = occurrences(IDENTIFIERS, r"(?<![\w-])(%s)(?![\w-])")
    assert not wrong, "\n".join(wrong)


def test_phrases() -> None:
    """No phrase that was replaced comes back."""
    wrong = occurrences(PHRASES, r"(?i:\b(%s)\b)")
    assert not wrong, "\n".join(wrong)


def test_modules() -> None:
    """No module that was renamed comes back under its old name."""
    sources = {
        path.relative_to(src).with_suffix("").as_posix()
        for src in ROOT.glob("packages/*/src")
        for path in src.rglob("*.py")
    }
    assert not sources & MODULES


# A function's docstring starts with a verb: these words start descriptions of things. Properties are things.
NOUNS = {
    "A", "All", "An", "Any", "Decorator", "Each", "Every", "How", "It", "Its", "No", "Nobody", "Nothing", "Of", "One",
    "Only", "Other", "Some", "Such", "That", "The", "These", "They", "This", "Those", "Three", "Two", "What", "When",
    "Where", "Whether", "Which", "Who", "Why", "Within", "Without",
}  # fmt: skip


def test_docstrings_of_functions_start_with_a_verb() -> None:
    """In all sources; tests state facts instead."""
    wrong = []
    for path in ROOT.glob("packages/*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or any("property" in ast.unparse(d) for d in node.decorator_list):
                continue
            words = (ast.get_docstring(node) or "").split(maxsplit=1)
            if words and words[0].strip(":,") in NOUNS:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} starts with {words[0]!r}")
    assert not wrong, "\n".join(wrong)
