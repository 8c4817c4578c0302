# SPDX-License-Identifier: Apache-2.0
"""A process that judges the programs that it reads, one JSON line each, and answers with one line each."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys

import torch

import thunder
from soak.program import Program
from soak.run import judge


def main() -> None:
    """Answer until there are no more programs."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what C code prints is no answer
    gc.set_threshold(5_000, 20, 100)  # programs make many objects; collecting them is a tenth of the time
    thunder.jit(torch.sin)(torch.ones(1))  # imports the compiler
    answers.write("ready\n")
    for line in sys.stdin:
        faulthandler.dump_traceback_later(float(os.environ.get("SOAK_DUMP_AFTER", "50")))
        verdict = judge(Program.from_json(json.loads(line)))
        answers.write(json.dumps(verdict.to_json()) + "\n")


if __name__ == "__main__":
    main()
