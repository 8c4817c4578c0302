# SPDX-License-Identifier: Apache-2.0
"""Replacements of the built-ins `id` and `hash` in programs: the result of a call is guarded by the object's identity.

A tensor of the program has the `id` of the real tensor, so that programs find it in a set of earlier ids.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from thunder.capture.base.phase import TracerPhase, active
from thunder.capture.base.sources import Argument, Source
from thunder.capture.numbers.overrides import ANSWERS
from thunder.capture.reads.guard_kinds import IsAlive, IsObject
from thunder.capture.reads.kinds.base import Recorder
from thunder.capture.tensors.handle import is_handle

__all__ = ["guarded_identity"]


def guarded_identity(recorder: Recorder, obj: Any) -> Any:
    """Guard that an object, which the program identifies by `id` or `hash`, is the same in later calls; return it.

    For a handle of an input, return the real tensor. An object that the program created needs no guard.
    """
    source: Source | None = None
    if isinstance(obj, torch.Tensor):
        if is_handle(obj):
            lifted = obj._tracer.input_with(obj)
            if lifted is None:
                return obj
            obj = lifted.tensor
        source = recorder.source_of_input(obj)
        if source is None:
            recorder.refuse("the program reads the id of a tensor, which thunder cannot find again")
    elif id(obj) in recorder.reached:
        source = recorder.reached[id(obj)].source
        if recorder.is_copy(obj):
            recorder.refuse(f"the program reads the id of `{source}`")
    if source is not None and (source.parent is not None or isinstance(source, Argument)):
        try:
            recorder.add(IsAlive(source, weakref.ref(obj)))
        except TypeError:
            recorder.add(IsObject(source, obj))
    return obj


def _identified(x: Any) -> Any:
    if active.reader is None or active.thread != threading.get_ident():
        return x
    with TracerPhase():
        return active.reader.identified(x)


def _id(x: Any, /) -> int:
    return id(_identified(x))


def _hash(x: Any, /) -> int:
    by_identity = type(x).__hash__ in (object.__hash__, torch.Tensor.__hash__)
    return hash(_identified(x) if by_identity else x)


ANSWERS.update({id(id): _id, id(hash): _hash})
