# SPDX-License-Identifier: Apache-2.0
"""Operations on the meta device, which computes the strides that torch gives results.

If the layout of an operation's results depends on the kernel, the operation runs on fake tensors of its device instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.devices import Device, to_torch_device
from thunder.core.dtypes import dtype, to_torch_dtype
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import flat_items
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in
from thunder.core.symint.numbers import SymbolicNumber, specialized
from thunder.executors import TORCH
from thunder.executors.torchex.foreach import is_elementwise_foreach, is_foreach
from thunder.executors.torchex.part_updates import keeps_strides
from thunder.torch.private import DisableTorchFunction, FakeTensorMode, WithoutMemory

__all__ = ["asks_for_layout", "contiguous", "is_dense", "on_meta", "run", "torch_function"]


def is_dense(sym: Symbol, kwargs: dict[str, Any]) -> bool:
    """Check whether the result is contiguous for all strides of the arguments, which then need not be computed."""
    return sym.facts.layout == "contiguous" and kwargs.get("memory_format") in (None, torch.contiguous_format)


def asks_for_layout(bsym: BoundSymbol) -> bool:
    """Check whether an operation is called with a memory format."""
    given = [x for x in (*bsym.args, *bsym.kwargs.values()) if isinstance(x, torch.memory_format)]
    return any(x not in (torch.contiguous_format, torch.preserve_format) for x in given)


def contiguous(p: TensorProxy) -> torch.Tensor:
    """Return a contiguous tensor on the meta device."""
    return torch.empty(specialized(p.shape), dtype=to_torch_dtype(p.dtype), device="meta")


def _of_elements(bsym: BoundSymbol, known: dict[str, torch.Tensor], outs: Sequence[TensorProxy]) -> bool:
    """Add the results of an elementwise operation to `known`. Return False if torch has to compute their strides.

    torch's kernels first try common layouts, if all operands are tensors of one shape. Its functions for the meta
    device do not, and give other strides to dimensions of one element. By those, torch tells whether an image of one
    pixel, or with one channel, is channels-last.
    """
    operands = [known[p.name] for p in bsym.tensors()]
    alike = not any(isinstance(x, (int, float, complex, NumberProxy)) for x in bsym.args) and not _converts(bsym)
    alike = alike and all(x.shape == operands[0].shape and p.shape == x.shape for x in operands for p in outs)
    if all(map(_is_as_new, operands)) or (alike and all(x.is_contiguous() for x in operands)):
        known.update((p.name, contiguous(p)) for p in outs)
    elif alike and operands[0].ndim == 4 and all(x.is_contiguous(memory_format=torch.channels_last) for x in operands):
        known.update((p.name, contiguous(p).contiguous(memory_format=torch.channels_last)) for p in outs)
    else:
        return False
    return True


def _converts(bsym: BoundSymbol) -> bool:
    """Check for a conversion to another dtype, whose result has the strides of a dense operand."""
    return bsym.sym is prims.convert_element_type or any(map(_converts, bsym.subsymbols))


def _is_as_new(x: torch.Tensor) -> bool:
    """Check whether a tensor has the strides of a new one, also in dimensions of one element."""
    step = 1
    for n, stride in zip(reversed(x.shape), reversed(x.stride())):
        if stride != step:
            return False
        step *= max(n, 1)
    return True


def run(bsym: BoundSymbol, known: dict[str, torch.Tensor], unknown: set[str], *, claimed: bool = False) -> None:
    """Add the results of an operation to `known`, and to `unknown` the names of those whose strides are a guess.

    In a `claimed` program, operators of executors are replaced by their parts: their kernels may need real memory.
    """
    outs = [p for p in proxies_in(bsym.output) if isinstance(p, TensorProxy)]
    fn = torch_function(bsym)
    by_plugin = claimed and bsym.sym.executor not in (None, TORCH)
    if (fn is None or by_plugin) and bsym.subsymbols:  # torch has no function for the property x.T, for example
        for sub in bsym.subsymbols:
            run(sub, known, unknown, claimed=claimed)
        for p in outs:
            known.setdefault(p.name, contiguous(p))
        return
    if keeps_strides(fn):  # no need to run it, and the meta device cannot run all of them
        with DisableTorchFunction():
            known[outs[0].name] = torch.empty_like(known[bsym.args[0].name])
        return
    elementwise = OpTags.ELEMENTWISE_OP in bsym.sym.tags and not asks_for_layout(bsym)
    # A view such as `conj` may only set a flag of its result.
    if elementwise and OpTags.VIEW_OP not in bsym.sym.tags and _of_elements(bsym, known, outs):
        return
    try:
        if fn is None or by_plugin:
            raise TypeError
        if bsym.sym.executor not in (None, TORCH):
            results = _without_memory(fn, bsym, known)
        else:
            by_kernel = OpTags.LAYOUT_OF_KERNEL in bsym.sym.tags
            results = (_as_fakes if by_kernel else _on_meta_device)(fn, bsym, known)
        for p, t in zip(outs, results):
            known[p.name] = t if tuple(t.shape) == p.shape else contiguous(p)
    except Exception:
        # torch cannot run it on the meta device. Assume that its results are contiguous.
        known.update((p.name, contiguous(p)) for p in outs)
        unknown.update(p.name for p in outs if p.ndim > 1)


def _on_meta_device(fn: Any, bsym: BoundSymbol, known: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    args, kwargs = (on_meta(map_proxies(x, lambda p: known.get(p.name, p))) for x in _numbered(bsym))
    if not bsym.tensors():
        kwargs["device"] = torch.device("meta")  # a factory without an explicit device
    with torch.no_grad(), DisableTorchFunction():
        return [t for t in flat_items(fn(*args, **kwargs)) if isinstance(t, torch.Tensor)]


def _without_memory(fn: Any, bsym: BoundSymbol, known: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Run an executor's operator on the meta device. If it reads an address, as kernels do, it raises an error."""
    with WithoutMemory():
        given = {p.name: known[p.name] for p in bsym.tensors()}
        alike = {n: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for n, x in given.items()}
        return _on_meta_device(fn, bsym, alike)


def _as_fakes(fn: Any, bsym: BoundSymbol, known: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Run an operation on fake tensors of its device: much slower than the meta device, but with kernels' layouts."""

    def fake(p: Any) -> Any:
        if not isinstance(p, TensorProxy):
            return p
        like = known[p.name]
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=to_torch_device(p.device))

    with torch.no_grad(), DisableTorchFunction(), FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = (map_proxies(x, fake) for x in _numbered(bsym))
        found = [t for t in flat_items(fn(*args, **kwargs)) if isinstance(t, torch.Tensor)]
        laid_out = [(t.shape, t.stride(), t.dtype) for t in found]
    return [torch.empty_strided(*like, dtype=dtype, device="meta") for *like, dtype in laid_out]


def _numbered(bsym: BoundSymbol) -> tuple[Any, Any]:
    """Return the arguments of an operation with numbers in place of symbolic ones.

    Strides do not depend on floating point numbers, nor on any number of an elementwise operation. A constraint on them
    would compile a program again for each number, e.g. for each learning rate.
    """
    hinted = (int, float) if _is_elementwise(bsym) else float
    return specialized(bsym.args, hinted=hinted), specialized(bsym.kwargs, hinted=hinted)


def _is_elementwise(bsym: BoundSymbol) -> bool:
    return OpTags.ELEMENTWISE_OP in bsym.sym.tags or is_foreach(bsym) or is_elementwise_foreach(bsym)


def torch_function(bsym: BoundSymbol) -> Any:
    """Return the function that runs an operation on real tensors: torch's, or the torch executor's."""
    sym = bsym.sym
    if sym.reference is not None or sym.fn is not None:
        return sym.reference or sym.fn

    found = TORCH.implementation(bsym)
    return None if found is None or found.op is None else found.op.fn


def on_meta(x: Any) -> Any:
    """Return arguments of an operation for the meta device."""
    if isinstance(x, dict):
        return {k: torch.device("meta") if k == "device" else on_meta(v) for k, v in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(on_meta(i) for i in x)
    if isinstance(x, SymbolicNumber):
        return specialized(x)
    if isinstance(x, dtype):
        return to_torch_dtype(x)
    if isinstance(x, (Device, torch.device)):
        return torch.device("meta")
    return x
