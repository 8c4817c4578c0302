# SPDX-License-Identifier: Apache-2.0
"""How many models of the tables of `nox -s models` a second process finds saved: `python saved_models.py TABLE`.

TABLE is "own", "transformers" or "litgpt"; the last two need the packages that the session `models` installs. Each row
is called in evaluation and in training, by one process and then by another. Printed are the rows that did not hit, with
the reasons, and those whose results differ in a bit.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import thunder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))
from zoo.checks import loss_of, tensors_of

TABLES = {"own": "zoo.own_models", "transformers": "zoo.transformers_models", "litgpt": "zoo.litgpt_models"}
MODES = ("evaluation", "training")


def measured(entry: Any, mode: str, folder: str) -> dict[str, Any]:
    """Call a model until it compiles nothing more, and report what became of its programs."""
    model = entry.module()
    model.train(mode == "training")
    jitted = thunder.jit(model, save=folder)
    found = hashlib.sha256()
    for step in range(2 + entry.settling + entry.settling_in_eval):
        torch.manual_seed(step)
        inputs = entry.inputs(entry.dtype, step, False)
        if mode == "training":
            out = jitted(**inputs)
            loss_of(out).backward()
        else:
            with torch.no_grad():
                out = jitted(**inputs)
        for x in tensors_of(out):
            found.update(repr(x.detach().double().flatten().tolist()).encode())
    for p in model.parameters():
        found.update(repr(None if p.grad is None else p.grad.double().flatten().tolist()).encode())
    stats = thunder.compile_stats(jitted)
    notes = [e.reason for e in stats.events.of("saved")]
    backward = next((x for x in notes if x.startswith("backward not saved")), None)
    return {
        "digest": found.hexdigest(),
        "hits": stats.saved_hits,
        "misses": stats.cache_misses,
        "not cached": stats.uncacheable or (None if stats.cache_hits + stats.saved_hits else "partly eager"),
        "notes": notes,
        "backward": backward,
        "compiler": "thunder.frontend.compiler" in sys.modules,
    }


def child(table: str, folder: str, pattern: str) -> None:
    """Measure all rows, each in a fork of this process, and print a line of JSON for each."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for entry in importlib.import_module(TABLES[table]).MODELS:
        for mode in MODES:
            name = f"{entry.name} {mode}"
            if pattern not in name or (mode == "training" and not entry.gradients):
                continue
            sys.stdout.flush()
            forked = os.fork()
            if forked:
                os.waitpid(forked, 0)
                continue
            try:
                report = measured(entry, mode, f"{folder}/{name.replace(' ', '-').replace('/', '-')}")
            except BaseException as error:
                report = {"error": f"{type(error).__name__}: {error}"[:300]}
            print("ROW" + json.dumps([name, report]), flush=True)
            os._exit(0)


def main() -> None:
    """Print the rows that did not hit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("-k", default="", help="only rows whose names contain this")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.table, args.child, args.k)
        return
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            command = [sys.executable, __file__, args.table, "-k", args.k, "--child", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rounds.append(dict(json.loads(line[3:]) for line in done.stdout.splitlines() if line.startswith("ROW")))
    first, second = rounds
    cacheable = hits = 0
    for name, row in second.items():
        if "error" in row or "error" in first[name] or first[name]["not cached"]:
            print(f"- {name}: not cacheable: {row.get('error') or first[name].get('error') or row['not cached']}")
            continue
        cacheable += 1
        hit = row["hits"] > 0 and row["misses"] == 0
        hits += hit
        if not hit:
            print(f"- {name}: {first[name]['notes'][-1:]} {row['notes'][:2]}")
        elif row["compiler"]:
            print(f"- {name}: hit, and compiled a part: {first[name]['backward']}")
        if row["digest"] != first[name]["digest"]:
            print(f"- {name}: other bits")
    print(f"{args.table}: {hits} of {cacheable} cacheable rows hit")


if __name__ == "__main__":
    main()
