# SPDX-License-Identifier: Apache-2.0
"""A second process runs fusions that a first one has compiled: which kernels it compiles, what it loads, and how long.

    python packages/thunder-ex-triton/benchmarks/saved_regions.py     # on a machine with an NVIDIA GPU

The first process compiles a few fusions, saves them as data, and measures their warm calls. The other processes load
the data: by torch's launcher for binaries, and by Triton, which finds the kernels in its cache. Each starts with the
caches that the first has filled. Results are compared bit by bit. The table is printed last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPEATS = 300


def programs() -> dict[str, tuple[Any, Any]]:
    """Return functions that are one or two kernels, with their inputs."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)

    def make(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    return {
        "RMSNorm": (lambda x, w: F.rms_norm(x, (4096,), w) * 2, (make(2048, 4096), make(4096))),
        "SwiGLU": (lambda a, b: F.silu(a) * b, (make(2048, 11008), make(2048, 11008))),
        "bias, GELU, sum of columns": (
            lambda x, b: (F.gelu(x + b), (x + b).float().sum(0)), (make(4096, 3072), make(3072)),
        ),
        "softmax": (lambda x: torch.softmax(x.float(), -1), (make(2048, 1000),)),
    }  # fmt: skip


def warm(fn: Any, inputs: Any) -> float:
    """Return the microseconds of host time of a call whose kernels need not be waited for."""
    import torch

    small = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(REPEATS // 10):
            fn(*inputs)
        small.append((time.perf_counter() - start) / (REPEATS // 10))
        torch.cuda.synchronize()
    return min(small) * 1e6


def first(folder: Path) -> None:
    """Compile, save and measure."""
    import torch

    import thunder
    from thunder_ex_triton.saved_regions import save_region

    start = time.perf_counter()
    found: dict[str, Any] = {}
    saved = []
    for name, (fn, inputs) in programs().items():
        jitted = thunder.jit(fn, executors=["triton"], cuda_graphs="never")
        jitted(*inputs)
        torch.cuda.synchronize()
        trace = thunder.last_traces(jitted)[-1]
        region = next(op.sym.fn for op in trace.bound_symbols if op.sym.is_fusion)
        by_name = dict(zip([p.name for p in trace.args], inputs))
        given = [by_name[p.name].view(p.shape) for p in region.inputs]
        results = region(*given)
        torch.save([x.cpu() for x in (*given, *results)], folder / f"{len(saved)}.pt")
        saved.append({"name": name, "inputs": len(given), "data": save_region(region)})
        found[name] = {"warm": warm(region, given)}
    found["seconds"] = time.perf_counter() - start
    (folder / "saved.json").write_text(json.dumps(saved))
    print(json.dumps(found))


def second(folder: Path, way: str) -> None:
    """Load, compare and measure."""
    import torch

    torch.zeros(1, device="cuda")
    compiled: list[str] = []
    before = set(sys.modules)
    start = time.perf_counter()
    from thunder_ex_triton import binaries
    from thunder_ex_triton.saved_regions import load_region

    if way == "Triton":
        binaries.load_cubin = None
        import triton

        def listener(**details: Any) -> None:
            if not details["cache_hit"]:
                compiled.append(str(details["src"]))

        triton.knobs.compilation.listener = listener
    imported = time.perf_counter() - start
    found: dict[str, Any] = {}
    total = 0.0
    for i, saved in enumerate(json.loads((folder / "saved.json").read_text())):
        tensors = [x.cuda() for x in torch.load(folder / f"{i}.pt")]
        given, wanted = tensors[: saved["inputs"]], tensors[saved["inputs"] :]
        torch.cuda.synchronize()
        start = time.perf_counter()
        fn = load_region(saved["data"])
        results = fn(*given)
        torch.cuda.synchronize()
        taken = time.perf_counter() - start
        total += taken
        equal = all(map(torch.equal, results, wanted))
        for _ in range(3):
            results = fn(*given)
        equal = equal and all(map(torch.equal, results, wanted))
        kernels = sum(len(p["steps"]) for p in saved["data"]["programs"])
        binary = sum(s["binary"] is not None for p in saved["data"]["programs"] for s in p["steps"])
        found[saved["name"]] = {
            "first": taken * 1e3, "warm": warm(fn, given), "equal": equal, "kernels": kernels, "binaries": binary,
        }  # fmt: skip
    new = set(sys.modules) - before
    found["imports"] = imported * 1e3
    found["total"] = total * 1e3
    found["compiled"] = len(compiled)
    found["triton"] = "triton.compiler" in new
    print(json.dumps(found))


def main() -> None:
    """Run the processes and print the table."""
    if len(sys.argv) > 1:
        first(Path(sys.argv[2])) if sys.argv[1] == "first" else second(Path(sys.argv[2]), sys.argv[1])
        return
    import torch

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(Path(folder) / "triton")}

        def run(way: str) -> dict[str, Any]:
            command = [sys.executable, __file__, way, folder]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{way}: {done.stderr[-4000:]}")
            return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]

        compiled = run("first")
        loaded = {way: run(way) for way in ("binaries", "Triton")}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; first process: {compiled['seconds']:.1f} s\n")
    print("| process | imports, ms | loads and first calls, ms | kernels compiled | imports triton.compiler | same |")
    print("|---|---|---|---|---|---|")
    for way, found in loaded.items():
        rows = [x for x in found.values() if isinstance(x, dict)]
        equal = all(x["equal"] for x in rows)
        numbers = f"{found['imports']:.0f} | {found['total']:.1f} | {found['compiled']}"
        print(f"| by {way} | {numbers} | {found['triton']} | {equal} |")
    print(
        "\n| fusion | kernels (with binary) | warm call, us: compiled here | by binaries | by Triton | first call, ms |"
    )
    print("|---|---|---|---|---|---|")
    for name in [name for name, x in loaded["binaries"].items() if isinstance(x, dict)]:
        a, b, c = compiled[name], loaded["binaries"][name], loaded["Triton"][name]
        print(
            f"| {name} | {b['kernels']} ({b['binaries']}) | {a['warm']:.1f} | {b['warm']:.1f} | {c['warm']:.1f} | "
            f"{b['first']:.1f} |"
        )


if __name__ == "__main__":
    main()
