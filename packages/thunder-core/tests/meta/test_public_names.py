# SPDX-License-Identifier: Apache-2.0
"""What `import thunder` offers: `dir(thunder)`, the page of the reference and what type checkers see are one list."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import thunder

MODULES = sorted(thunder._MODULES)
PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "thunder.md"


def test_dir_is_the_documented_list() -> None:
    """The functions and classes of `__all__`, and the modules; the page names each once."""
    assert dir(thunder) == sorted([*thunder.__all__, *MODULES])
    documented = re.findall(r"^\| `thunder\.(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted([*documented, "__version__"]) == dir(thunder)


def test_all_is_the_table() -> None:
    """`__all__` is written out for type checkers, which do not evaluate expressions."""
    assert sorted(thunder.__all__) == sorted(["__version__", *thunder._ATTRIBUTES])
    assert sorted(thunder.transforms.__all__) == sorted(thunder.transforms._HOMES) == dir(thunder.transforms)


def seen_by_type_checkers(module: ModuleType) -> set[str]:
    """Return the names that a module imports or declares under TYPE_CHECKING."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    names = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return names | {ast.unparse(node.target) for node in block.body if isinstance(node, ast.AnnAssign)}


def test_type_checkers_see_the_same_names() -> None:
    """The names under TYPE_CHECKING are those that `__getattr__` knows."""
    assert seen_by_type_checkers(thunder) - {"CallableModule"} == {*dir(thunder)} - {"__version__"}
    assert seen_by_type_checkers(thunder.transforms) == {*thunder.transforms.__all__}


def test_every_name_exists() -> None:
    """And nothing else is an attribute of thunder by accident, such as what it imports itself."""
    for name in dir(thunder):
        assert getattr(thunder, name) is not None
    with pytest.raises(AttributeError, match="module 'thunder' has no attribute 'no_such_name'"):
        thunder.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", MODULES)
def test_public_modules_say_what_is_public(name: str) -> None:
    """Each has an `__all__` without repetitions, and `import *` finds every name in it."""
    module = importlib.import_module(f"thunder.{name}")
    assert len(module.__all__) == len(set(module.__all__)) > 0
    namespace: dict[str, object] = {}
    exec(f"from thunder.{name} import *", namespace)
    assert not {*module.__all__} - {*namespace}


def test_a_star_import_keeps_the_users_torch() -> None:
    """`from thunder import *` brings functions, and no module called torch or numpy."""
    namespace: dict[str, object] = {}
    exec("import torch\nfrom thunder import *", namespace)
    assert namespace["torch"].__name__ == "torch"  # type: ignore[attr-defined]
    assert namespace["jit"] is thunder.jit
