# SPDX-License-Identifier: Apache-2.0
"""Real wheels in a real environment: built from `vendor/`, installed with pip, found, used, and survived.

One vendor's wheel is as it should be, the others are broken, each in its own way. Everything that loads plugins runs in
other processes, with the scratch site directory on PYTHONPATH; they are few, because each of them imports torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from thunder.plugins.sources import hash_of_sources

VENDOR = Path(__file__).parent / "vendor"

GOOD = "thunder-ex-multimul"
DEADLY = "thunder-ex-segfault"

#: How each plugin ends, and what its reason says.
STATES = {
    ("brokenimport", "thunder-ex-brokenimport"): (
        "failed",
        "import: ModuleNotFoundError: No module named 'acme_kernels'",
    ),
    ("cannotrun", "thunder-ex-cannotrun"): ("unavailable", "needs an Acme accelerator, and this machine has none"),
    ("hookraises", "thunder-ex-hookraises"): ("failed", "thunder_register_transforms: ValueError: transform"),
    ("multimul", GOOD): ("ready", None),
    ("newcore", "thunder-ex-newcore"): ("incompatible", "requires thunder-core>=99, but "),
    ("otherapi", "thunder-ex-otherapi"): ("incompatible", "made for plugin API 2, but this thunder-core has 1"),
    ("twin", "acme-twin"): ("ready", None),
    ("twin", "other-twin"): ("blocked", "acme-twin 1.0 and other-twin 1.0 both provide a plugin named 'twin'"),
}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each vendor, built by its own build backend."""
    scratch = tmp_path_factory.mktemp("vendor")
    sources = shutil.copytree(VENDOR, scratch / "sources", ignore=shutil.ignore_patterns("__pycache__"))
    target = scratch / "wheels"
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(target)]
    pip("wheel", *options, *(str(source) for source in sorted(sources.iterdir())))
    return {source.name: next(target.glob(f"{source.name.replace('-', '_')}-*.whl")) for source in sources.iterdir()}


@pytest.fixture(scope="session")
def site(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site directory with every wheel but the one that crashes."""
    return install(tmp_path_factory, (wheel for name, wheel in wheels.items() if name != DEADLY))


@pytest.fixture(scope="session")
def good_site(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site directory with the vendor's good wheel alone."""
    return install(tmp_path_factory, [wheels[GOOD]])


@pytest.fixture(scope="session")
def deadly_site(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site directory with the good wheel and the one that takes down the process that imports it."""
    return install(tmp_path_factory, [wheels[GOOD], wheels[DEADLY]])


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def install(tmp_path_factory: pytest.TempPathFactory, wheels: Any) -> Path:
    site: Path = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--target", str(site), *map(str, wheels))
    return site


def python(site: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python with what lies in `site` installed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("THUNDER_")}
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "THUNDER_VERIFY": "1", **environ}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=env, check=False, timeout=300
    )


PRELUDE = """
import json, sys, torch, thunder
from thunder import plugins

def states():
    return [[r.name, r.distribution, r.state.value, r.reason] for r in plugins.records()]

def imported():
    return sorted(name for name in sys.modules if name.startswith(("thunder_ex_", "acme_twin", "other_twin")))

def trace(f):
    return str(thunder.last_traces(f)[-1])

def tell(**what):
    print(json.dumps(what))

a, b = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
"""


def script(site: Path, code: str, **environ: str) -> dict[str, Any]:
    """What a script tells, run where the wheels of `site` are installed."""
    done = python(site, "-c", PRELUDE + textwrap.dedent(code), **environ)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "log": done.stderr}


def expect_states(found: list[list[Any]]) -> None:
    assert [(name, distribution) for name, distribution, _, _ in found] == sorted(STATES)
    for name, distribution, state, reason in found:
        expected, words = STATES[name, distribution]
        assert state == expected, (name, reason)
        assert (reason is None) if words is None else reason.startswith(words), (name, reason)


def test_the_vendors_wheel(wheels: dict[str, Path], good_site: Path) -> None:
    """Metadata is enough to list it, before anything of it is imported."""
    assert wheels[GOOD].name == "thunder_ex_multimul-0.1.0-py3-none-any.whl"
    done = python(good_site, "-m", "thunder", "plugins", "--json")
    (told,) = json.loads(done.stdout)
    assert (told["name"], told["state"], told["distribution"]) == ("multimul", "compatible", GOOD)
    assert (told["version"], told["requires_core"]) == ("0.1.0", "<0.3,>=0.1")


def test_everything_installed(site: Path) -> None:
    """`thunder.jit` uses the good plugin unasked; the broken ones are recorded, logged once and leave no trace."""
    told = script(
        site,
        """
        from thunder.extend import get_all_executors, get_default_executors
        before = imported()
        f = thunder.jit(lambda a, b: a * b + 1)
        equal = [torch.equal(f(a, b), a * b + 1), torch.equal(f(b, a), a * b + 1)]

        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        g = thunder.jit(lambda x, y: (x * y).sin())
        g(x, y).sum().backward()
        expected = torch.autograd.grad((x * y).sin().sum(), (x, y))
        close = [torch.allclose(x.grad, expected[0]), torch.allclose(y.grad, expected[1])]

        mixed = thunder.jit(lambda a: a * 2.0)
        equal.append(torch.equal(mixed(a), a * 2.0))
        tell(
            before=before, equal=equal, close=close, trace=trace(f), mixed=trace(mixed),
            backward=str(thunder.last_backward_traces(g)[-1]), states=states(), imported=imported(),
            all=[e.name for e in get_all_executors()], defaults=[e.name for e in get_default_executors()],
            twin=[e.version for e in get_all_executors() if e.name == "twin"],
            options=sorted(plugins.known_options()),
            transforms=[t.name for phase in plugins.PHASES for t in plugins.registered_transforms(phase)],
        )
        """,
    )
    assert told["before"] == []
    assert all(told["equal"]) and all(told["close"])
    assert "multimul(" in told["trace"] and "= torch.mul(" not in told["trace"]
    assert "multimul(" in told["backward"]
    assert "multimul" not in told["mixed"] and "= torch.mul(" in told["mixed"]  # its checker refuses numbers
    expect_states(told["states"])
    assert told["defaults"] == ["multimul", "flex_attention"]
    assert set(told["all"]) == {"multimul", "twin", "torch", "python", "torch_compile", "flex_attention"}
    assert told["twin"] == ["acme"]
    assert (told["options"], told["transforms"]) == ([], [])
    for never in ("thunder_ex_newcore", "thunder_ex_otherapi", "other_twin"):
        assert never not in told["imported"]
    warnings = [line for line in told["log"].splitlines() if "executor plugin" in line]
    assert len(warnings) == 5
    for name in ("brokenimport", "hookraises", "newcore", "otherapi", "twin"):
        assert sum(f"executor plugin {name!r} " in line for line in warnings) == 1


def test_named_executors(site: Path) -> None:
    """Naming one plugin imports no other; naming a broken one gives its reason; an unknown name lists the known."""
    told = script(
        site,
        """
        f = thunder.jit(lambda a, b: a * b, executors=["multimul"])
        f(a, b)
        named = imported()
        errors = {}
        for name in ("brokenimport", "cannotrun", "hookraises", "newcore", "otherapi", "multimull"):
            try:
                thunder.jit(lambda a, b: a * b, executors=[name])(a, b)
            except plugins.PluginLoadError as error:
                errors[name] = str(error)
        tell(trace=trace(f), named=named, errors=errors)
        """,
    )
    assert "multimul(" in told["trace"]
    assert told["named"] and all(name.startswith("thunder_ex_multimul") for name in told["named"])
    reasons = {name: words for (name, _), (_, words) in STATES.items()}
    for name in ("brokenimport", "cannotrun", "hookraises", "newcore", "otherapi"):
        assert f"executor plugin {name!r} " in told["errors"][name]
        assert reasons[name] in told["errors"][name]
    assert "did you mean 'multimul'?" in told["errors"]["multimull"]


COUNT = """
f = thunder.jit(lambda a, b: a * b)
f(a, b)
tell(trace=trace(f), imported=imported(), states=states())
"""


def test_environment_variables(site: Path) -> None:
    """THUNDER_EXECUTORS replaces the defaults and imports nothing else; THUNDER_DISABLE_PLUGINS takes one away."""
    told = script(site, COUNT, THUNDER_EXECUTORS="torch")
    assert "multimul" not in told["trace"] and "= torch.mul(" in told["trace"]
    assert told["imported"] == []
    told = script(site, COUNT, THUNDER_DISABLE_PLUGINS="multimul,acme-twin")
    assert "multimul" not in told["trace"]
    states = {distribution: state for _, distribution, state, _ in told["states"]}
    assert (states[GOOD], states["acme-twin"], states["other-twin"]) == ("blocked", "blocked", "ready")
    assert "thunder_ex_multimul" not in told["imported"]


def test_ops(good_site: Path) -> None:
    """What the plugin's executor claims."""
    done = python(good_site, "-m", "thunder", "ops", "--executor", "multimul", "--json")
    told = json.loads(done.stdout)
    assert (told["executor"], told["version"]) == ("multimul", "0.1.0")
    operator, implementation = told["operations"]
    assert (operator["kind"], operator["runs"]) == ("operator", "multimul")
    assert (implementation["id"], implementation["runs"]) == ("torch.mul", "mul_to_multimul")
    assert implementation["checker"] and implementation["gradient"]


def test_conformance(good_site: Path, tmp_path: Path) -> None:
    """The suite takes the plugin's profile, tests its own operator too, and sees that the executor claimed both.

    The hash in the table, of the installed wheel, is that of the vendor's sources.
    """
    report = tmp_path / "multimul.md"
    name = " or ".join(f"test_core_vs_torch_consistency[{op}-multimul-cpu-float32]" for op in ("mul", "multimul"))
    done = python(good_site, "-m", "thunder", "conformance", "multimul", "-q", "-k", name, f"--thunder-report={report}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conformance of multimul" in done.stdout
    total = next(line.split() for line in done.stdout.splitlines() if line.startswith("all "))
    claimed, passed = int(total[1]), int(total[2])
    assert claimed == passed == 2, done.stdout
    sources = hash_of_sources(VENDOR / GOOD / "src" / "thunder_ex_multimul")
    assert re.search(rf"^Sources: {GOOD} \S+, {sources}\.$", report.read_text(), re.M)


def test_doctor(site: Path) -> None:
    """Every plugin with its end and its reason; the status says that some are broken."""
    done = python(site, "-m", "thunder", "doctor", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    expect_states([[p["name"], p["distribution"], p["state"], p["reason"]] for p in told["plugins"]])
    assert told["torch"]["env"]["torch"]
    assert not told["warnings"]


def test_a_plugin_that_crashes(deadly_site: Path) -> None:
    """It takes down a child of doctor and nothing else."""
    done = python(deadly_site, "-m", "thunder", "doctor")
    assert done.returncode == 1, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert "crashed: killed by SIGSEGV" in lines["segfault"]
    assert lines["multimul"].split()[1] == "ready"
    done = python(deadly_site, "-m", "thunder", "doctor", "segfault")
    assert "thunder_ex_segfault.py" in done.stdout  # the line on which it crashed


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            "raise ImportError('libtorch_cpu.so: undefined symbol: _ZN3c10')",
            "cannot be imported: ImportError: libtorch_cpu",
        ),
        ("import os; os.abort()", "cannot be imported: the process crashed: killed by SIGABRT"),
        (None, "cannot be imported: ModuleNotFoundError: No module named 'torch'"),
    ],
)
def test_without_torch(good_site: Path, tmp_path: Path, module: str | None, words: str) -> None:
    """Torch broken, deadly or absent: doctor says which, and `plugins` works as ever.

    Another distribution that installs a module called `thunder` is there too, and doctor warns of it.
    """
    info = tmp_path / "lightning_thunder-0.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightning-thunder\nVersion: 0.2\n", encoding="utf-8")
    (info / "RECORD").write_text("thunder/__init__.py,sha256=x,1\n", encoding="utf-8")
    if module is None:  # a finder that knows no torch stands in for an environment that has none
        block = "import sys\n\nclass NoTorch:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        block += "        if name == 'torch':\n"
        block += "            raise ModuleNotFoundError(\"No module named 'torch'\", name=name)\n"
        (tmp_path / "sitecustomize.py").write_text(block + "\nsys.meta_path.insert(0, NoTorch)\n", encoding="utf-8")
    else:
        (tmp_path / "torch.py").write_text(module, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(good_site)])
    done = python(good_site, "-m", "thunder", "doctor", PYTHONPATH=path)
    assert done.returncode == 1, done.stderr
    assert words in done.stdout
    assert "warning: lightning-thunder 0.2 also installs a module named 'thunder'" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("multimul"))
    if module is not None and "abort" in module:
        assert "crashed: killed by SIGABRT" in line
    else:
        assert line.split()[1] == "unavailable"
        assert "torch cannot be imported" in line
    done = python(good_site, "-m", "thunder", "plugins", "--json", PYTHONPATH=path)
    assert json.loads(done.stdout)[0]["name"] == "multimul"
