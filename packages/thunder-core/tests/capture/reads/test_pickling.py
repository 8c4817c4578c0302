# SPDX-License-Identifier: Apache-2.0
"""Pickled plain data is a value like others; pickled objects end the trace."""

from __future__ import annotations

import pickle
from typing import Any

import torch

import thunder

X = torch.linspace(-1, 1, 6)


def test_plain_data(watch: Any) -> None:
    """Its items are guarded."""
    options = {"upper": [True, 1, "a"]}
    w = watch(lambda x: x * len(pickle.dumps(options)))
    w.kept()
    options["lower"] = [2.5, None]
    w.changed()


def test_objects() -> None:
    """The call runs eagerly, because an object may have changed."""
    options: dict[str, Any] = {"upper": thunder}
    options["upper"] = torch.float32
    jitted = thunder.jit(lambda x: x * len(pickle.dumps(options)))
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * len(pickle.dumps(options)))
    assert thunder.cache_hits(jitted) == 0
    assert "pickles objects" in thunder.explain(jitted)
