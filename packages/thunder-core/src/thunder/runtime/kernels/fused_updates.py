# SPDX-License-Identifier: Apache-2.0
"""Kernels of torch that write to lists of tensors, as functions that return the new tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["ALL", "updating"]

ALL = "all"


def updating(func: Any, written: Sequence[str]) -> Callable[..., list[Any]]:
    """Return a function that runs `func`, an overload in `torch.ops`, and returns its arguments `written`.

    It writes to copies of the arguments, except to those at the positions `reused`, or to `ALL` of a list.
    """
    positional = [a.name for a in func._schema.arguments if not a.kwarg_only]

    def run(given: dict[str, Any], reused: Mapping[str, Any] | None = None) -> list[Any]:
        call = dict(given)
        for name in written:
            kept = {} if reused is None else reused.get(name, ())
            if kept == ALL:
                continue
            if isinstance(given[name], torch.Tensor):
                call[name] = given[name].clone()
            else:
                call[name] = [x if i in kept else x.clone() for i, x in enumerate(given[name])]
        func(
            *[call[name] for name in positional if name in call],
            **{name: x for name, x in call.items() if name not in positional},
        )
        return [call[name] for name in written]

    return run
