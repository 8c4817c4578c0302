# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder new-plugin NAME`: names, paths, and that the plugin which it writes works.

The plugin with an operator is built, tested and proved by tests/docs/test_vendor_page.py, the one with a fusion
executor here.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from thunder.cli import main, new_plugin

BOTH = pytest.mark.parametrize("fusion", [False, True], ids=["operator", "fusion"])


@BOTH
def test_the_name_is_replaced_everywhere(fusion: bool) -> None:
    """Each kind of name is in its place, and nothing is left of the template's."""
    files = new_plugin.files_of("wide_cat", fusion=fusion)
    assert not [path for path, text in files.items() if "acme" in path + text]
    assert 'name = "thunder-ex-wide-cat"' in files["pyproject.toml"]
    assert 'wide_cat = "thunder_ex_wide_cat.plugin"' in files["pyproject.toml"]
    assert files["CHANGELOG.md"].startswith("# Changelog of thunder-ex-wide-cat\n")
    for path, text in files.items():
        if path.endswith(".py"):
            assert ast.get_docstring(ast.parse(text)), path
    assert {path for path in files if path.endswith(".py") and not path.startswith("tests/")} == {
        f"src/thunder_ex_wide_cat/{name}.py"
        for name in ("__init__", "plugin", *(["chains"] if fusion else ["samples", "silu"]))
    }


@BOTH
def test_a_repository_is_complete(fusion: bool) -> None:
    """What a repository of a plugin needs beside its sources."""
    files = new_plugin.files_of("acme", fusion=fusion)
    wanted = {
        ".github/workflows/ci.yml", ".github/workflows/release.yml", ".gitignore", "CHANGELOG.md", "LICENSE",
        "README.md", "pyproject.toml", "src/thunder_ex_acme/py.typed", "tests/test_conformance.py",
        "tests/test_plugin.py",
    }  # fmt: skip
    assert wanted <= set(files)


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("0.1.0", ">=0.1,<0.3"), ("0.7.2", ">=0.7,<0.9"), ("2.3.0rc1", ">=2.3,<2.5"), (None, ">=0.1")],
)
def test_the_range_of_thunder_core(version: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From this version on, up to the next minor version, where what is deprecated still works."""
    monkeypatch.setattr(new_plugin, "core_version", lambda: version)
    assert f'dependencies = ["thunder-core{wanted}' in new_plugin.files_of("acme", fusion=False)["pyproject.toml"]


@pytest.mark.parametrize("name", ["", "Acme", "acme-kernels", "2acme", "acme__x", "_acme", "acme_", "a/b", "äcme"])
def test_what_is_no_name(name: str) -> None:
    """The message says what a name is made of."""
    assert "use lower-case letters, digits and underscores" in str(new_plugin.why_bad(name))


@pytest.mark.parametrize("name", ["torch", "python", "torch_compile", "thunder", "core", "class", "import"])
def test_reserved_names(name: str) -> None:
    """An executor of thunder's, or a word of Python's."""
    assert "is reserved" in str(new_plugin.why_bad(name))


def test_other_bad_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long, or taken by a plugin that is installed here: one of two plugins of a name is blocked."""
    assert "has 31 characters; the most is 30" in str(new_plugin.why_bad("a" * 31))
    assert new_plugin.why_bad("a" * 30) is None
    taken = type("Record", (), {"name": "acme", "source": "thunder-ex-acme 1.0"})
    monkeypatch.setattr(new_plugin, "quiet_records", lambda: (taken,))
    assert "thunder-ex-acme 1.0 already provides a plugin named 'acme'" in str(new_plugin.why_bad("acme"))


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory with files and a file are left as they are; an empty directory may be given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for target in ("full", "file"):
        assert main(["new-plugin", "zebra", "--into", target]) == 2
        assert f"thunder new-plugin: {target} " in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["README.md"]
    (tmp_path / "empty").mkdir()
    assert main(["new-plugin", "zebra", "--into", "empty"]) == 0
    assert main(["new-plugin", "zebra"]) == 0
    assert (tmp_path / "thunder-ex-zebra" / "pyproject.toml").exists()
    assert main(["new-plugin", "Zebra", "--into", "other"]) == 2
    assert not (tmp_path / "other").exists()


def python(folder: Path, *arguments: str) -> str:
    """Run Python in a folder where the plugin is installed in `site`. Return what it printed."""
    path = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "THUNDER_DISABLE_PLUGINS": "",
        "THUNDER_EXECUTORS": "",
    }
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_fusion_executor_works(tmp_path: Path, monkeypatch) -> None:
    """Its wheel is built by its own build backend, its tests pass, and the suite sees it claim operations."""
    folder = tmp_path / "repository"
    assert main(["new-plugin", "zebra", "--fusion", "--into", str(folder)]) == 0
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    offline = ("--no-deps", "--no-index")
    python(folder, *pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", "dist", ".")
    python(folder, *pip, "install", *offline, "--target", "site", "dist/thunder_ex_zebra-0.1.0-py3-none-any.whl")
    quick = ("-q", "-p", "no:cacheprovider")
    python(folder, "-m", "pytest", *quick, "tests/test_plugin.py", "tests/test_chains.py")
    told = python(folder, "-m", "thunder", "conformance", "zebra", *quick, "-k", "addcmul and float32")
    assert re.search(r"^all +1 +1 +0 +0 +1$", told, re.MULTILINE), told
