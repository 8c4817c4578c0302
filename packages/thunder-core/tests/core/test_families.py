# SPDX-License-Identifier: Apache-2.0
"""Every module in the folder of a language is imported with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thunder.core.families import import_families


def test_finds_modules_that_nobody_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is imported; an error in one is an error of the package."""
    package = tmp_path / "a_language"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "first.py").write_text("declared = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import a_language  # type: ignore[import-not-found]

    assert not hasattr(a_language, "first")
    import_families("a_language")
    assert a_language.first.declared
    (package / "second.py").write_text("import nonesuch\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="nonesuch"):
        import_families("a_language")
    for name in ("a_language", "a_language.first"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("package", ["thunder.core.prims", "thunder.clang", "thunder.torch", "thunder.numpy"])
def test_families_are_imported(package: str) -> None:
    """Importing a language imports every file in its folder."""
    script = (
        f"import pkgutil, sys, {package} as package\n"
        "names = [module.name for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.')]\n"
        "missing = [name for name in names if name not in sys.modules]\n"
        "assert len(names) > 3 and not missing, missing\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
