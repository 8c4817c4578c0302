# SPDX-License-Identifier: Apache-2.0
"""Primitives that draw random numbers.

Each primitive is one draw from torch's generator, so that the torch executor returns the same numbers in the same order
as eager mode. The primitives have the tag RANDOM_OP: no pass drops, merges or reorders them. If `generator` is None,
they use torch's default generator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import devices, dtypes
from thunder.core.dtypes import BOOL, COMPLEX, FLOAT, INTEGER, int64
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags, Symbol

_TAGS = (OpTags.RANDOM_OP, OpTags.NON_DIFFERENTIABLE)
_SHAPES = ((4, 4), (), (0, 3), (8, 3, 5))


def _where(make: MakeTensor) -> dict[str, Any]:
    return {"device": devices.to_device(make.device), "dtype": dtypes.to_dtype(make.dtype)}


def _distribution(
    *,
    lowest: int,
    usual: tuple[Any, ...],
    more: Sequence[tuple[Any, ...]] = (),
    refused: tuple[Any, ...],
    message: str,
) -> Callable[[Callable[..., None]], Symbol]:
    """Declare the primitive that draws from a distribution; the decorated function checks the parameters.

    `lowest` is the lowest category of dtypes that can represent the drawn numbers. The samples use the parameters
    `usual`; `more` contains additional samples, each with a shape and parameters. The parameters `refused` raise an
    error with `message`.
    """

    def declare(check_parameters: Callable[..., None]) -> Symbol:
        name = check_parameters.__name__

        def draw(
            shape: Sequence[int],
            /,
            *parameters: Any,
            device: devices.Device,
            dtype: dtypes.dtype,
            generator: Any = None,
        ) -> TensorProxy:
            check_parameters(*parameters)
            check(
                all(size >= 0 for size in shape),
                lambda: f"{name}: trying to create a tensor with the negative dimension {min(shape)}: {list(shape)}",
            )
            if dtype.category < lowest and 0 not in shape:
                raise NotImplementedError(f'"{name}" not implemented for {dtype}: use a floating point dtype')
            return TensorProxy(shape=tuple(shape), device=device, dtype=dtype)

        shape, _, *options = inspect.signature(draw).parameters.values()
        signature = inspect.Signature([shape, *inspect.signature(check_parameters).parameters.values(), *options])
        draw.__name__, draw.__doc__ = name, check_parameters.__doc__
        draw.__signature__ = signature  # type: ignore[attr-defined]
        sym = prim(tags=_TAGS)(draw)
        sym.batch(lambda b, shape, *parameters, **where: sym((b.size, *shape), *parameters, **where))

        @sym.samples
        def samples(make: MakeTensor) -> Any:
            for args in (*((shape, *usual) for shape in _SHAPES), *more):
                yield SampleInput(*args, **_where(make))

        @sym.errors
        def errors(make: MakeTensor) -> Any:
            yield SampleInput((2,), *refused, **_where(make)), RuntimeError, message

        return sym

    return declare


@_distribution(
    lowest=FLOAT, usual=(0.0, 1.0), more=[((3, 4), -2.0, 5.0)], refused=(1.0, 0.0), message="found from=1.0 > to=0.0"
)
def uniform(low: float, high: float) -> None:
    """Return numbers drawn from the uniform distribution over [low, high)."""
    check(low <= high, lambda: f"uniform expects to return a [from, to) range, but found from={low} > to={high}")


@_distribution(
    lowest=FLOAT, usual=(0.0, 1.0), more=[((3, 16), -2.0, 5.0)], refused=(1.0, -1.0), message="expects std >= 0.0"
)
def normal(mean: float, std: float) -> None:
    """Return numbers drawn from the normal distribution with mean `mean` and standard deviation `std`."""
    check(std >= 0, lambda: f"normal expects std >= 0.0, but found std {std}")


@_distribution(lowest=BOOL, usual=(0, 2), refused=(3, 3), message="expects 'from' to be less than 'to'")
def randint(low: int | None, high: int | None) -> None:
    """Return integers drawn uniformly from [low, high); without bounds, from 0 to the largest integer of the dtype."""
    check(
        (low is None and high is None) or (low is not None and (high is None or low < high)),
        lambda: f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}",
    )


@randint.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 0, 2, **_where(make))
    if make.dtype not in (dtypes.bool8, dtypes.uint8):
        yield SampleInput((3, 4), 3, 90, **_where(make))


@_distribution(
    lowest=BOOL,
    usual=(0.3,),
    more=[((5,), 0.0), ((5,), 1.0)],
    refused=(1.5,),
    message=r"p to be in \[0, 1\], but got p=1.5",
)
def bernoulli(p: float) -> None:
    """Return ones (with probability `p`) and zeros."""
    check(0 <= p <= 1, lambda: f"bernoulli_ expects p to be in [0, 1], but got p={p}")


@_distribution(lowest=INTEGER + 1, usual=(1.5,), refused=(0.0,), message="expects lambda > 0.0")
def exponential(rate: float) -> None:
    """Return numbers drawn from the exponential distribution with rate `rate`."""
    check(rate > 0, lambda: f"exponential_ expects lambda > 0.0, but found lambda={rate}")


@_distribution(lowest=BOOL + 1, usual=(0.3,), refused=(1.5,), message=r"p to be in \(0, 1\)")
def geometric(p: float) -> None:
    """Return numbers drawn from the geometric distribution: the number of trials until one succeeds."""
    check(0 < p < 1, lambda: f"geometric_ expects p to be in (0, 1), but got p={p}")


@_distribution(lowest=FLOAT, usual=(0.5, 1.5), refused=(0.0, 0.0), message="> 0.0, but found")
def cauchy(median: float, sigma: float) -> None:
    """Return numbers drawn from the Cauchy distribution with median `median` and scale `sigma`."""
    check(sigma > 0, lambda: f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")


@_distribution(lowest=FLOAT, usual=(0.5, 1.5), refused=(0.0, 0.0), message="> 0.0, but found")
def log_normal(mean: float, std: float) -> None:
    """Return numbers whose logarithms are drawn from the normal distribution."""
    check(std > 0, lambda: f"log_normal_ expects std > 0.0, but found std={std}")


@prim(tags=(OpTags.RANDOM_OP,))
def bernoulli_tensor(p: TensorProxy, /, *, dtype: dtypes.dtype, generator: Any = None) -> TensorProxy:
    """Return a tensor of `dtype` with ones (with the probabilities in `p`) and zeros."""
    if not p.dtype.is_floating_point and 0 not in p.shape:
        raise NotImplementedError(f'"bernoulli" not implemented for probabilities of {p.dtype}: use a float tensor')
    return TensorProxy(like=p, dtype=dtype)


bernoulli_tensor.vjp(zero_vjp)


@bernoulli_tensor.batch
def _(b: Any, p: Any, **how: Any) -> Any:
    return bernoulli_tensor(b.drawn_from(p, "bernoulli"), **how)


@bernoulli_tensor.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape, low=0, high=1), dtype=dtypes.to_dtype(make.dtype))
    yield SampleInput(make((5, 3), low=0, high=1).mT, dtype=dtypes.float32)


@prim(torch="torch.randperm", tags=_TAGS)
def randperm(n: int, /, *, device: devices.Device, dtype: dtypes.dtype = int64, generator: Any = None) -> TensorProxy:
    """Return the numbers from 0 to n - 1 in random order."""
    check(n >= 0, lambda: f"n must be non-negative, got {n}")
    if dtype.category in (BOOL, COMPLEX):
        raise NotImplementedError(f'"randperm" not implemented for {dtype}')
    return TensorProxy(shape=(n,), device=device, dtype=dtype)


@randperm.samples
def _(make: MakeTensor) -> Any:
    for n in (7, 0, 1, 40):
        yield SampleInput(n, **_where(make))


@randperm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(-1, device=devices.cpu), RuntimeError, "n must be non-negative"


@prim(torch="torch.multinomial", tags=_TAGS)
def multinomial(weights: TensorProxy, num_samples: int, replacement: bool, /, *, generator: Any = None) -> TensorProxy:
    """Return indices drawn with the probabilities that `weights`, or each row of `weights`, defines."""
    check(1 <= weights.ndim <= 2, lambda: f"prob_dist must be 1 or 2 dim, but it has the shape {weights.shape}")
    check(
        weights.dtype.is_floating_point,
        lambda: f"multinomial only supports floating-point dtypes for input, got: {weights.dtype}",
    )
    check(num_samples > 0, lambda: f"cannot sample n_sample <= 0 samples, and n_sample is {num_samples}")
    check(
        replacement or num_samples <= weights.shape[-1],
        lambda: (
            f"cannot sample n_sample > prob_dist.size(-1) samples without replacement: {num_samples} of "
            f"{weights.shape[-1]}"
        ),
    )
    return TensorProxy(like=weights, shape=(*weights.shape[:-1], num_samples), dtype=int64)


@multinomial.batch
def _(b: Any, weights: Any, *how: Any, **where: Any) -> Any:
    weights = b.drawn_from(weights, "multinomial")
    if weights.ndim == 2:
        return multinomial(weights, *how, **where)
    return b.split(multinomial(b.merge(weights), *how, **where), weights.shape[1])


@multinomial.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((5,), low=0.1, high=1), 3, False)
    yield SampleInput(make((2, 5), low=0.1, high=1), 1, False)
    yield SampleInput(make((3, 4), low=0.1, high=1), 7, True)


@multinomial.errors
def _(make: MakeTensor) -> Any:
    weights = make((2, 3), low=0.1, high=1)
    yield SampleInput(weights, 4, False), RuntimeError, "without replacement"
    yield SampleInput(weights, 0, True), RuntimeError, "n_sample <= 0"
    yield SampleInput(make((1, 2, 3)), 1, True), RuntimeError, "prob_dist must be 1 or 2 dim"


@prim(torch="torch.poisson", tags=(OpTags.RANDOM_OP,))
def poisson(rates: TensorProxy, /, *, generator: Any = None) -> TensorProxy:
    """Return numbers drawn from Poisson distributions with the rates in `rates`."""
    if not rates.dtype.is_floating_point and 0 not in rates.shape:
        raise NotImplementedError(f'"poisson" not implemented for {rates.dtype}: use a float tensor')
    return TensorProxy(like=rates)


poisson.vjp(zero_vjp)


@poisson.batch
def _(b: Any, rates: Any, **how: Any) -> Any:
    return poisson(b.drawn_from(rates, "poisson"), **how)


@poisson.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape, low=0))


@prim(tags=_TAGS)
def rrelu_noise(a: TensorProxy, lower: float, upper: float, /) -> TensorProxy:
    """Return the slopes of rrelu in training: 1 where `a > 0`, otherwise drawn uniformly from [lower, upper)."""
    if not a.dtype.is_floating_point:
        raise NotImplementedError(f'"rrelu" not implemented for {a.dtype}: use a floating point tensor')
    check(lower <= upper, lambda: f"Lower bound should be less than or equal to the upper bound: {lower} > {upper}")
    return TensorProxy(like=a)


@rrelu_noise.batch
def _(b: Any, a: Any, lower: Any, upper: Any) -> Any:
    return rrelu_noise(b.drawn_from(a, "rrelu"), lower, upper)


@rrelu_noise.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape, requires_grad=False), 0.1, 0.4)


@rrelu_noise.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), 0.4, 0.1), RuntimeError, "Lower bound should be less than or equal to the upper bound"
