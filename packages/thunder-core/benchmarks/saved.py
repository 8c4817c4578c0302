# SPDX-License-Identifier: Apache-2.0
"""What saved programs save: the first call of a process whose programs another process has compiled.

    python saved.py                              # a Llama of 16 layers on the CPU
    python saved.py --device cuda --layers 32    # with the installed executors; beside torch.compile with its caches
    python saved.py --cost                       # the share of processor time that saving takes, in one process

Each row is measured in processes of its own, `--rounds` of them, and the medians are printed. A first call is forward
and backward, without imports and without the first call of eager mode, which loads libraries of torch. "beyond warm" is
a first call less a warm call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

SIZES = {"cpu": {"width": 128, "tokens": 32}, "cuda": {"width": 1024, "tokens": 512}}


def model_and_inputs(layers: int, device: str) -> tuple[Any, Any]:
    """Return a Llama with random weights and a batch of tokens."""
    import torch
    from llama import Llama

    sizes = SIZES[device]
    torch.manual_seed(0)
    model = Llama(layers, sizes["width"], sizes["tokens"]).to(device)
    return model, torch.randint(0, 128, (1, sizes["tokens"]), device=device)


def step(model: Any, tokens: Any) -> None:
    """Run forward and backward, and wait for the device."""
    import torch

    out = model(tokens)
    out.float().square().mean().backward()
    if tokens.device.type == "cuda":
        torch.cuda.synchronize()


def child(how: str, layers: int, device: str) -> None:
    """Measure one process, and print the times as JSON."""
    import torch

    torch.set_num_threads(1)
    imported = time.perf_counter()
    import thunder

    imported = time.perf_counter() - imported
    model, tokens = model_and_inputs(layers, device)
    eager = time.perf_counter()
    step(model, tokens)
    eager = time.perf_counter() - eager
    compiled = torch.compile(model) if how == "torch.compile" else thunder.jit(model, save=how != "off")
    times = []
    for _ in range(6):
        for p in model.parameters():
            p.grad = None
        start = time.perf_counter()
        step(compiled, tokens)
        times.append(time.perf_counter() - start)
    found = {"first": times[0], "warm": min(times[2:]), "import": imported}
    if how != "torch.compile":
        stats = thunder.compile_stats(compiled)
        found |= {"hits": stats.saved_hits, "compile": stats.compile_time}
    print("FOUND" + json.dumps(found))


def measured(how: str, args: argparse.Namespace, folder: str, **variables: str) -> dict[str, Any]:
    """Run a process, and return its times."""
    environment = (
        os.environ | {"THUNDER_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"} | variables
    )
    command = [sys.executable, __file__, "--child", how, "--layers", str(args.layers), "--device", args.device]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.rpartition("FOUND")[2])
    print(f"{how}: {found}", file=sys.stderr)  # what is known if the run is cut off
    return found


def verify_speed(folder: str) -> tuple[float, int]:
    """Return the megabytes a second at which the texts of all entries are checked, and their size in bytes."""
    from thunder.saved import verify
    from thunder.saved.programs import SavedText
    from thunder.saved.store import Store

    store = Store(os.path.join(folder, "programs"))
    texts = []
    for file in store.files():
        content = store.read(file.key, file.name)
        for kind, program in content.get("programs", {}).items():
            texts.append((SavedText(program), "prologue" if kind == "prologue" else "program"))
        if "program" in content:
            texts.append((SavedText(content["program"]), "program"))
    size, times = sum(len(text.text) for text, _ in texts), []
    for _ in range(5):
        verify._lines.clear()
        start = time.perf_counter()
        for text, kind in texts:
            text.check(kind, lambda: True)
        times.append(time.perf_counter() - start)
    return size / min(times) / 1e6, size


def cost_of_saving(args: argparse.Namespace) -> None:
    """Print how much processor time saving adds to first calls. Both are measured in the same call of one process."""
    import torch

    import thunder
    import thunder.frontend.compiler  # loaded first, because importing it is no tracing
    from thunder.frontend import saved_programs, saving

    spent, inside = 0.0, 0

    def timed(fn: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal spent, inside
            inside, start = inside + 1, time.process_time()
            try:
                return fn(*given, **named)
            finally:
                inside -= 1
                spent += 0 if inside else time.process_time() - start

        return call

    saver = saving.Saving._backward_saver
    saving.Saving._backward_saver = lambda *given: timed(saver(*given))  # type: ignore[method-assign]
    for owner, name in ((saving.Saving, "compiled"), (saving.Saving, "finish"), (saved_programs.SavedPrograms, "find")):
        setattr(owner, name, timed(getattr(owner, name)))
    torch.set_num_threads(1)
    model, tokens = model_and_inputs(args.layers, args.device)
    step(model, tokens)
    shares = []
    for i in range(args.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            jitted, spent, start = thunder.jit(model, save=folder), 0.0, time.process_time()
            step(jitted, tokens)
            total = time.process_time() - start
        print(f"first call {1e3 * total:.0f} ms of processor time, of which saving took {1e3 * spent:.0f}")
        shares += [100 * spent / (total - spent)] * (i > 0)
    low, *_, high = sorted(shares)
    print(f"saving adds {statistics.median(shares):.1f} % (median of {len(shares)}, from {low:.1f} to {high:.1f})")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cost", action="store_true", help="measure the processor time of saving instead")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.layers = args.layers or (32 if args.device == "cuda" else 16)
    if args.child:
        child(args.child, args.layers, args.device)
        return
    if args.cost:
        cost_of_saving(args)
        return
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.rounds):  # alternating, because a machine's speed drifts
            for row, how, where in (
                ("thunder, nothing saved (saving off)", "off", f"{folder}/off{i}"),
                ("thunder, nothing saved (and saving)", "saving", f"{folder}/on{i}"),
                ("thunder, saved by another process", "saving", f"{folder}/on{i}"),
            ):
                rows.setdefault(row, []).append(measured(how, args, where))
        if args.device == "cuda":
            for row in ("torch.compile, empty caches", "torch.compile, its caches"):
                for i in range(min(args.rounds, 2)):
                    rows.setdefault(row, []).append(measured("torch.compile", args, f"{folder}/compile{i}"))
        speed, size = verify_speed(f"{folder}/on0")
    print(f"Llama, {args.layers} layers, {args.device}, forward and backward, medians of {args.rounds} processes\n")
    print("| | first call | warm call | beyond warm | import thunder |\n|---|---|---|---|---|")
    for row, found in rows.items():
        first, warm, imported = (statistics.median(x[name] for x in found) for name in ("first", "warm", "import"))
        beyond = 1e3 * (first - warm)
        print(f"| {row} | {1e3 * first:.0f} ms | {1e3 * warm:.1f} ms | {beyond:.0f} ms | {1e3 * imported:.0f} ms |")
    off, on = (statistics.median(x["compile"] for x in rows[r]) for r in list(rows)[:2])
    totals = [statistics.median(x["first"] for x in rows[r]) for r in list(rows)[:2]]
    assert all(x["hits"] == 1 for x in rows["thunder, saved by another process"])
    print(f"\nsaving adds {100 * (totals[1] / totals[0] - 1):.1f} % to the first call")
    print(f"compilation took {1e3 * off:.0f} ms without and {1e3 * on:.0f} ms with saving")
    print(f"entries are checked at {speed:.0f} MB/s ({size / 1e3:.0f} kB of text)")


if __name__ == "__main__":
    main()
