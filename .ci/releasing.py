# SPDX-License-Identifier: Apache-2.0
"""The nox sessions that build, check and install what is released."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from pathlib import Path

import nox
from environments import (
    CORE,
    DIST,
    ENVIRONMENT,
    PACKAGES,
    PLUGIN_GROUP,
    PYTHONS,
    TOOLS,
    project_of,
    provide_torch,
    requirements_of,
    workers,
)
from packaging.requirements import Requirement

PASSED = "passed"
HERE = "this commit"
# What pytest does with the warnings of `thunder/core/deprecations.py`: a plugin that causes none works with the next
# minor version of thunder-core, too.
DEPRECATIONS = "filterwarnings=error:.*is deprecated since thunder-core:DeprecationWarning"
PROGRAM = """
import sys, torch, thunder
x = torch.randn(3, requires_grad=True)
f = thunder.jit(lambda x: (x.sin() * 2).sum())
f(x).backward()
torch.testing.assert_close(x.grad, x.cos() * 2)
assert thunder.cache_misses(f) == 1
print("a program runs: Python", sys.version.split()[0], "torch", torch.__version__)
"""

__all__ = ["build", "compat", "installs", "release_check"]


def build_package(session: nox.Session, name: str, output: Path) -> Path:
    """Build wheel and sdist of a package, with the date of the last commit. Return the wheel."""
    shutil.rmtree(output, ignore_errors=True)
    date = session.run(
        "git", "log", "-1", "--format=%ct", external=True, silent=True, log=False, success_codes=[0, 128]
    )
    epoch = str(date).strip() if str(date).strip().isdigit() else "315532800"  # the first date that a zip file can have
    command = ["python", "-m", "build", "--no-isolation", "--outdir", str(output), str(PACKAGES[name])]
    session.run(*command, env={"SOURCE_DATE_EPOCH": epoch}, silent=True)
    (wheel,) = output.glob("*.whl")
    return wheel


def install_builders(session: nox.Session) -> None:
    """Install what builds our packages, and what reads their metadata."""
    session.install("build==1.*", "hatchling>=1.26", "packaging>=22", "tomli")


@nox.session
def build(session: nox.Session) -> None:
    """Build wheel and sdist of every package into dist/, check both, and import the wheel in a bare environment."""
    install_builders(session)
    for name in PACKAGES:
        build_package(session, name, DIST / name)
    session.run("python", str(TOOLS / "release_files.py"), *PACKAGES, "--dist", str(DIST))
    for name in PACKAGES:
        check_import(session, [name])


@nox.session
def release_check(session: nox.Session) -> None:
    """Check that packages can be released; `-- PACKAGE` checks one, the default is all.

    Everything is built twice, and the files must be the same. `installs`, which then runs on each Python, is a session
    of its own.
    """
    names = list(session.posargs) or list(PACKAGES)
    if unknown := sorted(set(names) - set(PACKAGES)):
        session.error(f"there is no package {', '.join(unknown)}; the packages are {', '.join(PACKAGES)}")
    install_builders(session)
    session.install("twine==6.*", "check-wheel-contents==0.6.*", "validate-pyproject[all]", *requirements_of(CORE))
    again = Path(session.create_tmp()).resolve() / "again"
    for name in dict.fromkeys([CORE, *names]):
        build_package(session, name, DIST / name)
        build_package(session, name, again / name)
    checks = [["python", str(TOOLS / "release_files.py"), *names, "--dist", str(DIST), "--again", str(again)]]
    for name in names:
        toplevel = "thunder,pytest_thunder.py" if name == CORE else name.replace("-", "_")
        (wheel,), (sdist,) = (DIST / name).glob("*.whl"), (DIST / name).glob("*.tar.gz")
        checks += [
            ["twine", "check", "--strict", str(wheel), str(sdist)],
            ["check-wheel-contents", "--ignore", "W002", "--toplevel", toplevel, str(wheel)],  # W002: equal files
            ["validate-pyproject", str(PACKAGES[name] / "pyproject.toml")],
        ]
    path = os.pathsep.join(map(str, (TOOLS, PACKAGES[CORE] / "src")))
    checks.append(["python", "-m", "release_check", *names])
    failed = []
    for check in checks:
        try:
            session.run(*check, env={"PYTHONPATH": path} if check[0] == "python" else {})
        except nox.command.CommandFailed:
            failed.append(" ".join(map(os.path.basename, check)))
    for python in PYTHONS:
        session.notify(f"installs-{python}", names)
    if failed:
        session.error("these checks failed:\n" + "\n".join(failed))


@nox.session(python=PYTHONS)
def installs(session: nox.Session) -> None:
    """Install each wheel of dist/ alone, and all together, in fresh environments of each Python.

    They are imported without torch. With THUNDER_TORCH, e.g. `torch==2.13.0`, pip then installs that torch, too, and
    a program is compiled and run.
    """
    names = list(session.posargs) or list(PACKAGES)
    if not all(any((DIST / name).glob("*.whl")) for name in {*names, CORE}):
        session.error("dist/ has no wheels: run `nox -s build` or `nox -s release_check` first")
    for chosen in [*([name] for name in names), *([list(PACKAGES)] if len(names) > 1 else [])]:
        check_import(session, chosen, os.environ.get("THUNDER_TORCH"))


def check_import(session: nox.Session, names: list[str], torch: str | None = None) -> None:
    """Import wheels of dist/ in a fresh environment outside of the checkout, with dependencies but without torch.

    If a torch is given, it is installed afterwards, and a program runs with gradients.
    """
    scratch = Path(session.create_tmp()).resolve() / "import"
    shutil.rmtree(scratch, ignore_errors=True)
    session.run("python", "-m", "venv", str(scratch))
    python = next(path for path in (scratch / "bin" / "python", scratch / "Scripts" / "python.exe") if path.exists())
    wheels = [str(wheel) for name in dict.fromkeys([CORE, *names]) for wheel in (DIST / name).glob("*.whl")]
    modules = ["thunder" if name == CORE else name.replace("-", "_") for name in names]
    plugins = sum(PLUGIN_GROUP in project_of(name)["project"].get("entry-points", {}) for name in names)
    code = f"import {', '.join(modules)}, json, subprocess, sys; assert 'torch' not in sys.modules; "
    code += f"print(*[(m.__name__, m.__version__, m.__file__) for m in ({', '.join(modules)},)]); "
    code += "told = subprocess.check_output([sys.executable, '-I', '-m', 'thunder', 'plugins', '--json']); "
    code += f"assert len(json.loads(told)) == {plugins}, told"  # the command line needs no torch
    needed = dict.fromkeys(text for name in names for text in requirements_of(name))
    with session.chdir(scratch):
        session.run(str(python), "-m", "pip", "install", "--quiet", *needed, external=True)
        session.run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", *wheels, external=True)
        session.run(str(python), "-I", "-c", code, external=True)
        if torch:
            session.run(str(python), "-m", "pip", "install", "--quiet", torch, external=True)
            session.run(str(python), "-I", "-m", "thunder", "doctor", external=True)
            session.run(str(python), "-I", "-c", PROGRAM, external=True)
    shutil.rmtree(scratch)


@nox.session
def compat(session: nox.Session) -> None:
    """Run the tests of plugins with wheels of several versions of thunder-core: of older commits, and of this one.

    `-- PACKAGE...` selects plugins. The older commit is the newest tag `thunder-core-*`, and without a tag the commit
    before; `-- --core REVISION` names others. Versions can be simulated, as commits between releases have the same
    one: `-- --core REVISION=0.1.0 --this 0.2.0`. The range that a plugin declares may only contain versions that pass.
    It may also contain the next minor version, as deprecations are errors in these tests.
    """
    parser = argparse.ArgumentParser(prog="nox -s compat --")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--core", action="append", metavar="REVISION[=VERSION]", help="an older commit, or several")
    parser.add_argument("--this", metavar="VERSION", help="the version that this commit's core gets")
    options = parser.parse_args(session.posargs)
    plugins = [name for name in PACKAGES if name != CORE]
    if unknown := sorted(set(options.packages) - set(plugins)):
        session.error(f"there is no plugin {', '.join(unknown)}; the plugins are {', '.join(plugins)}")
    chosen = options.packages or plugins
    install_builders(session)
    older = [each.partition("=")[::2] for each in options.core or [previous_core(session)]]
    cores = [(what, core_of(session, what, version)) for what, version in [*older, (HERE, options.this)]]
    restrictions = provide_torch(session)
    needed = (text for name in chosen for text in requirements_of(name))
    session.install(*restrictions, *requirements_of(CORE, ["tests"]), *dict.fromkeys(needed))
    rows: dict[str, dict[str, str]] = {name: {} for name in chosen}
    for what, core in cores:
        session.install("--no-deps", "--force-reinstall", str(core))
        for name in chosen:
            wheel = build_package(session, name, Path(session.create_tmp()).resolve() / name)
            session.install("--no-deps", "--force-reinstall", str(wheel))
            rows[name][f"{core.name.split('-')[1]} ({what})"] = try_plugin(session, name)
            session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", name)
    problems = [problem for name in chosen for problem in compare_range(session, name, rows[name])]
    if problems:
        session.error("\n".join(problems))


def core_of(session: nox.Session, revision: str, version: str | None) -> Path:
    """Build the wheel of thunder-core as it is here or in a commit, under another version if one is given."""
    scratch = Path(session.create_tmp()).resolve() / re.sub(r"\W+", "-", f"core of {revision} {version or ''}")
    shutil.rmtree(scratch, ignore_errors=True)
    sources = scratch / "packages" / CORE
    if revision == HERE:
        shutil.copytree(PACKAGES[CORE], sources, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        scratch.mkdir()
        archive = str(scratch / "core.tar")
        session.run("git", "archive", f"--output={archive}", revision, f"packages/{CORE}", external=True)
        shutil.unpack_archive(archive, scratch)
    files = {"version": sources / "pyproject.toml", "__version__": sources / "src" / "thunder" / "__init__.py"}
    for name, path in files.items() if version else ():
        text = re.sub(rf'(?m)^{name} = ".*"$', f'{name} = "{version}"', path.read_text("utf-8"), count=1)
        path.write_text(text, encoding="utf-8")
    session.run("python", "-m", "build", "--no-isolation", "--wheel", f"--outdir={scratch}", str(sources), silent=True)
    (wheel,) = scratch.glob("*.whl")
    return wheel


def compare_range(session: nox.Session, name: str, outcomes: dict[str, str]) -> list[str]:
    """Print what happened with each version of thunder-core, and return where the declared range is wrong."""
    requirements = map(Requirement, project_of(name)["project"]["dependencies"])
    (allowed,) = (each.specifier for each in requirements if each.name == CORE)
    session.log(f"{name} declares {CORE}{allowed}")
    problems = []
    for version, outcome in outcomes.items():
        session.log(f"    {version}: {outcome}")
        number = version.split()[0]
        if outcome.startswith(PASSED) != allowed.contains(number, prereleases=True):
            wrong = f"does not contain {version}, with which it passes" if outcome.startswith(PASSED) else ""
            problems.append(f"{name}: its range {allowed} {wrong or f'contains {version}, but {outcome}'}")
    if len({version.split()[0] for version in outcomes}) < len(outcomes):
        session.log(
            "    some have the same version, so a range cannot tell them apart: name others by REVISION=VERSION"
        )
    return problems


def previous_core(session: nox.Session) -> str:
    """Return the newest tag of thunder-core, or the commit before this one if there is no tag."""
    command = ["git", "tag", "--list", f"{CORE}-*", "--sort=-version:refname", "--no-contains", "HEAD"]
    tags = str(session.run(*command, external=True, silent=True, log=False)).split()
    return tags[0] if tags else "HEAD~1"


def try_plugin(session: nox.Session, name: str) -> str:
    """Run a plugin's tests, and a quick part of the conformance suite if it can run here. Return what happened."""
    plugin = next(iter(project_of(name)["project"]["entry-points"][PLUGIN_GROUP]))
    doctor = ["python", "-m", "thunder", "doctor", plugin, "--json"]
    report = json.loads(str(session.run(*doctor, silent=True, success_codes=[0, 1])))
    (found,) = (each for each in report["plugins"] if each["name"] == plugin)
    if found["state"] not in ("ready", "unavailable"):
        return f"{found['state']}: {found['reason']}"
    tests = ["python", "-m", "pytest", "-q", "--import-mode=importlib", *workers([]), "-o", DEPRECATIONS]
    tests.append(str(PACKAGES[name] / "tests"))
    suite = ["python", "-m", "thunder", "conformance", plugin, "-q", "-k", "float32 and (mul or softmax)"]
    commands = {"its tests fail": tests, **({"conformance fails": suite} if found["state"] == "ready" else {})}
    for failure, command in commands.items():
        try:
            session.run(*command, env=ENVIRONMENT, success_codes=[0, 5])  # 5: no test was selected
        except nox.command.CommandFailed:
            return failure
    return PASSED if found["state"] == "ready" else f"{PASSED} (without the conformance suite: {found['reason']})"
