# SPDX-License-Identifier: Apache-2.0
"""The environments of nox sessions: constants, requirements, and the torch of the interpreter that runs nox."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path

import nox
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {path.parent.name: path.parent for path in sorted((ROOT / "packages").glob("*/pyproject.toml"))}
CORE = "thunder-core"
TOOLS = PACKAGES[CORE] / "tools"
TORCH = "torch==2.13.0"
OLDEST_TORCH = "torch==2.11.0"
MYPY = "mypy==2.4.*"
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
TRANSFORMERS = "transformers==5.23.*"
LITGPT = ["litgpt==0.5.13", "lightning==2.6.1", "lightning-utilities==0.15.*", "torchmetrics==1.9.*"]
RECIPES = [TRANSFORMERS, "accelerate==1.*", "lightning==2.6.*"]
PLUGIN_GROUP = "thunder.executors.v1"
DIST = ROOT / "dist"
# What `nightly` runs of core's tests: a part of each layer.
QUICK = ["test_golden_traces.py", "test_compositions.py", "passes", "execution", "capture/guards", "plugins"]

# Two workers, each with one torch thread: more threads would only contend on small tensors.
WORKERS = ["-n", "2"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "THUNDER_CACHE": "0"}


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


def separate_environment(session: nox.Session, python: str, torch: str) -> str:
    """Make an environment of another Python with a torch and thunder-core. Return its interpreter."""
    folder = Path(session.create_tmp()).resolve() / f"{Path(python).name}-{torch}"
    session.run(python, "-m", "venv", "--clear", str(folder), external=True)
    interpreter = str(folder / "bin" / "python")
    install = [interpreter, "-m", "pip", "install", "--quiet"]
    session.run(*install, torch, *requirements_of(CORE), external=True)
    session.run(*install, "--no-deps", "--editable", str(PACKAGES[CORE]), external=True)
    return interpreter


def check_environment(session: nox.Session) -> None:
    """Print the environment of the session, so that it is in the log."""
    names = "sys.version.split()[0], 'torch', torch.__version__, torch.__file__, 'thunder', thunder.__version__"
    session.run("python", "-c", f"import sys, torch, thunder; print('python', {names})")


def workers(arguments: Iterable[str]) -> list[str]:
    """Return pytest's options for several processes, unless the arguments set them or ask for a debugger."""
    return [] if any(each.startswith(("-n", "--numprocesses", "--pdb", "-s")) for each in arguments) else WORKERS
