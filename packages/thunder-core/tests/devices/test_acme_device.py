# SPDX-License-Identifier: Apache-2.0
"""A device that is neither CPU nor CUDA: `nox -s device`. The test command of the packages skips these tests.

The first one compiles torch's kernels of the device, which takes a minute and needs a C++ compiler.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.cli import main
from thunder.plugins import Env

pytestmark = [
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized"),
    pytest.mark.skipif(not os.environ.get("TEST_DEVICE"), reason="TEST_DEVICE is not set"),
    pytest.mark.usefixtures("site"),
]
DEVICES = pytest.mark.parametrize("device", ["acme", "acme:1"])


def outcome(f: Any, x: torch.Tensor, w: torch.Tensor, **autocast: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result and a gradient under one seed."""
    torch.manual_seed(1)
    with torch.autocast("acme", **autocast):
        out = f(x, w)
    (grad,) = torch.autograd.grad(out.float().square().sum(), w)
    return out, grad


def draws(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = F.dropout(torch.relu(x @ w), 0.5)
    return F.layer_norm(y, y.shape[-1:]) * torch.rand_like(y) + torch.randn(y.shape[-1], device=y.device)


@DEVICES
@pytest.mark.parametrize("casts", [False, True], ids=["", "autocast"])
def test_random_numbers_and_autocast(device: str, casts: bool) -> None:
    """Results and gradients are those of eager mode to the bit, and in its dtypes."""
    x, w = torch.randn(3, 4, device=device), torch.randn(4, 5, device=device, requires_grad=True)
    f = thunder.jit(draws)
    given = {"enabled": casts, "dtype": torch.bfloat16}
    for ours, theirs in zip(outcome(f, x, w, **given), outcome(draws, x, w, **given)):
        assert ours.dtype is theirs.dtype and ours.device == theirs.device == x.device
        assert torch.equal(ours, theirs)
    assert ("bfloat16" in str(thunder.last_traces(f)[-1])) is casts


def test_autocast_is_guarded() -> None:
    """A program that was traced without autocast does not serve a call with it, nor the other way round."""
    f = thunder.jit(lambda x: x @ x)
    x = torch.randn(3, 3, device="acme")
    for enabled in (False, True, False, True):
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("acme", dtype, enabled=enabled):
                assert f(x).dtype is (x @ x).dtype is (dtype if enabled else torch.float32)
    assert thunder.cache_misses(f) == 3


def test_each_policy_of_autocast() -> None:
    """The casts are those of torch's kernels for the device."""
    a, b = torch.randn(4, 4, device="acme"), torch.randn(4, 4, device="acme", dtype=torch.bfloat16)
    for f in (
        lambda a, b: F.linear(a, a), lambda a, b: F.softmax(b, -1), lambda a, b: torch.atan2(a, b),
        lambda a, b: b.exp(), lambda a, b: b.sum(), lambda a, b: F.mse_loss(b, b), lambda a, b: a.mv(b[0].float()),
        lambda a, b: torch.cosine_similarity(b, b), lambda a, b: F.l1_loss(b, -b), lambda a, b: a + b,
        lambda a, b: torch.addcmul(a, a, b), lambda a, b: torch.linalg.vector_norm(b), lambda a, b: a.addmm(b, b),
    ):  # fmt: skip
        with torch.autocast("acme", torch.bfloat16):
            expected, actual = f(a, b), thunder.jit(f)(a, b)
        assert actual.dtype is expected.dtype
        assert torch.equal(actual, expected)


def test_a_generator_of_the_device() -> None:
    f = thunder.jit(lambda g: torch.rand(3, device="acme", generator=g))
    first, second = (torch.Generator("acme").manual_seed(7) for _ in range(2))
    for _ in range(3):
        assert torch.equal(f(first), torch.rand(3, device="acme", generator=second))


def test_a_training_step() -> None:
    """Modules, optimizers, writes to views, and values on the host."""

    def steps(jit: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)).to("acme")
        optimizer = torch.optim.AdamW(model.parameters())
        step = jit(lambda x, y: F.cross_entropy(model(x), y))
        x = torch.randn(6, 4, device="acme")
        y = torch.randint(2, (6,), device="acme")
        losses = []
        for _ in range(3):
            losses.append(step(x, y))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*losses, *model.parameters(), *model.buffers()]

    for ours, theirs in zip(steps(thunder.jit), steps(lambda f: f)):
        assert ours.device.type == "acme"
        assert torch.equal(ours, theirs)


def test_writes_and_views() -> None:
    def f(x: torch.Tensor) -> Any:
        x[1:].mul_(2)
        y = x.t()
        y[0] = 0
        return x + 1, y.reshape(-1), x.sum().item()

    ours, theirs = torch.ones(3, 2, device="acme"), torch.ones(3, 2, device="acme")
    for a, b in zip(thunder.jit(f)(ours), f(theirs)):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    assert torch.equal(ours, theirs)


def test_other_devices_are_told_apart() -> None:
    """The same program serves no other device, and copies between devices are part of it."""
    f = thunder.jit(lambda x: (x.cpu() + 1).to("acme:1") * 2)
    for device in ("cpu", "acme:0", "acme:1"):
        out = f(torch.ones(2, device=device))
        assert out.device == torch.device("acme:1") and out.tolist() == [4, 4]
    assert thunder.cache_misses(f) == 3


def test_graphs_are_left_alone() -> None:
    f = thunder.jit(lambda x: (x * 2).exp() + 1, cuda_graphs="always")
    assert f(torch.zeros(3, device="acme")).tolist() == [2, 2, 2]
    assert "is not on a GPU" in str(thunder.last_traces(f)[-1])


def test_the_environment_of_probes() -> None:
    env = Env()
    assert [(each.type, each.index, each.name, each.total_memory) for each in env.accelerators] == [
        ("acme", 0, "Acme One", 1 << 30),
        ("acme", 1, "Acme One", 1 << 30),
    ]
    assert env.lacks_device("acme") is None
    assert env.lacks_device("xpu", install="pip install x") == (
        "needs a device of type 'xpu', but torch finds acme: pip install x"
    )


def python(folder: Path, *arguments: str) -> str:
    """Run Python where the device and the plugin are installed. Return what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "THUNDER_DISABLE_PLUGINS": ""}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_plugin_for_the_device(site: Path, tmp_path: Path) -> None:
    """The plugin of the template, with its device changed: doctor, its own tests, and the conformance suite."""
    folder = tmp_path / "repository"
    assert main(["new-plugin", "acme", "--into", str(folder)]) == 0
    silu = folder / "src" / "thunder_ex_acme" / "silu.py"
    text = silu.read_text(encoding="utf-8")
    assert 'DEVICES = ("cpu",)' in text
    silu.write_text(text.replace('DEVICES = ("cpu",)', 'DEVICES = ("acme",)'), encoding="utf-8")
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    python(folder, *pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "dist", ".")
    wheel = "dist/thunder_ex_acme-0.1.0-py3-none-any.whl"
    python(folder, *pip, "install", "--no-deps", "--no-index", "--target", str(site), wheel)
    told = json.loads(python(folder, "-m", "thunder", "doctor", "acme", "--json"))
    assert told["plugins"][0]["state"] == "ready"
    assert told["torch"]["env"]["accelerators"][0]["name"] == "Acme One"
    printed = python(folder, "-m", "thunder", "doctor", "acme")
    assert re.search(r"^device acme:0 +Acme One, 1 GiB$", printed, re.MULTILINE), printed
    code = """
import torch, thunder
f = thunder.jit(torch.nn.functional.silu)
x = torch.randn(5, device="acme", requires_grad=True)
torch.testing.assert_close(f(x), torch.nn.functional.silu(x))
assert "acme_silu(" in str(thunder.last_traces(f)[-1])
f(x).sum().backward()
assert "acme_silu_backward(" in str(thunder.last_backward_traces(f)[-1])
f(torch.ones(3))
assert "acme_silu" not in str(thunder.last_traces(f)[-1])
"""
    python(folder, "-c", code)
    select = ("-q", "-p", "no:cacheprovider", "-k", "silu and (float32 or float64) or claimed")
    for device in ([], ["--thunder-device", "acme:1"]):
        told = python(folder, "-m", "thunder", "conformance", "acme", *device, *select)
        row = re.search(r"^all +(\d+) +(\d+) +(\d+) +(\d+) +\d+$", told, re.MULTILINE)
        assert row is not None and row[1] == row[2] != "0" and row[4] == "0", told


@pytest.mark.parametrize("operators", ["mul or softmax or dropout", "view or index_select or cumsum"])
def test_the_suite_on_the_device(operators: str, tmp_path: Path) -> None:
    """torch's executor passes there, too."""
    select = ("-q", "-p", "no:cacheprovider", "--thunder-dtypes", "float32", "-k", f"float32 and ({operators})")
    told = python(tmp_path, "-m", "thunder", "conformance", "torch", "--thunder-device", "acme", *select)
    row = re.search(r"^all +(\d+) +(\d+) +0 +0 +\d+$", told, re.MULTILINE)
    assert row is not None and row[1] == row[2] != "0", told
