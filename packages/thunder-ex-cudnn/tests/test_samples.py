# SPDX-License-Identifier: Apache-2.0
"""The samples of the conformance suite, where only torch can compute them."""

from __future__ import annotations

from typing import Any

import torch

import thunder
from thunder_ex_cudnn import samples


def test_samples_of_every_operator(executor: Any, cudnn: Any) -> None:
    """Each operator has samples, whose references are what it gives where cuDNN has no plan."""
    cudnn.refuses = True
    infos = samples.opinfos()
    assert {info.name for info in infos} == set(executor.opmap)
    for info in infos:
        made = list(info.sample_inputs("cpu", torch.bfloat16))
        assert len(made) > 2
        for sample in made[:4]:
            if info.name.startswith("cudnn_attention_dropout"):
                continue  # nobody else draws cuDNN's numbers
            found = thunder.jit(lambda *args: info.op(*args), executors=[executor])(*sample.args)
            expected = info.torch_reference(*sample.args)
            near = 0.1 if "norm" in info.name else 2e-2  # torch adds up rows in bfloat16 on the CPU
            for a, b in zip(_flat(found), _flat(expected)):
                torch.testing.assert_close(a, b, atol=near, rtol=2e-2)


def _flat(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)
