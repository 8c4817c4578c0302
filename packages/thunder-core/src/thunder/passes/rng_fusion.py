# SPDX-License-Identifier: Apache-2.0
"""Replace random draws by arithmetic on a seed, so that they can be fused.

A fusion executor provides two functions, which become operators. The first one draws all seeds of the program from
torch's generator, before any other draw. The second one is a deterministic function from a seed to numbers in [0, 1).
The pass runs before differentiation. It replaces a draw by the second operator and arithmetic on the operator's result.
The replacement is not a random operation. Backward therefore recomputes it from the seed instead of saving a mask, and
regions of `torch.utils.checkpoint` draw the same numbers twice without restoring the generator.

Contract: draws keep their distributions and follow `manual_seed`, but their numbers differ from torch's. Three kinds of
draws are not replaced: draws from a generator that the user passes, draws in double precision, and draws that no fusion
reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes, prims
from thunder.core.langctx import set_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace, construct
from thunder.passes.checkpoint import Region, region

__all__ = ["draw_of_seeds"]

Seeds = Callable[[int, Any], Sequence[Any]]  # (count, device) -> seeds
Drawn = Callable[[Any, Sequence[Any], Any], Any]  # (seed, shape, device) -> float32

_OPTIONS: dict[str, str] = {}  # executor -> option; the first such executor of a program draws all seeds
_FLOATS = (dtypes.float32, dtypes.float16, dtypes.bfloat16)


def draw_of_seeds(
    registry: Any, executor: str, seeds: Seeds, drawn: Drawn, unusable: Callable[[Any], Any], *, seeds_on: Any = None
) -> None:
    """Register a fusion executor's two operators, the pass, and the option that disables the pass.

    A seed is a tensor of two integers. It is on the device `seeds_on`, or by default on the device of its draw.
    """
    name = _OPTIONS[executor] = f"{executor}_random"
    registry.register_option(
        name, type=bool, default=True, help="whether fusions draw random numbers; else torch does, as in eager"
    )

    def seeds_meta(n: int, device: Any) -> tuple[TensorProxy, ...]:
        """Return `n` seeds for draws on a device."""
        return tuple([TensorProxy(shape=(2,), device=seeds_on or device, dtype=dtypes.int64) for _ in range(n)])

    def uniform_meta(seed: TensorProxy, shape: Sequence[Any], device: Any) -> TensorProxy:
        """Compute numbers in [0, 1) from a seed, deterministically."""
        return TensorProxy(shape=tuple(shape), device=device, dtype=dtypes.float32)

    seeds_operator = registry.register_operator(
        f"{executor}_seeds", executor=executor, meta=seeds_meta, fn=seeds,
        tags=(OpTags.RANDOM_OP, OpTags.NON_DIFFERENTIABLE),
    )  # fmt: skip
    uniform_operator = registry.register_operator(
        f"{executor}_uniform", executor=executor, meta=uniform_meta, fn=drawn,
        tags=(OpTags.RECOMPUTED, OpTags.NON_DIFFERENTIABLE),
    )  # fmt: skip

    def rewrite(trace: Trace, context: Any) -> Trace:
        drawing = (ex for ex in context.executors if context.options.get(_OPTIONS.get(ex.name, ""), True))
        fuser = next((ex for ex in drawing if ex.name in _OPTIONS), None)
        if fuser is None or fuser.name != executor:
            return trace
        return _Rewriter(trace, fuser, seeds_operator, uniform_operator, unusable).result()

    registry.register_transform(name, rewrite, phase="before_grad")


# -- the arithmetic of draws ------------------------------------------------------------------------------------------
Uniform = Callable[[Sequence[int]], Any]  # shape -> new numbers in [0, 1)


def _between(drawn: Any, low: Any, high: Any, dtype: Any) -> Any:
    """Scale numbers in [0, 1) to [low, high). A result that rounds to `high` becomes `low`, as in torch."""
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


# Primitive -> its arithmetic, the number of seeds, and the dtypes for which single precision is sufficient (None: all).
_DRAWS: dict[Any, tuple[Callable[..., Any], int, tuple[Any, ...] | None]] = {
    prims.uniform: (_of_uniform, 1, _FLOATS),
    prims.normal: (_of_normal, 2, _FLOATS),
    prims.bernoulli: (_of_bernoulli, 1, None),
    prims.exponential: (_of_exponential, 1, _FLOATS),
    prims.dropout_noise: (_of_dropout_noise, 1, None),
    prims.native_dropout: (_of_native_dropout, 1, None),
}


# -- the pass ----------------------------------------------------------------------------------------------------------
class _Rewriter:
    """The pass over one trace."""

    def __init__(self, trace: Trace, fuser: Any, seeds: Seeds, drawn: Drawn, unusable: Callable[[Any], Any]):
        self.trace = trace
        self.fuser = fuser
        self.seeds = seeds
        self.drawn = drawn
        self.unusable = unusable
        self.wanted: dict[Any, int] = {}  # device -> number of seeds
        self.left: dict[Any, Iterator[TensorProxy]] = {}

    def result(self) -> Trace:
        """Return the trace with draws from seeds, or the same trace if no draw is profitable."""
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

    # -- planning ----------------------------------------------------------------------------------------------------
    def planned(self, operations: Sequence[BoundSymbol]) -> list[tuple[BoundSymbol, Any]]:
        """Return each operation with its parts, or with None if it is not replaced. Count the seeds."""
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
        parts = self.split_draws(op)
        if parts is None or (all(self.is_draw(part) for part in parts) and not self.is_fused_later(op, readers)):
            return None
        for part in filter(self.is_draw, parts):
            device = part.flat_outs[0].device  # type: ignore[attr-defined]
            self.wanted[device] = self.wanted.get(device, 0) + _DRAWS[part.sym][1]
        return parts

    def split_draws(self, op: BoundSymbol) -> list[BoundSymbol] | None:
        """Return the draws and the other parts of an operation, or None if some part cannot be rewritten."""
        if self.is_draw(op) or not op.has_effect:
            return [op] if self.is_draw(op) or self.fuser.can_fuse(op) or not op.out_names else None
        if not op.subsymbols:
            return None
        found = [self.split_draws(sub) for sub in op.subsymbols]
        return None if any(parts is None for parts in found) else [part for parts in found for part in parts or ()]

    def is_draw(self, op: BoundSymbol) -> bool:
        """Check whether a primitive is a draw that can be computed from a seed."""
        known = _DRAWS.get(op.sym)
        if known is None or op.kwargs.get("generator") is not None:
            return False
        p: Any = op.flat_outs[0]
        sizes = [d.hint if isinstance(d, SymbolicNumber) else d for d in p.shape]
        return (
            (known[2] is None or p.dtype in known[2])
            and self.unusable(p.device) is None
            and None not in sizes
            and 0 < math.prod(sizes) < 1 << 33
        )

    def is_fused_later(self, op: BoundSymbol, readers: dict[str, list[BoundSymbol]]) -> bool:
        """Check whether a fusion may read the numbers. If not, torch's draw is as good as a draw from a seed."""
        return any(self.fuser.can_fuse(reader) for name in op.out_names for reader in readers.get(name, ()))

    # -- rewriting ----------------------------------------------------------------------------------------------------
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
        """Return operations that compute the result of a draw from the next seeds."""
        device = draw.flat_outs[0].device  # type: ignore[attr-defined]
        with out.scope() as recorded:
            result = _DRAWS[draw.sym][0](
                lambda shape: self.drawn(next(self.left[device]), tuple(shape), device), *draw.args, **draw.kwargs
            )
        names: dict[str, Any] = {}
        old, new = draw.flat_outs, []
        map_proxies(result, new.append)
        names.update((q.name, p) for p, q in zip(old, new))
        found = [op.substitute(names) for op in recorded]
        for op in found:
            op.source = op.source or whole.source
        return found
