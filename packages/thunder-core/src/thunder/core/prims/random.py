# SPDX-License-Identifier: Apache-2.0
"""Primitives that draw random numbers.

Each is one draw of torch's generator, so that the torch executor gives eager's numbers in eager's order. They carry
RANDOM_OP: no pass drops, merges or reorders them. `generator` is None for torch's default generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import devices, dtypes
from thunder.core.dtypes import BOOL, COMPLEX, INTEGER, int64
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

_TAGS = (OpTags.RANDOM_OP, OpTags.NON_DIFFERENTIABLE)
_SHAPES = ((4, 4), (), (0, 3), (8, 3, 5))


def _drawn(name: str, shape: Sequence[int], device: devices.Device, dtype: dtypes.dtype, *, lowest: int) -> TensorProxy:
    check(
        all(size >= 0 for size in shape),
        lambda: f"{name}: trying to create a tensor with the negative dimension {min(shape)}: {list(shape)}",
    )
    if dtype.category < lowest and 0 not in shape:
        raise NotImplementedError(f'"{name}" not implemented for {dtype}: ask for a floating point type')
    return TensorProxy(shape=tuple(shape), device=device, dtype=dtype)


def _where(make: MakeTensor) -> dict[str, Any]:
    return {"device": devices.to_device(make.device), "dtype": dtypes.to_dtype(make.dtype)}


@prim(tags=_TAGS)
def uniform(
    shape: Sequence[int],
    low: float,
    high: float,
    /,
    *,
    device: devices.Device,
    dtype: dtypes.dtype,
    generator: Any = None,
) -> TensorProxy:
    """Numbers drawn evenly from [low, high)."""
    check(low <= high, lambda: f"uniform expects to return a [from, to) range, but found from={low} > to={high}")
    return _drawn("uniform", shape, device, dtype, lowest=dtypes.FLOAT)


@uniform.batch
def _(b: Any, shape: Any, *how: Any, **where: Any) -> Any:
    return uniform((b.size, *shape), *how, **where)


@uniform.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 0.0, 1.0, **_where(make))
    yield SampleInput((3, 4), -2.0, 5.0, **_where(make))


@uniform.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2,), 1.0, 0.0, **_where(make)), RuntimeError, "found from=1.0 > to=0.0"


@prim(tags=_TAGS)
def normal(
    shape: Sequence[int],
    mean: float,
    std: float,
    /,
    *,
    device: devices.Device,
    dtype: dtypes.dtype,
    generator: Any = None,
) -> TensorProxy:
    """Numbers drawn from the normal distribution with that mean and standard deviation."""
    check(std >= 0, lambda: f"normal expects std >= 0.0, but found std {std}")
    return _drawn("normal", shape, device, dtype, lowest=dtypes.FLOAT)


@normal.batch
def _(b: Any, shape: Any, *how: Any, **where: Any) -> Any:
    return normal((b.size, *shape), *how, **where)


@normal.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 0.0, 1.0, **_where(make))
    yield SampleInput((3, 16), -2.0, 5.0, **_where(make))


@normal.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2,), 1.0, -1.0, **_where(make)), RuntimeError, "expects std >= 0.0"


@prim(tags=_TAGS)
def randint(
    shape: Sequence[int],
    low: int | None,
    high: int | None,
    /,
    *,
    device: devices.Device,
    dtype: dtypes.dtype,
    generator: Any = None,
) -> TensorProxy:
    """Whole numbers drawn evenly from [low, high); with no bounds from all that the dtype has, zero up."""
    check(
        (low is None and high is None) or (low is not None and (high is None or low < high)),
        lambda: f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}",
    )
    return _drawn("randint", shape, device, dtype, lowest=BOOL)


@randint.batch
def _(b: Any, shape: Any, *how: Any, **where: Any) -> Any:
    return randint((b.size, *shape), *how, **where)


@randint.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 0, 2, **_where(make))
    if make.dtype not in (dtypes.bool8, dtypes.uint8):
        yield SampleInput((3, 4), 3, 90, **_where(make))


@randint.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2,), 3, 3, **_where(make)), RuntimeError, "expects 'from' to be less than 'to'"


@prim(tags=_TAGS)
def bernoulli(
    shape: Sequence[int], p: float, /, *, device: devices.Device, dtype: dtypes.dtype, generator: Any = None
) -> TensorProxy:
    """Ones drawn with probability `p`, and zeros."""
    check(0 <= p <= 1, lambda: f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return _drawn("bernoulli", shape, device, dtype, lowest=BOOL)


@bernoulli.batch
def _(b: Any, shape: Any, *how: Any, **where: Any) -> Any:
    return bernoulli((b.size, *shape), *how, **where)


@bernoulli.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 0.3, **_where(make))
    for p in (0.0, 1.0):
        yield SampleInput((5,), p, **_where(make))


@bernoulli.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2,), 1.5, **_where(make)), RuntimeError, r"p to be in \[0, 1\], but got p=1.5"


@prim(tags=(OpTags.RANDOM_OP,))
def bernoulli_tensor(p: TensorProxy, /, *, dtype: dtypes.dtype, generator: Any = None) -> TensorProxy:
    """Ones drawn with the probabilities in `p`, and zeros, as `dtype`."""
    if not p.dtype.is_floating_point and 0 not in p.shape:
        raise NotImplementedError(f'"bernoulli" not implemented for probabilities of {p.dtype}: they are floats')
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


@prim(tags=_TAGS)
def randperm(n: int, /, *, device: devices.Device, dtype: dtypes.dtype = int64, generator: Any = None) -> TensorProxy:
    """The numbers from 0 to n - 1 in an order drawn at random."""
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


@prim(tags=_TAGS)
def multinomial(weights: TensorProxy, num_samples: int, replacement: bool, /, *, generator: Any = None) -> TensorProxy:
    """Indices drawn with the weights in (each row of) `weights`."""
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


@prim(tags=_TAGS)
def exponential(
    shape: Sequence[int], rate: float, /, *, device: devices.Device, dtype: dtypes.dtype, generator: Any = None
) -> TensorProxy:
    """Numbers drawn from the exponential distribution."""
    check(rate > 0, lambda: f"exponential_ expects lambda > 0.0, but found lambda={rate}")
    return _drawn("exponential", shape, device, dtype, lowest=INTEGER + 1)


@exponential.batch
def _(b: Any, shape: Any, *how: Any, **where: Any) -> Any:
    return exponential((b.size, *shape), *how, **where)


@exponential.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 1.5, **_where(make))


@exponential.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2,), 0.0, **_where(make)), RuntimeError, "expects lambda > 0.0"


@prim(tags=_TAGS)
def geometric(
    shape: Sequence[int], p: float, /, *, device: devices.Device, dtype: dtypes.dtype, generator: Any = None
) -> TensorProxy:
    """How many draws with probability `p` it takes until one succeeds."""
    check(0 < p < 1, lambda: f"geometric_ expects p to be in (0, 1), but got p={p}")
    return _drawn("geometric", shape, device, dtype, lowest=BOOL + 1)


@geometric.batch
def _(b: Any, shape: Any, *how: Any, **where: Any) -> Any:
    return geometric((b.size, *shape), *how, **where)


@geometric.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 0.3, **_where(make))


@geometric.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput((2,), 1.5, **_where(make)), RuntimeError, r"p to be in \(0, 1\)"


@prim(tags=_TAGS)
def cauchy(
    shape: Sequence[int],
    median: float,
    sigma: float,
    /,
    *,
    device: devices.Device,
    dtype: dtypes.dtype,
    generator: Any = None,
) -> TensorProxy:
    """Numbers drawn from the Cauchy distribution with that median and half width."""
    check(sigma > 0, lambda: f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return _drawn("cauchy", shape, device, dtype, lowest=dtypes.FLOAT)


@prim(tags=_TAGS)
def log_normal(
    shape: Sequence[int],
    mean: float,
    std: float,
    /,
    *,
    device: devices.Device,
    dtype: dtypes.dtype,
    generator: Any = None,
) -> TensorProxy:
    """Numbers whose logarithms are drawn from the normal distribution."""
    check(std > 0, lambda: f"log_normal_ expects std > 0.0, but found std={std}")
    return _drawn("log_normal", shape, device, dtype, lowest=dtypes.FLOAT)


def _batch_of_draws(draw: Any) -> Any:
    return lambda b, shape, *how, **where: draw((b.size, *shape), *how, **where)


def _two_number_samples(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, 0.5, 1.5, **_where(make))


def _two_number_errors(make: MakeTensor) -> Any:
    yield SampleInput((2,), 0.0, 0.0, **_where(make)), RuntimeError, "> 0.0, but found"


for _distribution in (cauchy, log_normal):
    _distribution.samples(_two_number_samples)
    _distribution.batch(_batch_of_draws(_distribution))
    _distribution.errors(_two_number_errors)


@prim(torch="torch.poisson", tags=(OpTags.RANDOM_OP,))
def poisson(rates: TensorProxy, /, *, generator: Any = None) -> TensorProxy:
    """Numbers of events, drawn from Poisson distributions with these rates."""
    if not rates.dtype.is_floating_point and 0 not in rates.shape:
        raise NotImplementedError(f'"poisson" not implemented for {rates.dtype}: rates are floats')
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
    """The slopes of rrelu in training: 1 where `a` is above zero, else drawn evenly from [lower, upper)."""
    if not a.dtype.is_floating_point:
        raise NotImplementedError(f'"rrelu" not implemented for {a.dtype}: it takes floating point tensors')
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
