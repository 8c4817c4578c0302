# SPDX-License-Identifier: Apache-2.0
"""The environment a probe sees: nothing is imported before it is asked for, and a broken torch is an answer."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from thunder.plugins import (
    Availability,
    Env,
    GpuDevice,
    describe_error,
    major_and_minor,
    reject_device,
    reject_version,
)


def test_availability() -> None:
    """A refusal without a reason helps nobody."""
    assert Availability(True)
    assert not Availability(False, "needs a GPU")
    with pytest.raises(ValueError, match="needs a reason"):
        Availability(False)
    with pytest.raises(TypeError, match="must be True or False"):
        Availability("yes")  # type: ignore[arg-type]


def test_cheap_questions_import_nothing() -> None:
    """Importing the plugin package, and asking what needs no torch, leaves torch alone."""
    code = """
import sys
from thunder.plugins import Env, records
env = Env()
records()
assert env.python and env.platform and env.has_module("torch") and not env.has_module("no_such_module_")
assert env.version_of("pluggy") and env.version_of("no-such-distribution") is None
assert "torch" not in sys.modules, "torch was imported"
floors = ("thunder.core.", "thunder.extend", "thunder.clang", "thunder.torch", "thunder.transforms")
light = ("thunder.core.environment", "thunder.core.errors", "thunder.core.executor", "thunder.core.state")
light += ("thunder.core.deprecations", "thunder.transforms", "thunder.transforms.base")
print([name for name in sys.modules if name.startswith(floors) and name not in light])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_this_environment() -> None:
    """What it says agrees with torch."""
    import torch

    env = Env()
    assert env.python == platform.python_version()
    assert env.torch == torch.__version__
    assert env.torch_error is None
    assert env.cuda == torch.version.cuda
    assert env.cuda_available is torch.cuda.is_available()
    assert len(env.devices) == (torch.cuda.device_count() if env.cuda_available else 0)
    told = json.loads(json.dumps(env.to_dict()))
    assert told["torch"] == torch.__version__
    assert told["thunder_core"] == env.version_of("thunder-core")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "OSError: libcudart.so.12"),
        ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
        ("pass", "the module 'torch' is not PyTorch"),
    ],
)
def test_broken_torch(tmp_path, monkeypatch, source: str, error: str) -> None:
    """Whatever happens when torch is imported, the environment says it and asks no more."""
    (tmp_path / "torch.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = {name: module for name, module in sys.modules.items() if name == "torch"}
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    env = Env()
    try:
        assert env.torch_error is not None
        assert env.torch_error.startswith(error)
    finally:
        sys.modules.pop("torch", None)
        sys.modules.update(loaded)
    assert env.torch is None
    assert env.cuda is None
    assert not env.cuda_available
    assert env.cuda_error.startswith("torch cannot be imported")
    assert env.devices == ()


def fake_torch(**cuda) -> SimpleNamespace:
    return SimpleNamespace(__version__="9.9", version=SimpleNamespace(cuda="13.0"), cuda=SimpleNamespace(**cuda))


def test_gpus() -> None:
    """Devices are listed by torch's own account."""
    gpu = SimpleNamespace(name="H200", major=9, minor=0, total_memory=150 << 30)
    env = Env()
    env.__dict__["_torch"] = (
        fake_torch(is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda index: gpu),
        None,
    )
    assert env.cuda == "13.0"
    assert [(each.index, each.name, each.capability) for each in env.devices] == [
        (0, "H200", (9, 0)),
        (1, "H200", (9, 0)),
    ]


def test_gpus_that_are_too_old() -> None:
    """The line for a probe says what is wanted and what is there; one that is new enough will do."""
    env = Env()
    env.__dict__.update(cuda_error=None, devices=(GpuDevice(0, "V100", (7, 0), 1), GpuDevice(1, "A100", (8, 0), 1)))
    assert env.lacks_gpu((8, 0)) is None
    assert env.lacks_gpu((8, 9)) == (
        "needs a GPU of compute capability 8.9 or newer, but this machine has V100 (7.0), A100 (8.0)"
    )
    env.__dict__.update(devices=())
    assert str(env.lacks_gpu((7, 0))).endswith("7.0 or newer, but this machine has none")
    env.__dict__.update(cuda_error="this torch was built without CUDA")
    assert env.lacks_gpu((7, 0)) == "needs an NVIDIA GPU: this torch was built without CUDA"


def test_no_usable_gpu() -> None:
    """A CUDA build without a device, and a driver that raises."""

    def raises() -> bool:
        raise RuntimeError("driver too old")

    for answer, error in ((lambda: False, "no usable CUDA device"), (raises, "RuntimeError: driver too old")):
        env = Env()
        env.__dict__["_torch"] = (fake_torch(is_available=answer), None)
        assert error in env.cuda_error
        assert env.devices == ()


def test_numbers_of_versions() -> None:
    """Are compared as numbers."""
    assert major_and_minor("2.11.0+cu130") == (2, 11) > major_and_minor("2.9.1")
    assert major_and_minor("3.6") == (3, 6)
    for none in (None, "", "nightly", "2"):
        assert major_and_minor(none) == (0, 0)


def test_versions_in_a_range() -> None:
    """The line says what is needed, what is there and how to get it."""
    assert reject_version("acme", "1.2.3", (1, 2)) is None
    assert reject_version("acme", "1.10", (1, 2), (1, 11)) is None
    assert reject_version("acme", "1.1.9+cu13", (1, 2)) == "needs acme 1.2 or newer, but 1.1.9+cu13 is installed"
    assert reject_version("acme", "2.0", (1, 2), (2, 0), install="pip install acme") == (
        "needs acme 1.2 or newer, before 2.0, but 2.0 is installed: pip install acme"
    )
    assert reject_version("acme", "nightly", (1, 2)) == "needs acme 1.2 or newer, but nightly is installed"


def test_distributions_in_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is missing, without its module, or too old."""
    env = Env()
    monkeypatch.setattr(env, "version_of", {"acme": "1.2"}.get)
    how = {"install": "pip install acme", "name": "ACME"}
    assert env.lacks_version("acme", (1, 0), **how) is None
    missing = "needs ACME, which is not installed: pip install acme"
    assert env.lacks_version("other", (1, 0), **how) == missing
    assert env.lacks_version("acme", (1, 0), module="no_such_module", **how) == missing
    assert env.lacks_version("acme", (1, 3), **how) == "needs ACME 1.3 or newer, but 1.2 is installed: pip install acme"


def test_devices_of_other_types() -> None:
    """Devices by name, or with a type."""
    assert reject_device("cuda:1", "ACME") is None
    assert reject_device(SimpleNamespace(type="cuda"), "ACME") is None
    assert reject_device("cpu", "ACME", ("cuda", "cpu")) is None
    assert reject_device("cpu", "ACME") == "ACME runs on NVIDIA GPUs, not on cpu"


def test_errors_in_a_line() -> None:
    """The type, and the first line of the text."""
    assert describe_error(ImportError("undefined   symbol\nmore")) == "ImportError: undefined symbol"
    assert describe_error(OSError()) == "OSError: "


def test_unless() -> None:
    """A reason makes a plugin unavailable; without one there may be a note."""
    assert Availability.unless("no GPU") == Availability(False, "no GPU")
    assert Availability.unless(None) == Availability(True)
    assert Availability.unless(None, "slow here") == Availability(True, "slow here")
