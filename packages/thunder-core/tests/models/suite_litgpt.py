# SPDX-License-Identifier: Apache-2.0
"""LitGPT's model under `thunder.jit`. `nox -s models` runs this, and installs LitGPT without bringing a torch."""

from __future__ import annotations

import copy

import pytest
import torch
from zoo.checks import common_tests, counts
from zoo.entry import Entry
from zoo.litgpt_models import MODELS, VOCABULARY

import thunder

test_outputs, test_training = common_tests(MODELS)


@pytest.mark.parametrize("entry", MODELS, ids=str)
def test_key_value_cache(entry: Entry) -> None:
    """A prompt, then a token at a time: the cache is written in place, and one program serves every step.

    Layers that attend to a window choose by how far it is full, which their positions tell.
    """
    eager = entry.module().eval()
    twin = copy.deepcopy(eager)
    jitted = thunder.jit(twin)
    prompt = torch.arange(5)[None] % VOCABULARY
    with torch.no_grad():
        for model in (eager, twin):
            model.set_kv_cache(batch_size=1, dtype=entry.dtype)
        given, position = prompt, torch.arange(5)
        for _ in range(6):
            expected, found = eager(given, position), jitted(given, position)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
            given, position = expected[:, -1:].argmax(-1), position[-1:] + 1
    for (name, a), (_, b) in zip(eager.named_buffers(), twin.named_buffers()):
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
    assert counts(jitted) == (2, 4), thunder.explain(jitted)
