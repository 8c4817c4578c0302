# SPDX-License-Identifier: Apache-2.0
"""Sample calls of torch's public names, derived from existing samples.

A name with an operation in thunder uses that operation's samples. A method uses the samples of the function of the same
name. An in-place form uses the samples of the functional form. A Python operator uses the samples of its method. All
other names have samples in `samples.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

import thunder.torch as ltorch
from surface.names import NAMESPACES, Entry
from surface.samples import SAMPLES, samples_by_hand
from thunder.core.proxies import OPERATORS
from thunder.core.samples import SampleInput
from thunder.core.symbol import Symbol
from thunder.tests.opinfo import OpInfo
from thunder.tests.opinfos import all_opinfos

__all__ = ["samples_of"]


@functools.cache
def _infos() -> dict[Any, OpInfo]:
    return {info.symbol.id: info for info in all_opinfos() if isinstance(info.op, Symbol) and not info.symbol.is_prim}


def _symbol_of(entry: Entry) -> Symbol | None:
    target = entry.target
    found: Any = None
    try:
        found = ltorch.torch_function_map().get(target)
    except TypeError:  # a plain value that is not hashable
        return None
    if found is None and entry.namespace == "torch.Tensor":
        language = ltorch.language
        found = language.properties.get(entry.name) or language.methods.get(entry.name)
    return found if isinstance(found, Symbol) else None


def _base_names(entry: Entry) -> Iterator[Entry]:
    """Yield the entries whose samples an entry can use, in order of preference."""
    name = entry.name
    if name.startswith("__"):
        plain = name.strip("_")
        for dunder in (f"__{plain}__", f"__{plain[1:]}__"):  # `__iadd__` and `__radd__` use the samples of `__add__`
            method = OPERATORS.get(dunder) or {"__div__": "true_divide", "__rdiv__": "true_divide"}.get(dunder)
            if method is not None:
                yield Entry("torch.Tensor", method)
        return
    spellings = [name]
    if entry.is_in_place:
        spellings.append(name[:-1])
    for spelling in spellings:
        for namespace in (entry.namespace, "torch", "torch.Tensor", "torch.nn.functional", "torch.special"):
            if (namespace, spelling) != (entry.namespace, name) and hasattr(NAMESPACES[namespace], spelling):
                yield Entry(namespace, spelling)


def samples_of(entry: Entry, dtype: torch.dtype = torch.float32) -> list[SampleInput]:
    """Return calls of the entry, some of which torch may reject. They are reproducible."""
    for each in (entry, *_base_names(entry)):
        if each.path in SAMPLES:
            found = samples_by_hand(each.path, dtype)
        else:
            sym = _symbol_of(each)
            info = None if sym is None else _infos().get(sym.id)
            found = [] if info is None else _of_operation(info, dtype)
        if found:
            return found if entry.namespace != "torch.Tensor" else [s for s in found if _is_on_tensor(s)]
    return []


def _of_operation(info: OpInfo, dtype: torch.dtype) -> list[SampleInput]:
    for kind in (dtype, torch.int64, torch.bool, torch.complex64):
        if info.exists_for("cpu", kind):
            return info.sample_inputs("cpu", kind)
    return []


def _is_on_tensor(sample: SampleInput) -> bool:
    return bool(sample.args) and isinstance(sample.args[0], torch.Tensor)
