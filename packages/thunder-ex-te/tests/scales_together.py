# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train together: `scales_together.py cpu|cuda FILE RANK`. Run by test_scales.py.

With NCCL and the library itself on GPUs; with gloo and the library's stand-in on the CPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

device, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
sys.path.insert(0, str(Path(__file__).parent))
if device == "cuda":
    torch.cuda.set_device(rank)
else:
    import conftest

    stand_in = conftest.stand_in_for_the_library()
    stand_in.__enter__()  # for the life of this process

import thunder  # noqa: E402
from thunder_ex_te.probe import kernels  # noqa: E402


def scales(size: float, **options: Any) -> dict[str, float]:
    """The scales after a step of a layer with inputs of that size, by what they are of."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 16, bias=False, device=device)
    reduce = options.pop("reduce", True)
    recipe = kernels().recipes.DelayedScaling(amax_history_len=4, reduce_amax=reduce)
    f = thunder.jit(layer, te_recipe=recipe, **options)
    f(torch.full((16, 32), size, device=device)).backward(torch.full((16, 16), 4 * size, device=device))
    return {name.rpartition(".")[2]: float(kept["scale"]) for name, kept in f._extra_state["te"].items()}


def check(found: dict[str, float], size: float) -> None:
    """Scales that bring values of that size to the type's largest."""
    assert abs(found["input"] / (448 / size) - 1) < 1e-6 and abs(found["grad"] / (57344 / 4 / size) - 1) < 1e-6, found


dist.init_process_group(
    "nccl" if device == "cuda" else "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
)
mine = 2.0 + 6.0 * rank
check(scales(mine), 8.0)
check(scales(mine, te_amax_reduction_group=dist.new_group([0, 1])), 8.0)
alone = [dist.new_group([each]) for each in range(2)][rank]
check(scales(mine, te_amax_reduction_group=alone), mine)
check(scales(mine, reduce=False), mine)
dist.destroy_process_group()
