# SPDX-License-Identifier: Apache-2.0
"""The kind of NumPy arrays. An array that the program uses becomes an input, so its contents may change."""

from __future__ import annotations

from typing import Any

from thunder.capture.base.predicates import module_of
from thunder.capture.base.sources import Argument, ArrayTensor, Source
from thunder.capture.reads.guard_kinds import IsSame
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.tensors.arrays import ArrayHandle
from thunder.runtime.arrays import shared_tensor

__all__ = ["Array", "array_handle"]


class Array(Kind):
    """Arrays. While the program is traced, an array handle replaces the array."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Match `numpy.ndarray` itself."""
        return cls.__name__ == "ndarray" and module_of(cls) == "numpy"

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Replace the array by its handle. The program must not use an array that cannot be replaced."""
        handle = recorder.arrays.get(id(value))
        if handle is None and holder is not None:
            handle = array_handle(source, value, recorder)
        elif handle is not None and handle._thunder_origin[0] is not source:
            recorder.add(IsSame(source, handle._thunder_origin[0]))
        if handle is not None and holder is not None:
            recorder.substitute(holder, value, handle)
        elif handle is None or not isinstance(source, Argument):  # arguments have been replaced
            recorder.unguardable_found(source, value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write a copy of an array that the program made from constants."""
        return epilogue.not_rebuilt(value) if value.dtype.hasobject else epilogue.new_array(value)


def array_handle(source: Source, value: Any, recorder: Recorder) -> ArrayHandle | None:
    """Return the handle of an array from outside, or None if no tensor can share its memory."""
    found = recorder.arrays.get(id(value))
    tensor = None if found is not None else shared_tensor(value)
    if tensor is not None:
        found = recorder.arrays[id(value)] = ArrayHandle(tensor, origin=(source, value))
        recorder.register(source, value, [])
        recorder.tensor_found(source.to(ArrayTensor), tensor)
    return found
