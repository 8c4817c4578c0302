# SPDX-License-Identifier: Apache-2.0
"""The sessions of this repository, e.g. ``python -m nox -s tests``; ``python -m nox -l`` lists them.

Every session runs from a fresh clone with only Python and pip. Sessions that need torch use the torch of the
interpreter that runs nox, in any build. They install a torch only if there is none, and never replace it. Requirements
of the packages are read from each package's ``pyproject.toml``, so that they are defined only once.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent
PACKAGES = {path.parent.name: path.parent for path in sorted((ROOT / "packages").glob("*/pyproject.toml"))}
CORE = "thunder-core"
TOOLS = PACKAGES[CORE] / "tools"
TORCH = "torch==2.13.0"
MYPY = "mypy==2.4.*"
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
TRANSFORMERS = "transformers==5.23.*"
LITGPT = ["litgpt==0.5.13", "lightning==2.6.1", "lightning-utilities==0.15.*", "torchmetrics==1.9.*"]
RECIPES = [TRANSFORMERS, "accelerate==1.*", "lightning==2.6.*"]
PLUGIN_GROUP = "thunder.executors.v1"

# Two workers, each with one torch thread: more threads would only contend on small tensors.
WORKERS = ["-n", "2"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "THUNDER_CACHE": "0"}

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "user_types", "imports", "tests"]


# --- helpers ---------------------------------------------------------------------------------------------------


def project_of(name: str) -> dict:
    """Return the parsed pyproject.toml of a package of this repository."""
    return nox.project.load_toml(PACKAGES[name] / "pyproject.toml")


def requirements_of(name: str, extras: Iterable[str] = ()) -> list[str]:
    """Return a package's external requirements without torch. Requirements on our own packages are followed."""
    project = project_of(name)["project"]
    optional = project.get("optional-dependencies", {})
    texts = [*project.get("dependencies", ()), *(text for extra in extras for text in optional.get(extra, ()))]
    found: list[str] = []
    for text in texts:
        requirement = Requirement(text)
        wanted = canonicalize_name(requirement.name)
        if wanted == name:
            found += requirements_of(name, requirement.extras)
        elif wanted in PACKAGES:
            found += requirements_of(wanted, requirement.extras)
        elif wanted != "torch":
            found.append(text)
    return list(dict.fromkeys(found))


def torch_directories() -> list[str]:
    """Return the directories of torch and its requirements in the interpreter that runs nox.

    Empty if it has no torch.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return []
    found = [str(Path(spec.origin).resolve().parents[1])]
    pending, seen = ["torch"], set()
    while pending:
        name = canonicalize_name(pending.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found.append(str(Path(str(distribution.locate_file(""))).resolve()))
        needed = map(Requirement, distribution.requires or ())
        pending += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return list(dict.fromkeys(found))


def python_says(session: nox.Session, code: str) -> str:
    """Return the text that the session's interpreter prints for `code`."""
    return str(session.run("python", "-c", code, silent=True, log=False)).strip()


def provide_torch(session: nox.Session) -> list[str]:
    """Provide a torch to the session. Return the pip options that keep pip from installing another torch.

    An existing torch is made available through a ``.pth`` file. Its directories come after the session's own packages.
    Packages that the session installs therefore take precedence, and pip considers torch installed.
    (``--system-site-packages`` would miss a torch in a virtual environment, because it adds the packages of the base
    interpreter.)
    """
    site = Path(python_says(session, "import sysconfig; print(sysconfig.get_path('purelib'))"))
    lent = site / "torch_of_the_outer_interpreter.pth"
    if directories := torch_directories():
        lent.write_text("\n".join(directories) + "\n", encoding="utf-8")
        session.log(f"keeping the torch found in {directories[0]}")
    else:
        lent.unlink(missing_ok=True)
        session.install(TORCH)
    version = python_says(session, "import importlib.metadata as m; print(m.version('torch'))")
    constraints = Path(session.create_tmp()).resolve() / "constraints.txt"
    constraints.write_text(f"torch=={version}\n", encoding="utf-8")
    return ["--constraint", str(constraints)]


def install_ours(session: nox.Session, names: Iterable[str], extras: Iterable[str] = ()) -> list[str]:
    """Install our packages from the checkout (editable) after torch. Return pip's options for further installs."""
    options = provide_torch(session)
    names = list(names)
    if outside := [text for name in names for text in requirements_of(name, extras)]:
        session.install(*options, *dict.fromkeys(outside))
    session.install("--no-deps", *(part for name in names for part in ("--editable", str(PACKAGES[name]))))
    return options


def check_environment(session: nox.Session) -> None:
    """Print the environment of the session, so that it is in the log."""
    names = "sys.version.split()[0], 'torch', torch.__version__, torch.__file__, 'thunder', thunder.__version__"
    session.run("python", "-c", f"import sys, torch, thunder; print('python', {names})")


def workers(arguments: Iterable[str]) -> list[str]:
    """Return pytest's options for several processes, unless the arguments set them or ask for a debugger."""
    return [] if any(each.startswith(("-n", "--numprocesses", "--pdb", "-s")) for each in arguments) else WORKERS


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
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build. A warning is an error."""
    install_ours(session, [CORE], ["docs"])
    target = ROOT / "docs" / "_build" / "html"
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "-E", *session.posargs, "docs", str(target))
    session.log(f"open {target.relative_to(ROOT) / 'index.html'}")


# --- releasing -------------------------------------------------------------------------------------------------


@nox.session
def build(session: nox.Session) -> None:
    """Build wheel and sdist of every package into dist/, check both, and import the wheel in a bare environment."""
    session.install("build==1.*")
    target = ROOT / "dist"
    for name, path in PACKAGES.items():
        output = target / name
        shutil.rmtree(output, ignore_errors=True)
        session.run("python", "-m", "build", "--outdir", str(output), str(path))
        (wheel,) = output.glob("*.whl")
        (sdist,) = output.glob("*.tar.gz")
        check_wheel(session, name, wheel)
        check_sdist(session, name, sdist)
        check_import(session, name, wheel)


@nox.session
def release_check(session: nox.Session) -> None:
    """Check that packages can be released: their conformance tables. `-- PACKAGE` checks one; the default is all."""
    session.install(*requirements_of(CORE))  # without torch, which the check does not import
    path = os.pathsep.join(map(str, (TOOLS, PACKAGES[CORE] / "src")))
    session.run("python", "-m", "release_check", *session.posargs, env={"PYTHONPATH": path})


def check_wheel(session: nox.Session, name: str, wheel: Path) -> None:
    """Check a wheel for its types, licence, entry points, static version and (core) the conformance suite."""
    project = project_of(name)["project"]
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
        info = next(file.split("/")[0] for file in files if file.endswith(".dist-info/METADATA"))
        entry_points = archive.read(f"{info}/entry_points.txt").decode() if f"{info}/entry_points.txt" in files else ""
    module = "thunder" if name == CORE else name.replace("-", "_")
    wanted = [f"{module}/__init__.py", f"{module}/py.typed", f"{info}/licenses/LICENSE"]
    wanted += ["thunder/tests/__init__.py", "pytest_thunder.py"] if name == CORE else []
    for file in wanted:
        if file not in files:
            session.error(f"{wheel.name} lacks {file}")
    for group, entries in project.get("entry-points", {}).items():
        for key, value in entries.items():
            if f"[{group}]" not in entry_points or f"{key} = {value}" not in entry_points:
                session.error(f"{wheel.name} has no entry point {key} = {value} in [{group}]")
    if f"-{project['version']}-" not in wheel.name:
        session.error(f"{wheel.name} must have version {project['version']} of {PACKAGES[name]}")
    strangers = {file.split("/")[0] for file in files} - {module, info, "pytest_thunder.py"}
    if strangers:
        session.error(f"{wheel.name} would also install {sorted(strangers)}")


def check_sdist(session: nox.Session, name: str, sdist: Path) -> None:
    """Check that an sdist contains everything needed to build and test again."""
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers()}
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        if file not in files:
            session.error(f"{sdist.name} lacks {file}")
    for folder in ("src/", "tests/"):
        if not any(file.startswith(folder) for file in files):
            session.error(f"{sdist.name} lacks {folder}")


def check_import(session: nox.Session, name: str, wheel: Path) -> None:
    """Import the wheel in a fresh environment outside of the checkout, with its dependencies but without torch."""
    scratch = Path(session.create_tmp()).resolve() / f"import-{name}"
    shutil.rmtree(scratch, ignore_errors=True)
    session.run("python", "-m", "venv", str(scratch))
    python = next(path for path in (scratch / "bin" / "python", scratch / "Scripts" / "python.exe") if path.exists())
    wheels = [str(wheel)]
    if name != CORE:
        wheels += map(str, (ROOT / "dist" / CORE).glob("*.whl"))
    module = "thunder" if name == CORE else name.replace("-", "_")
    code = f"import {module}, sys; assert 'torch' not in sys.modules; print({module}.__file__, {module}.__version__)"
    with session.chdir(scratch):
        session.run(str(python), "-m", "pip", "install", "--quiet", *requirements_of(name), external=True)
        session.run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", *wheels, external=True)
        session.run(str(python), "-I", "-c", code, external=True)
        session.run(str(python), "-I", "-m", "thunder", "plugins", external=True)  # the command line needs no torch
    shutil.rmtree(scratch)
