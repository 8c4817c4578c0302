# SPDX-License-Identifier: Apache-2.0
"""The sessions of this repository, e.g. ``python -m nox -s tests``; ``python -m nox -l`` lists them.

Every session runs from a fresh clone with only Python and pip. Sessions that need torch use the torch of the
interpreter that runs nox, in any build. They install a torch only if there is none, and never replace it. Requirements
of the packages are read from each package's ``pyproject.toml``, so that they are defined only once.

What all sessions share is in `.ci/environments.py`, and the sessions that build and release in `.ci/releasing.py`.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / ".ci"))

from environments import (
    CORE,
    ENVIRONMENT,
    LITGPT,
    MYPY,
    OLDEST_TORCH,
    PACKAGES,
    PLUGIN_GROUP,
    PYTHONS,
    QUICK,
    RECIPES,
    ROOT,
    TOOLS,
    TRANSFORMERS,
    check_environment,
    install_ours,
    project_of,
    requirements_of,
    separate_environment,
    workers,
)  # fmt: skip
from releasing import build, compat, installs, release_check

__all__ = ["build", "compat", "installs", "release_check"]  # sessions, which nox finds

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "user_types", "imports", "tests"]


# --- running -----------------------------------------------------------------------------------------------------


@nox.session
def demo(session: nox.Session) -> None:
    """Compile a small Llama, show its trace, and compare with eager and torch.compile. Arguments follow `--`."""
    options = install_ours(session, [CORE])
    session.install(*options, "numpy")  # torch warns if it is missing
    session.run("python", str(TOOLS / "demo.py"), *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests of every package, core last. Arguments after `--` are passed to pytest.

    Each package has a separate process: a plugin's tests may need its executors on the CPU (`TRITON_INTERPRET`). Core's
    tests run without plugins, because core's users may have none. Conformance tests that the arguments select (e.g.
    with `-k unfold`) run for every installed executor.
    """
    install_ours(session, PACKAGES, ["tests"])
    check_environment(session)
    if any(Path(each.partition("::")[0]).exists() for each in session.posargs):
        run_tests(session, [])
        return
    plugins = [name for name in PACKAGES if name != CORE]
    for name in plugins:
        run_tests(session, [str(PACKAGES[name] / "tests")])
    if session.posargs:
        run_tests(session, [str(PACKAGES[CORE] / "src" / "thunder" / "tests")])
    session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", *plugins)
    run_tests(session, [str(PACKAGES[CORE] / "tests")])


def run_tests(session: nox.Session, folders: list[str]) -> None:
    """Run pytest on these folders, or with the session's arguments."""
    # 5: no test of this package was selected
    run_pytest(session, folders, success_codes=[0, 5] if session.posargs else [0])


def run_pytest(session: nox.Session, folders: Sequence[str] = (), **options: Any) -> None:
    """Run pytest with the session's arguments, in several processes."""
    session.run(
        "python",
        "-m",
        "pytest",
        "--import-mode=importlib",
        *workers(session.posargs),
        *session.posargs,
        *folders,
        env={**ENVIRONMENT, "THUNDER_VERIFY": os.environ.get("THUNDER_VERIFY", "1")},
        **options,
    )


@nox.session
def browser(session: nox.Session) -> None:
    """Look at HTML pages in a real browser, at several widths and in light and dark. Needs Chromium on the PATH."""
    install_ours(session, [CORE], ["tests"])
    folder = str(PACKAGES[CORE] / "tests" / "browser")
    session.run("python", "-m", "pytest", "-ra", *session.posargs, folder, env={**ENVIRONMENT, "TEST_BROWSER": "1"})


@nox.session(python=PYTHONS)
def versions(session: nox.Session) -> None:
    """Run core's tests on another Python (`nox -s versions-3.13`), with its newest torch or with THUNDER_TORCH.

    Unlike the other sessions, this session installs a separate torch: `THUNDER_TORCH=torch==2.11.0 nox -s
    versions-3.12`.
    """
    session.install(os.environ.get("THUNDER_TORCH", "torch"))
    session.install(*requirements_of(CORE, ["tests"]))
    session.install("--no-deps", "--editable", str(PACKAGES[CORE]))
    check_environment(session)
    run_pytest(session, () if session.posargs else [str(PACKAGES[CORE] / "tests")])


@nox.session
@nox.parametrize("package", list(PACKAGES), ids=list(PACKAGES))
def conformance(session: nox.Session, package: str) -> None:
    """Run the conformance suite of each package in a separate environment; `-- --with WHEEL` tests a vendor's wheel."""
    arguments = list(session.posargs)
    if "--with" not in arguments:
        install_ours(session, dict.fromkeys([CORE, package]), ["tests"])
        plugins = project_of(package)["project"].get("entry-points", {}).get(PLUGIN_GROUP)
        prove(session, [] if plugins else ["torch"], arguments)
        return
    if package != CORE:
        session.skip("--with selects another wheel to test")
    where = arguments.index("--with")
    if where + 1 == len(arguments):
        session.error(
            "--with needs the path of a wheel: nox -s conformance -- --with thunder_ex_acme-0.1-py3-none-any.whl"
        )
    wheel = Path(session.invoked_from, arguments[where + 1])
    del arguments[where : where + 2]
    with zipfile.ZipFile(wheel) as archive:
        listed = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        announced = "".join(archive.read(name).decode() for name in listed)
    if f"[{PLUGIN_GROUP}]" not in announced:
        session.error(f"{wheel.name} provides no plugin: it has no entry point in the group {PLUGIN_GROUP!r}")
    options = install_ours(session, [CORE], ["tests"])
    session.install(*options, str(wheel))
    prove(session, [], arguments)


@nox.session
def conformance_full(session: nox.Session) -> None:
    """Test the torch and python executors on every dtype and sample, and gradients with finite differences. Slow."""
    install_ours(session, [CORE], ["tests"])
    for executor in ("torch", "python"):
        prove(session, [executor], ["--thunder-full", *session.posargs])


@nox.session
def coexist(session: nox.Session) -> None:
    """Test all packages in one environment: each plugin loads, and plugins that can run here pass the suite."""
    install_ours(session, PACKAGES, ["tests"])
    check_environment(session)
    session.run("python", "-m", "thunder", "doctor")
    session.run("python", str(TOOLS / "demo.py"), env=ENVIRONMENT)
    prove(session, [], list(session.posargs))


@nox.session
def interrupts(session: nox.Session) -> None:
    """Raise an exception at every line of thunder that tracing a program runs. Check that all state is restored."""
    install_ours(session, [CORE], ["tests"])
    check_environment(session)
    session.run(
        "python",
        "-m",
        "pytest",
        *workers(session.posargs),
        str(PACKAGES[CORE] / "tests" / "capture" / "test_interrupts.py"),
        *session.posargs,
        env={**ENVIRONMENT, "THUNDER_INTERRUPTS": "all"},
    )


@nox.session
def surface(session: nox.Session) -> None:
    """Call every public name of torch through thunder.jit and compare with torch. Arguments follow `--`."""
    install_ours(session, [CORE], ["tests"])
    session.run("python", "-m", "surface", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def operator_versions(session: nox.Session) -> None:
    """Check the list of operations and the versions that changed them; `-- --write` updates it."""
    install_ours(session, [CORE])
    session.run("python", "-m", "operator_versions", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def device(session: nox.Session) -> None:
    """Run thunder on a device that is neither CPU nor CUDA (torch's PrivateUse1). Needs a C++ compiler."""
    install_ours(session, [CORE], ["tests"])
    folder = str(PACKAGES[CORE] / "tests" / "devices")
    session.run("python", "-m", "pytest", "-ra", *session.posargs, folder, env={**ENVIRONMENT, "TEST_DEVICE": "1"})


@nox.session
def soak(session: nox.Session) -> None:
    """Compare random programs with eager; `-- --minutes 30`, `-- --enumerate` and `-- --classes` run more."""
    options = install_ours(session, [CORE], ["tests"])
    session.install(*options, "numpy")
    session.run("python", "-m", "soak", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def threads(session: nox.Session) -> None:
    """Serve, retrace, save and fork on many threads, then train and serve; `-- --minutes 60` for an hour of threads."""
    install_ours(session, [CORE], ["tests"])
    session.run("python", "-m", "soak.threads", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def changes(session: nox.Session) -> None:
    """Change what saved programs depend on, and compare with eager in new processes; `-- -k NAME` runs one."""
    options = install_ours(session, [CORE], ["tests"])
    session.install(*options, "numpy")
    session.run("python", "-m", "saved_changes", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def saved_versions(session: nox.Session) -> None:
    """Save programs with several Pythons and torches: each must read its own, and refuse those of the others.

    Each Python of this machine has its newest torch, and the first one the oldest that we support, too. They are
    installed anew, which takes some GB each; `-- PYTHON...` names interpreters that have torch and thunder instead.
    """
    interpreters = list(session.posargs)
    if not interpreters:
        pythons = [found for python in PYTHONS if (found := shutil.which(f"python{python}"))]
        wanted = [(python, "torch") for python in pythons] + [(python, OLDEST_TORCH) for python in pythons[:1]]
        interpreters = [separate_environment(session, python, torch) for python, torch in wanted]
    tool = str(TOOLS / "saved_versions.py")
    session.run(interpreters[0], tool, *interpreters, external=True, env=ENVIRONMENT)


@nox.session
def mutants(session: nox.Session) -> None:
    """Take one guard after the other out of thunder, and check that the soak finds it; `-- -k NAME` runs one."""
    options = install_ours(session, [CORE], ["tests"])
    session.install(*options, "numpy")
    session.run("python", "-m", "soak.mutants", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def operators(session: nox.Session) -> None:
    """Run PyTorch's operator database through thunder.jit and compare with eager; takes arguments after `--`."""
    install_ours(session, [CORE], ["tests"])
    session.install("scipy")  # samples of some operators are made by it
    check_environment(session)
    session.run("python", "-m", "operator_database", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def models(session: nox.Session) -> None:
    """Run the tables of models: our own, Transformers' and LitGPT's. Arguments after `--` are passed to pytest."""
    options = install_ours(session, [CORE], ["tests"])
    session.install(*options, TRANSFORMERS, "psutil")
    # LitGPT and Lightning require more than the model needs, including other versions of Transformers' libraries.
    session.install("--no-deps", *LITGPT)
    check_environment(session)
    suites = sorted((PACKAGES[CORE] / "tests" / "models").glob("suite_*.py"))
    session.run(
        "python",
        "-m",
        "pytest",
        *workers(session.posargs),
        *map(str, suites),
        *session.posargs,
        env={**ENVIRONMENT, "THUNDER_VERIFY": os.environ.get("THUNDER_VERIFY", "1")},
    )


@nox.session
def recipes(session: nox.Session) -> None:
    """Run the recipes of docs/recipes, also those with Transformers' and Lightning's trainers."""
    options = install_ours(session, [CORE], ["tests"])
    session.install(*options, *RECIPES)
    check_environment(session)
    folder = str(PACKAGES[CORE] / "tests" / "recipes")
    session.run("python", "-m", "pytest", *session.posargs, folder, env={**ENVIRONMENT, "TEST_RECIPES": "1"})


@nox.session
def programs(session: nox.Session) -> None:
    """Run programs of other projects through thunder.jit and compare with eager; takes arguments after `--`.

    `-- --how eager` only checks the examples, `-- -k PATTERN` selects programs, and `-- --results FILE` goes on where
    an interrupted run ended.
    """
    options = install_ours(session, [CORE], ["tests"])
    # Installed one after the other: the requirements of so many projects on each other's libraries would conflict.
    for module in sorted((TOOLS / "programs" / "projects").glob("[a-z]*.py")):
        requires, dependencies = requirements_of_programs(module)
        session.install(*options, *([] if dependencies else ["--no-deps"]), *requires)
    session.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio")
    check_environment(session)
    environment = {**ENVIRONMENT, "PYTHONPATH": str(TOOLS), "HF_HUB_OFFLINE": "1"}
    session.run("python", "-m", "programs", *session.posargs, env=environment)


def requirements_of_programs(module: Path) -> tuple[list[str], bool]:
    """Return the requirements of a project of `nox -s programs`, and whether to install its dependencies, too."""
    found = [
        node for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Project"
    ]  # fmt: skip
    keywords = {each.arg: ast.literal_eval(each.value) for each in found[0].keywords}
    return keywords["requires"], not keywords.get("without_dependencies", False)


def prove(session: nox.Session, executor: list[str], arguments: list[str]) -> None:
    """Run the conformance suite for an executor, or for every plugin of the environment if no executor is named."""
    session.run("python", "-m", "thunder", "conformance", *executor, *workers(arguments), *arguments, env=ENVIRONMENT)


# --- static checks------------------------------------------------------------------------------------------------


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff: its rules and its formatter."""
    session.install("ruff==0.17.*")
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Run mypy.

    It is strict for the API of plugins and users (see pyproject.toml), and does not follow torch's types.
    """
    session.install(MYPY, *(text for name in PACKAGES for text in requirements_of(name)))
    session.run("mypy", *session.posargs)


@nox.session
def user_types(session: nox.Session) -> None:
    """Check a program that uses thunder with mypy, including torch's types."""
    options = install_ours(session, [CORE])
    session.install(*options, MYPY)
    program = PACKAGES[CORE] / "tests" / "typing" / "check_types.py"
    session.run("python", str(program), env={"MYPYPATH": str(PACKAGES[CORE] / "src")})


@nox.session
def imports(session: nox.Session) -> None:
    """Run import-linter. A module imports only from its layer or a lower layer, and loads no more than it may."""
    session.install("import-linter==2.*")
    sources = os.pathsep.join(str(path / "src") for path in PACKAGES.values())
    for config in ("pyproject.toml", "importlinter-loading.toml"):
        session.run("lint-imports", "--config", config, *session.posargs, env={"PYTHONPATH": sources})


@nox.session
def hosting(session: nox.Session) -> None:
    """Check the files that a public host reads, by their schemas: workflows, forms of issues and CITATION.cff."""
    session.install("check-jsonschema==0.*")
    host, template = ROOT / ".github", PACKAGES[CORE] / "src" / "thunder" / "cli" / "plugin_template"
    forms = sorted((host / "ISSUE_TEMPLATE").glob("*.yml"))
    files = {
        "github-workflows": [*(host / "workflows").glob("*.yml"), *template.rglob("workflows/*.template")],
        "github-issue-forms": [path for path in forms if path.name != "config.yml"],
        "github-issue-config": [host / "ISSUE_TEMPLATE" / "config.yml"],
        "citation-file-format": [ROOT / "CITATION.cff"],
    }
    for schema, paths in files.items():
        options = ["--builtin-schema", f"vendor.{schema}", "--default-filetype", "yaml"]
        session.run("check-jsonschema", *options, *map(str, paths))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build. A warning is an error."""
    install_ours(session, [CORE], ["docs"])
    target = ROOT / "docs" / "_build" / "html"
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-E", *session.posargs, "docs", str(target))
    session.log(f"open {target.relative_to(ROOT) / 'index.html'}")


# --- measuring and watching --------------------------------------------------------------------------------------


@nox.session
def bench(session: nox.Session) -> None:
    """Time compilation and calls on the CPU; `-- --json FILE` keeps it, `-- --against FILE` fails if 5 % slower.

    `-- --suite passes` runs one of the suites. Numbers of different machines cannot be compared.
    """
    options = install_ours(session, [CORE], ["tests"])
    session.install(*options, "numpy")
    check_environment(session)
    session.run("python", "-m", "bench", *session.posargs, env={**ENVIRONMENT, "PYTHONPATH": str(TOOLS)})


@nox.session
def nightly(session: nox.Session) -> None:
    """Run the canaries of torch's private names, then quick tests, with torch's nightly build or THUNDER_TORCH.

    pip finds nightly builds in the index that `PIP_EXTRA_INDEX_URL` names. `THUNDER_TORCH=installed` keeps the torch of
    the interpreter that runs nox.
    """
    asked = os.environ.get("THUNDER_TORCH", "")
    if asked == "installed":
        install_ours(session, [CORE], ["tests"])
    else:
        session.install(*([asked] if asked else ["--pre", "torch"]))
        session.install(*requirements_of(CORE, ["tests"]))
        session.install("--no-deps", "--editable", str(PACKAGES[CORE]))
    check_environment(session)
    tests = PACKAGES[CORE] / "tests"
    canaries = [
        *sorted((tests / "torch").glob("test_private*.py")),
        *sorted((tests / "runtime").glob("test_torch_*.py")),
    ]
    run_pytest(session, list(map(str, canaries)), success_codes=[0])
    run_pytest(session, [str(tests / name) for name in QUICK], success_codes=[0])
