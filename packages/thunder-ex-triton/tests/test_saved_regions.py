# SPDX-License-Identifier: Apache-2.0
"""Fusions as data: another process runs them without the code that writes kernels, and with the same bits."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder
from thunder_ex_triton import binaries, saved_regions
from thunder_ex_triton.fusion.region import FusedRegion
from thunder_ex_triton.probe import interpreting
from thunder_ex_triton.saved_regions import NotSaved, load_region, save_region

DEVICE, OTHER = ("cpu", "cuda") if interpreting() else ("cuda", "cpu")


def normalized(x: Any, w: Any) -> Any:
    """A kernel of rows."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def regions(f: Any, *args: Any, **options: Any) -> list[Any]:
    """The fusions of a call, which has run."""
    jitted = thunder.jit(f, executors=["triton"], **options)
    jitted(*args)
    return [op.sym.fn for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.is_fusion]


@pytest.fixture
def example() -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Inputs, and the data of the fusion that they ran through, by way of JSON's text."""
    torch.manual_seed(0)
    inputs = [torch.randn(5, 12, device=DEVICE), torch.randn(12, device=DEVICE)]
    (region,) = regions(normalized, *inputs)
    return inputs, json.loads(json.dumps(save_region(region)))


def test_a_loaded_fusion_computes_the_same(example: tuple[list[torch.Tensor], dict[str, Any]]) -> None:
    """In each call, and it can be saved again."""
    inputs, data = example
    (region,) = regions(normalized, *inputs)
    loaded = load_region(data)
    for _ in range(3):
        assert all(map(torch.equal, loaded(*inputs), region(*inputs)))
    assert repr(loaded) == f"<{region.name}>" and loaded.data == data


def test_layouts_that_were_not_saved(example: tuple[list[torch.Tensor], dict[str, Any]]) -> None:
    """Other strides and odd addresses have the same values."""
    (x, w), data = example
    loaded = load_region(data)
    expected = loaded(x, w)
    moved = torch.empty(61, device=DEVICE)[1:].view(5, 12).copy_(x)
    for other in (x.t().contiguous().t(), moved):
        assert torch.equal(loaded(other, w)[0], expected[0])


def test_writes_to_memory_that_exists() -> None:
    """An update of an input, with the saved layout and with another one."""

    def update(x: Any, y: Any) -> None:
        x.copy_(x * 2 + y.sin())

    found = regions(update, torch.ones(4, 6, device=DEVICE), torch.ones(4, 6, device=DEVICE))
    (region,) = [r for r in found if r.into]
    loaded = load_region(json.loads(json.dumps(save_region(region))))
    for layout in (lambda t: t, lambda t: t.t().contiguous().t()):
        count = len(save_region(region)["programs"][0]["strides"])
        given = [layout(torch.full((4, 6), 3.0, device=DEVICE)) for _ in range(count)]
        target = given[next(iter(region.into.values()))]
        version = target._version
        (result,) = loaded(*given)
        wanted = region(*[layout(torch.full((4, 6), 3.0, device=DEVICE)) for _ in range(count)])[0] if count else None
        assert torch.equal(target, wanted) and torch.equal(result, wanted)
        assert target._version > version


LOADING = """
import json, sys
import torch
data, inputs, expected = json.loads(sys.stdin.read()), *torch.load(sys.argv[1])
from thunder_ex_triton.saved_regions import load_region
fn = load_region(data)
assert "triton" not in sys.modules
found = fn(*inputs)
assert torch.equal(found[0], expected)
heavy = ("thunder_ex_triton.fusion.region", "thunder_ex_triton.fusion.codegen", "thunder_ex_triton.fusion.templates",
         "thunder_ex_triton.plugin", "thunder_ex_triton.probe", "thunder.extend", "thunder.torch", "thunder.plugins",
         "thunder.core.prims", "thunder.core.trace", "thunder.capture", "thunder.frontend")
print([name for name in sys.modules if name.startswith(heavy)])
"""


def test_another_process_loads_no_fusion_compiler(
    example: tuple[list[torch.Tensor], dict[str, Any]], tmp_path: Path
) -> None:
    """Nor Triton, before it runs."""
    inputs, data = example
    torch.save((inputs, load_region(data)(*inputs)[0]), tmp_path / "inputs.pt")
    command = [sys.executable, "-c", LOADING, str(tmp_path / "inputs.pt")]
    found = subprocess.run(command, input=json.dumps(data), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]"


def test_what_cannot_be_saved(example: tuple[list[torch.Tensor], dict[str, Any]]) -> None:
    """Fusions of changing sizes, and fusions that have not run; each error says which."""
    with pytest.raises(NotSaved, match="is a SymbolicRegion"):
        save_region(regions(lambda x: x.sin() * 2, torch.ones(4, 6, device=DEVICE), cache="symbolic values")[0])
    (region,) = regions(normalized, torch.randn(5, 12, device=DEVICE), torch.randn(12, device=DEVICE))
    region._programs.clear()
    with pytest.raises(NotSaved, match="has not run yet"):
        save_region(region)
    with pytest.raises(NotSaved, match="format 0"):
        load_region({**example[1], "format": 0})
    with pytest.raises(NotSaved, match=f"was saved for a {OTHER} device"):
        loaded = load_region(example[1])
        loaded.data = {**loaded.data, "device": OTHER}
        loaded(*example[0])
    assert isinstance(region, FusedRegion)


# -- binaries ----------------------------------------------------------------------------------------------------------
def compiled(path: Path, **metadata: Any) -> Any:
    """A kernel as Triton's compiler returns it."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"binary")
    source = SimpleNamespace(
        fn=SimpleNamespace(arg_names=["i0", "o0", "rows", "one", "size"]),
        signature={"i0": "*fp32", "o0": "*fp32", "rows": "i32", "one": "constexpr", "size": "constexpr"},
        constants={(3,): 1, (4,): 64},
    )
    known = {"name": "kernel", "num_warps": 4, "shared": 512, "num_ctas": 1, "global_scratch_size": 0, **metadata}
    return SimpleNamespace(metadata=SimpleNamespace(**known), src=source, metadata_group={"kernel.cubin": str(path)})


def test_binaries_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found by their hash, in Triton's cache or elsewhere, and an altered file is not."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    path = tmp_path / "ABC" / "kernel.cubin"
    data = binaries.describe(compiled(path))
    assert data == {
        "file": "ABC/kernel.cubin", "sha256": hashlib.sha256(b"binary").hexdigest(), "name": "kernel", "warps": 4,
        "shared": 512, "types": "OOiO", "passed": [0, 1, 2], "unused": 1,
    }  # fmt: skip
    assert binaries.find(data) == path
    path.write_bytes(b"altered")
    assert binaries.find(data) is None
    elsewhere = tmp_path / "kept"
    elsewhere.mkdir()
    (elsewhere / f"{data['sha256']}.cubin").write_bytes(b"binary")
    assert binaries.find(data, elsewhere) == elsewhere / f"{data['sha256']}.cubin"


@pytest.mark.parametrize("special", [{"num_ctas": 2}, {"global_scratch_size": 8}, {"launch_pdl": True}])
def test_binaries_that_only_triton_launches(tmp_path: Path, special: dict[str, Any]) -> None:
    """Clusters, memory that Triton allocates, and dependent launches."""
    assert binaries.describe(compiled(tmp_path / "ABC" / "kernel.cubin", **special)) is None


def test_binaries_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a program, or none."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    loaded: list[Any] = []
    monkeypatch.setattr(binaries, "load_cubin", lambda *args: loaded.append(args) or 7)
    data = binaries.describe(compiled(tmp_path / "ABC" / "kernel.cubin"))
    for _ in range(2):
        found = binaries.load([data, data], 0)
        assert found is not None and found[0] == binaries.Binary(7, 4, 512, "OOiO", (0, 1, 2), 1)
    assert loaded == [(str(tmp_path / "ABC" / "kernel.cubin"), "kernel", 512, 0)]
    assert binaries.load([data, None], 0) is None
    monkeypatch.setattr(binaries, "load_cubin", None)
    assert binaries.load([data], 0) is None
    assert saved_regions.FORMAT == 1
