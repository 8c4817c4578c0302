# SPDX-License-Identifier: Apache-2.0
"""The nox sessions that build, check and install what is released."""

from __future__ import annotations

import json
import os
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
    """Run the tests of plugins with built wheels of two versions of thunder-core: this one, and an older one.

    The older one is the commit `-- --core REVISION`, by default the newest tag `thunder-core-*`, and without a tag the
    commit before. The range that a plugin declares may only contain versions that pass. It may also contain the next
    minor version, as deprecations are errors in these tests. `-- PACKAGE` selects plugins.
    """
    arguments = list(session.posargs)
    revision = arguments.pop(arguments.index("--core") + 1) if "--core" in arguments else previous_core(session)
    chosen = [each for each in arguments if each != "--core"] or [name for name in PACKAGES if name != CORE]
    install_builders(session)
    scratch = Path(session.create_tmp()).resolve()
    older = scratch / "older"
    shutil.rmtree(older, ignore_errors=True)
    session.run("git", "worktree", "prune", external=True)
    session.run("git", "worktree", "add", "--detach", str(older), revision, external=True)
    try:
        cores = [build_package(session, CORE, scratch / "new")]
        command = ["python", "-m", "build", "--no-isolation", "--wheel", "--outdir", str(scratch / "old")]
        shutil.rmtree(scratch / "old", ignore_errors=True)
        session.run(*command, str(older / "packages" / CORE), silent=True)
        cores += (scratch / "old").glob("*.whl")
    finally:
        session.run("git", "worktree", "remove", "--force", str(older), external=True)
    options = provide_torch(session)
    session.install(*options, *requirements_of(CORE, ["tests"]), *(t for name in chosen for t in requirements_of(name)))
    rows: dict[str, dict[str, str]] = {name: {} for name in chosen}
    for core, what in zip(cores, ("this commit", revision)):
        version = core.name.split("-")[1]
        session.install("--no-deps", "--force-reinstall", str(core))
        for name in chosen:
            wheel = build_package(session, name, scratch / name)
            session.install("--no-deps", "--force-reinstall", str(wheel))
            rows[name][f"{version} ({what})"] = try_plugin(session, name)
            session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", name)
    problems = [problem for name in chosen for problem in compare_range(session, name, rows[name])]
    if problems:
        session.error("\n".join(problems))


def compare_range(session: nox.Session, name: str, outcomes: dict[str, str]) -> list[str]:
    """Print what happened with each version of thunder-core, and return where the declared range is wrong."""
    requirements = map(Requirement, project_of(name)["project"]["dependencies"])
    (allowed,) = (each.specifier for each in requirements if each.name == CORE)
    session.log(f"{name} declares {CORE}{allowed}")
    problems = []
    for version, outcome in outcomes.items():
        session.log(f"    {version}: {outcome}")
        number = version.split()[0]
        if outcome.startswith(PASSED) != (number in allowed):
            wrong = f"does not contain {version}, with which it passes" if outcome.startswith(PASSED) else ""
            problems.append(f"{name}: its range {allowed} {wrong or f'contains {version}, but {outcome}'}")
    if len({version.split()[0] for version in outcomes}) == 1:
        session.log(f"    both have the version {number}, so a range cannot tell them apart")
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
