# SPDX-License-Identifier: Apache-2.0
"""Options of `torch.compile` that `thunder.jit` accepts, and errors that name thunder's option."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder


def options(**given: Any) -> tuple[str, str]:
    found = thunder.jit(lambda x: x, **given)._options
    return found.cache, found.sharp_edges


def test_options_with_a_counterpart() -> None:
    """They stand for the option of thunder."""
    default = options()
    assert options(fullgraph=True) == (default[0], "error")
    assert options(dynamic=True) == ("symbolic values", default[1])
    for given in (
        {"fullgraph": False},
        {"dynamic": False},
        {"dynamic": None},
        {"mode": "default"},
        {"mode": None},
        {"options": None, "disable": False},
    ):
        assert options(**given) == default


def test_dynamic_programs_serve_all_sizes() -> None:
    """Also as a decorator."""

    @thunder.jit(dynamic=True)
    def f(x):
        return x.sin()

    for n in range(2, 6):
        f(torch.ones(n))
    assert thunder.cache_misses(f) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "reduce-overhead"}, r"no mode 'reduce-overhead': cuda_graphs=.always."),
        ({"mode": "max-autotune"}, "no mode 'max-autotune': measured=.first call."),
        ({"options": {"max_autotune": True}}, "they are options of Inductor"),
        ({"disable": True}, "THUNDER_DISABLE=1"),
        ({"backend": "inductor"}, r"no backend 'inductor': executors=\[\"torch_compile\"\]"),
        ({"backend": "aot_eager"}, r"no backend 'aot_eager': executors=\[\"torch\"\]"),
        ({"backend": lambda graph, inputs: graph}, "thunder.jit is a compiler itself"),
        ({"fullgraph": "yes"}, "fullgraph is True, False or None"),
        ({"dynamic": 1.5}, "dynamic is True, False or None"),
        ({"dynamic": True, "cache": "same input"}, "dynamic=True stands for cache='symbolic values'"),
        ({"fullgraph": True, "sharp_edges": "allow"}, "fullgraph=True stands for sharp_edges='error'"),
        ({"dynamic": False, "cache": "symbolic values"}, "contradict"),
    ],
)
def test_options_without_a_counterpart(given: dict[str, Any], message: str) -> None:
    """The error names thunder's way."""
    with pytest.raises(TypeError, match=message):
        options(**given)
