# SPDX-License-Identifier: Apache-2.0
"""Draws of random numbers as arithmetic on a seed, so that they become part of fusions.

Before differentiation one operation, `triton_seeds`, draws a seed for each draw of the program from torch's generator:
one small draw, which advances the generator, repeats under `manual_seed` and can be captured in a CUDA graph. What was
a draw is then `triton_uniform(seed, shape)` and arithmetic on it. That is no random operation any more: it always gives
the same of its seed. So backward computes it again of the seed instead of a mask that is kept, and regions of
`torch.utils.checkpoint` draw the same twice without putting the generator back.

The numbers are others than torch's. `thunder.jit(f, triton_random=False)` leaves all draws to torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.devices import to_torch_device
from thunder.core.langctx import set_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies
from thunder.core.trace import Trace, construct
from thunder.transforms.checkpoint import Region, region
from thunder_ex_triton.fusion.philox import uniform
from thunder_ex_triton.fusion.sizes import hint_of
from thunder_ex_triton.fusion.values import UNIFORM
from thunder_ex_triton.launch import blocks, kernel
from thunder_ex_triton.machine import unusable_device

__all__ = ["OPTION", "drawn_seeds", "register"]

OPTION = "triton_random"

_FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


# -- the operators -----------------------------------------------------------------------------------------------------
def _seeds_meta(n: int, device: Any) -> tuple[TensorProxy, ...]:
    """A seed and an offset for each of `n` draws."""
    return tuple([TensorProxy(shape=(2,), device=device, dtype=dtypes.int64) for _ in range(n)])


def drawn_seeds(n: int, device: Any) -> tuple[torch.Tensor, ...]:
    """So many seeds from the generator of a device."""
    drawn = torch.empty((n, 2), dtype=torch.int64, device=to_torch_device(device)).random_()
    return drawn.unbind()


def _uniform_meta(seed: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """Numbers from [0, 1), always the same of one seed."""
    return TensorProxy(shape=tuple(shape), device=seed.device, dtype=dtypes.float32)


@kernel
@triton.jit
def _uniform_kernel(state, out, n, XB: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * XB + tl.arange(0, XB)
    tl.store(out + place, uniform(state, place), mask=place < n)


def _uniform(seed: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    out = torch.empty(tuple(shape), dtype=torch.float32, device=seed.device)
    n = out.numel()
    if n:
        _uniform_kernel(blocks(n, 1024), (seed, out), (n, 1024), 4)
    return out


# -- what draws are made of --------------------------------------------------------------------------------------------
Uniform = Callable[[Sequence[int]], Any]  # fresh numbers from [0, 1) of a shape


def _between(drawn: Any, low: Any, high: Any, dtype: Any) -> Any:
    """Numbers of [0, 1) as numbers of [low, high): what rounding makes `high` is `low`, as in torch."""
    spread = drawn if (low, high) == (0.0, 1.0) else drawn * (high - low) + low
    if spread is drawn and dtype is dtypes.float32:
        return drawn
    spread = ltorch.to(spread, dtype)
    return spread if low == high else ltorch.where(spread >= high, low, spread)


def _of_uniform(fresh: Uniform, shape: Any, low: Any, high: Any, *, dtype: Any, **where: Any) -> Any:
    return _between(fresh(shape), low, high, dtype)


def _of_normal(fresh: Uniform, shape: Any, mean: Any, std: Any, *, dtype: Any, **where: Any) -> Any:
    radius = ltorch.sqrt(ltorch.log(1.0 - fresh(shape)) * -2.0)
    return ltorch.to(radius * ltorch.cos(fresh(shape) * (2 * math.pi)) * std + mean, dtype)


def _of_bernoulli(fresh: Uniform, shape: Any, p: Any, *, dtype: Any, **where: Any) -> Any:
    return ltorch.to(fresh(shape) < p, dtype)


def _of_exponential(fresh: Uniform, shape: Any, rate: Any, *, dtype: Any, **where: Any) -> Any:
    return ltorch.to(ltorch.log(1.0 - fresh(shape)) * (-1.0 / rate), dtype)


def _of_dropout_noise(fresh: Uniform, a: Any, p: Any, feature: bool) -> Any:
    shape = (*a.shape[:2], *([1] * (a.ndim - 2))) if feature else a.shape
    return ltorch.to(fresh(shape) >= p, a.dtype)


def _of_native_dropout(fresh: Uniform, a: Any, p: Any) -> Any:
    mask = fresh(a.shape) >= p
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    wide = dtypes.float32 if a.dtype in _FLOATS else a.dtype
    kept = ltorch.to(a, wide) * ltorch.to(mask, wide) * scale
    return ltorch.to(kept, a.dtype), mask


# By the primitive: what it is made of, how many seeds that takes, and the dtypes for which single precision is enough.
_DRAWS: dict[Any, tuple[Callable[..., Any], int, tuple[Any, ...] | None]] = {
    prims.uniform: (_of_uniform, 1, _FLOATS),
    prims.normal: (_of_normal, 2, _FLOATS),
    prims.bernoulli: (_of_bernoulli, 1, None),
    prims.exponential: (_of_exponential, 1, _FLOATS),
    prims.dropout_noise: (_of_dropout_noise, 1, None),
    prims.native_dropout: (_of_native_dropout, 1, None),
}


# -- the pass ----------------------------------------------------------------------------------------------------------
def register(registry: Any, executor: str) -> None:
    """Brings the operators, the option and the pass."""
    seeds = registry.register_operator(
        "triton_seeds", executor=executor, meta=_seeds_meta, fn=drawn_seeds,
        tags=(OpTags.RANDOM_OP, OpTags.NON_DIFFERENTIABLE),
    )  # fmt: skip
    drawn = registry.register_operator(
        UNIFORM.partition(".")[2], executor=executor, meta=_uniform_meta, fn=_uniform,
        tags=(OpTags.RECOMPUTED, OpTags.NON_DIFFERENTIABLE),
    )  # fmt: skip
    registry.register_option(
        OPTION, type=bool, default=True, help="whether fusions draw random numbers; else torch does, as in eager"
    )

    def rewrite(trace: Trace, context: Any) -> Trace:
        fuser = next((ex for ex in context.executors if ex.name == executor), None)
        if fuser is None or context.options.get(OPTION) is False:
            return trace
        return _Rewriter(trace, fuser, seeds, drawn).result()

    registry.register_transform("triton_random", rewrite, phase="before_grad")


class _Rewriter:
    """The pass over one trace."""

    def __init__(self, trace: Trace, fuser: Any, seeds: Any, drawn: Any):
        self.trace = trace
        self.fuser = fuser
        self.seeds = seeds
        self.drawn = drawn
        self.wanted: dict[Any, int] = {}  # by device: how many seeds
        self.left: dict[Any, Iterator[TensorProxy]] = {}

    def result(self) -> Trace:
        """The trace with its draws made of seeds; the same one where there are none that are worth it."""
        plan = self.planned(self.trace.bound_symbols)
        if not self.wanted:
            return self.trace
        with construct(self.trace, "Random numbers of seeds") as out, tracectx(out), set_langctx("torch"):
            started = False
            for op, parts in plan:
                if parts is not None and not started:
                    started = True
                    self.left = {d: iter(self.seeds(n, d)) for d, n in self.wanted.items()}
                for new in [op] if parts is None else self.written(op, parts, out):
                    out.record(new)
        return out

    # -- what is to be rewritten --------------------------------------------------------------------------------------
    def planned(self, operations: Sequence[BoundSymbol]) -> list[tuple[BoundSymbol, Any]]:
        """Each operation, and what it is taken apart into; None where it stays. Counts seeds."""
        readers: dict[str, list[BoundSymbol]] = {}
        for op in operations:
            for name in op.arg_names:
                readers.setdefault(name, []).append(op)
        return [(op, self.plan(op, readers)) for op in operations]

    def plan(self, op: BoundSymbol, readers: dict[str, list[BoundSymbol]]) -> Any:
        if not op.has_effect:
            return None
        if isinstance(op.sym, Region):
            inner = self.planned(op.subsymbols)
            return inner if any(parts is not None for _, parts in inner) else None
        parts = self.apart(op)
        if parts is None or (all(self.is_draw(part) for part in parts) and not self.is_fused_later(op, readers)):
            return None
        for part in filter(self.is_draw, parts):
            device = part.flat_outs[0].device  # type: ignore[attr-defined]
            self.wanted[device] = self.wanted.get(device, 0) + _DRAWS[part.sym][1]
        return parts

    def apart(self, op: BoundSymbol) -> list[BoundSymbol] | None:
        """The draws and the other parts of an operation; None where they are not all ours."""
        if self.is_draw(op) or not op.has_effect:
            return [op] if self.is_draw(op) or self.fuser.can_fuse(op) or not op.out_names else None
        if not op.subsymbols:
            return None
        found = [self.apart(sub) for sub in op.subsymbols]
        return None if any(parts is None for parts in found) else [part for parts in found for part in parts or ()]

    def is_draw(self, op: BoundSymbol) -> bool:
        """Whether a primitive is a draw that can be made of seeds."""
        known = _DRAWS.get(op.sym)
        if known is None or op.kwargs.get("generator") is not None:
            return False
        p: Any = op.flat_outs[0]
        sizes = [hint_of(d) for d in p.shape]
        return (
            (known[2] is None or p.dtype in known[2])
            and unusable_device(p.device) is None
            and None not in sizes
            and 0 < math.prod(sizes) < 1 << 33
        )

    def is_fused_later(self, op: BoundSymbol, readers: dict[str, list[BoundSymbol]]) -> bool:
        """Whether a fusion may read what is drawn: else a draw of torch's is as good, and needs no seed."""
        return any(self.fuser.can_fuse(reader) for name in op.out_names for reader in readers.get(name, ()))

    # -- what it becomes ----------------------------------------------------------------------------------------------
    def written(self, op: BoundSymbol, parts: Any, out: Trace) -> list[BoundSymbol]:
        if isinstance(op.sym, Region):
            inner = [new for sub, below in parts for new in ([sub] if below is None else self.written(sub, below, out))]
            again = op.sym.same_random_numbers
            return [region(inner, same_random_numbers=again, wanted=set(op.out_names), source=op.source)]
        made: list[BoundSymbol] = []
        for part in parts:
            made += self.drawn_of_seeds(part, op, out) if self.is_draw(part) else [part]
        return made

    def drawn_of_seeds(self, draw: BoundSymbol, whole: BoundSymbol, out: Trace) -> list[BoundSymbol]:
        """The operations that make what a draw makes, of the next seeds."""
        device = draw.flat_outs[0].device  # type: ignore[attr-defined]
        with out.scope() as recorded:
            result = _DRAWS[draw.sym][0](
                lambda shape: self.drawn(next(self.left[device]), tuple(shape)), *draw.args, **draw.kwargs
            )
        names: dict[str, Any] = {}
        old, new = draw.flat_outs, []
        map_proxies(result, new.append)
        names.update((q.name, p) for p, q in zip(old, new))
        found = [op.substitute(names) for op in recorded]
        for op in found:
            op.source = op.source or whole.source
        return found
