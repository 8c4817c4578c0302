# SPDX-License-Identifier: Apache-2.0
"""Guards on the functions of torch that a program calls, and on those that a user or a library has replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from thunder.capture.base.sources import Attr, Root
from thunder.capture.reads.guard_kinds import IsObject, LacksKeys
from thunder.runtime.torch_originals import live_function, places

if TYPE_CHECKING:
    from thunder.capture.reads.read_recorder import ReadRecorder

__all__ = ["guard_functions_of_torch"]


def guard_functions_of_torch(
    recorder: ReadRecorder, functions: Mapping[Any, int], replaced: frozenset[tuple[str, str]]
) -> None:
    """Guard that the functions of torch that the program has called are still torch's, except those `replaced`.

    No hook sees that a program looks up a method of a tensor, or that torch's own code looks up a function. The values
    of `functions` are the numbers of calls that were not traced through.
    """
    for title, name in sorted(replaced):
        owner, value = live_function(title, name)
        recorder.value(Root(owner, title=title).attr(name), value)
    known = {guard.source: guard.operand for guard in recorder.guards if isinstance(guard, IsObject)}
    guarded = {
        (id(known.get(source.parent)), source.name)
        for source in known
        if isinstance(source, Attr) and source.parent is not None
    }
    inherited: set[str] = set()
    for function, whole in functions.items():
        if getattr(function, "__name__", "") in ("__get__", "__set__"):
            function = function.__self__  # a property of tensors
        for title, owner, name, value in places(function, inside=whole > 0):
            if (id(owner), name) in guarded or (title, name) in replaced:
                continue
            guarded.add((id(owner), name))
            if owner is torch.Tensor and name not in vars(torch.Tensor):
                inherited.add(name)  # from a class that cannot be changed
            else:
                recorder.add(IsObject(Root(owner, title=title).attr(name), value))
    if inherited:
        recorder.add(LacksKeys(Root(vars(torch.Tensor), title="torch.Tensor"), frozenset(inherited)))
