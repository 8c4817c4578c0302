# SPDX-License-Identifier: Apache-2.0
"""`flex_attention` inside a traced program: one operation, whose arguments contain the user's functions as programs.

torch's Python function checks its arguments and calls a higher-order operator, which `torch_patches.py` replaces by
`flex_attention_traced`. The functions of scores and masks are traced once for one element, inside four nested parts of
`vmap`, so that they may do what torch's own `vmap` allows, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.user_lines import annotate, user_line
from thunder.capture.higher_order.subtrace import Escaped, Subtrace
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.core import prims
from thunder.core.dtypes import float64
from thunder.core.errors import TracingError
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, proxies_in
from thunder.passes.dce import live_operations
from thunder.passes.scalar_programs import ScalarProgram
from thunder.torch import private

__all__ = ["flex_attention_traced", "kernel_options"]

_INDICES = ("b", "h", "q_idx", "kv_idx")


def kernel_options(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the replacement of the function that completes the kernel options.

    In its result, OUTPUT_LOGSUMEXP means that the program asks for the logsumexp. A gradient rule asks for itself.
    """

    def completed(
        query: Any, key: Any, value: Any, return_lse: bool, options: Any, return_aux: Any = None, **more: Any
    ) -> Any:
        found = original(query, key, value, return_lse, options, return_aux, **more)
        found["OUTPUT_LOGSUMEXP"] = return_lse if return_aux is None else return_aux.lse
        return found

    return completed


def flex_attention_traced(
    tracer: Tracer, query: Any, key: Any, value: Any, score_mod: Any, block_mask: tuple[Any, ...], scale: float,
    options: dict[str, Any], score_captured: Sequence[Any] = (), mask_captured: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Call torch's operator `flex_attention` in a traced program."""
    try:
        return _call(tracer, query, key, value, score_mod, block_mask, scale, options, score_captured, mask_captured)
    except RuntimeError as error:
        annotate(error, user_line())
        raise


def _call(
    tracer: Tracer, query: Any, key: Any, value: Any, score_mod: Any, block_mask: tuple[Any, ...], scale: float,
    options: dict[str, Any], score_captured: Sequence[Any], mask_captured: Sequence[Any],
) -> Any:  # fmt: skip
    *blocks, mask_mod = block_mask
    score, of_score = _traced(tracer, "score_mod", score_mod, query, key, score_captured)
    mask, of_mask, entries = None, (), None
    if not private.masks_nothing(block_mask):
        mask, of_mask = _traced(tracer, "mask_mod", mask_mod, query, key, mask_captured)
        entries = tuple(blocks)
    options = dict(options)
    lse, largest = options.pop("OUTPUT_LOGSUMEXP"), options.pop("OUTPUT_MAX", False)
    requiring = {h._value.name for h in tracer.handles if needs_grad(h)}
    with tracer.recording():
        tensors = [_cast(x) for x in tracer.unwrap((query, key, value))]
        args = (*tensors, score, mask, of_score, of_mask, tracer.unwrap(entries), scale, options, lse, largest)
        out, *rows = ltorch.flex_attention(*args)
        grad = any(map(needs_grad, (query, key, value))) or any(p.name in requiring for p in of_score)
        if grad and tracer.detaching and not torch.is_grad_enabled():
            out, rows = tracer.detached(out, (), {}), tracer.detached(rows, (), {})
        grad = grad and torch.is_grad_enabled()
        return (*tracer.wrap((out, rows[0]), requires_grad=grad), tracer.wrap(rows[1]))


def _cast(x: TensorProxy) -> Any:
    """Return a query, key or value as autocast casts it."""
    kind = x.device.type
    if x.dtype is float64 or not torch.is_autocast_enabled(kind) or not private.flex_attention_autocasts(kind):
        return x
    return ltorch.to(x, torch.get_autocast_dtype(kind))


# -- the functions of one element -------------------------------------------------------------------------------------
def _traced(
    tracer: Tracer, name: str, fn: Callable[..., Any], query: Any, key: Any, others: Sequence[Any]
) -> tuple[ScalarProgram | None, tuple[Proxy, ...]]:
    """Trace a function of scores or of masks. Return its program (None for the identity) and the captured values."""
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    parts = [Subtrace(tracer, "vmap", constant=False) for _ in sizes]
    elements = [part.stand_in(torch.arange(size, device=query.device), batch_dim=0) for part, size in zip(parts, sizes)]
    names: tuple[str, ...] = _INDICES
    if name == "score_mod":
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        score = torch.zeros((), dtype=dtype, device=query.device).expand(sizes)
        for part in parts:
            score = part.stand_in(score, requires_grad=needs_grad(query) or needs_grad(key), batch_dim=0)
        elements, names = [score, *elements], ("score", *_INDICES)
    outer, *inner = [part.run for part in parts]
    result = outer(*inner, fn, *elements, *others)
    if not isinstance(result, torch.Tensor) or result.ndim:
        raise RuntimeError(f"{name} must return a tensor without dimensions, but it returned {result!r}")
    return _program(tracer, name, names, parts[-1], elements, result)


def _program(
    tracer: Tracer, name: str, names: Sequence[str], part: Subtrace, elements: Sequence[Any], result: torch.Tensor
) -> tuple[ScalarProgram | None, tuple[Proxy, ...]]:
    value = part.read([result])[0]
    if part.written_outside() or part.written():
        raise TracingError(f"{name} writes to a tensor created outside of it. Use the out-of-place operation")
    for handle in part.own_handles():
        handle._tracer = Escaped()  # type: ignore[assignment]
    given = {new: x._value for new, x in zip(names, elements)}
    if name == "score_mod" and value is given["score"]:
        return None, ()
    operations = live_operations([*part.operations, BoundSymbol(prims.python_return, (value,), {}, None)])[:-1]
    made = {p.name for p in given.values()} | {n for op in operations for n in op.out_names}
    read = {p.name: p for op in operations for p in proxies_in((op.args, op.kwargs)) if p.name not in made}
    if value.name not in made:
        read[value.name] = value
    captured = tuple(sorted(read.values(), key=lambda p: isinstance(p, NumberProxy)))
    with tracer.recording():
        return ScalarProgram.make(name, given, captured, operations, value), captured
