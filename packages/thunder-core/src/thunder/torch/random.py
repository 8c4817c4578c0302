# SPDX-License-Identifier: Apache-2.0
"""Random numbers in the torch language.

Each operation draws from the same generator and in the same order as in eager mode. An in-place method (e.g.
`x.normal_()`) is declared here as an operation that returns the new values. The capture layer writes them to the
tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import devices, dtypes, prims
from thunder.core.dtypes import float32, float64, int64
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp
from thunder.core.proxies import TensorProxy, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags
from thunder.torch.base import torchsymbol
from thunder.torch.creation import device_or_default, dtype_or_default, size_of

_TAGS = (OpTags.RANDOM_OP, OpTags.NON_DIFFERENTIABLE)
_SHAPES = ((4, 4), (), (0, 3), (2, 3, 5))


# -- by size ----------------------------------------------------------------------------------------------------------
@torchsymbol(torch.rand, tags=_TAGS)
def rand(*sizes: Any, size: Any = None, generator: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Draw numbers from the uniform distribution on [0, 1)."""
    shape = size_of("rand", sizes, size)
    where, kind = device_or_default(device), dtype_or_default(dtype)
    return prims.uniform(shape, 0.0, 1.0, device=where, dtype=kind, generator=generator)


@torchsymbol(torch.randn, tags=_TAGS)
def randn(*sizes: Any, size: Any = None, generator: Any = None, dtype: Any = None, device: Any = None) -> Any:
    """Draw numbers from the standard normal distribution."""
    shape = size_of("randn", sizes, size)
    where, kind = device_or_default(device), dtype_or_default(dtype)
    return prims.normal(shape, 0.0, 1.0, device=where, dtype=kind, generator=generator)


@torchsymbol(torch.randint, tags=_TAGS)
def randint(
    low: Any = None, high: Any = None, size: Any = None, *, generator: Any = None, dtype: Any = None, device: Any = None
) -> Any:
    """Draw integers uniformly from [low, high). A single bound is the upper bound."""
    if isinstance(high, (tuple, list)):
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    elif low is None:
        low = 0
    if high is None:
        raise TypeError("randint() requires an upper bound: pass `high`")
    kind = int64 if dtype is None else dtypes.to_dtype(dtype)
    shape = size_of("randint", (), () if size is None else size)
    where = device_or_default(device)
    return prims.randint(shape, number_value(low), number_value(high), device=where, dtype=kind, generator=generator)


def _size_samples(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(shape, device=make.device, dtype=make.dtype)
    yield SampleInput(2, 3, device=make.device, dtype=make.dtype)


def _size_errors(make: MakeTensor) -> Any:
    yield SampleInput(2, -1), RuntimeError, "Trying to create tensor with negative dimension -1"
    yield SampleInput(2, dtype=int64), NotImplementedError, "not implemented for int64"


for _op in (rand, randn):
    _op.samples(_size_samples)
    _op.errors(_size_errors)


@randint.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(5, shape, device=make.device)
        yield SampleInput(0, 2, shape, device=make.device, dtype=make.dtype)
    yield SampleInput(-3, 8, size=(3,))
    yield SampleInput(7, size=(3,))
    yield SampleInput(high=7, size=(3,))


@randint.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(3, 3, (2,)), RuntimeError, "expects 'from' to be less than 'to'"
    yield SampleInput(size=(2,)), TypeError, "requires an upper bound"


@torchsymbol(torch.randperm, tags=_TAGS)
def randperm(n: int, *, generator: Any = None, dtype: Any = int64, device: Any = None) -> Any:
    """Return a random permutation of the numbers from 0 to n - 1."""
    return prims.randperm(n, device=device_or_default(device), dtype=dtypes.to_dtype(dtype), generator=generator)


@randperm.samples
def _(make: MakeTensor) -> Any:
    for n in (7, 0, 1, 40):
        yield SampleInput(n, device=make.device, dtype=make.dtype)
        yield SampleInput(n)


@randperm.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(-1), RuntimeError, "n must be non-negative"


# -- by another tensor ------------------------------------------------------------------------------------------------
def _place(input: TensorProxy, dtype: Any, device: Any, generator: Any = None) -> dict[str, Any]:
    where, kind = devices.to_device(device) or input.device, dtypes.to_dtype(dtype) or input.dtype
    return {"device": where, "dtype": kind, "generator": generator}


@torchsymbol(torch.rand_like, tags=_TAGS, layout="as input")
def rand_like(
    input: TensorProxy, *, generator: Any = None, dtype: Any = None, device: Any = None, memory_format: Any = None
) -> Any:
    """Draw numbers from the uniform distribution on [0, 1), in the shape of `input`."""
    return prims.uniform(input.shape, 0.0, 1.0, **_place(input, dtype, device, generator))


@torchsymbol(torch.randn_like, tags=_TAGS, layout="as input")
def randn_like(
    input: TensorProxy, *, generator: Any = None, dtype: Any = None, device: Any = None, memory_format: Any = None
) -> Any:
    """Draw numbers from the standard normal distribution, in the shape of `input`."""
    return prims.normal(input.shape, 0.0, 1.0, **_place(input, dtype, device, generator))


@torchsymbol(torch.randint_like, tags=_TAGS, layout="as input")
def randint_like(
    input: TensorProxy,
    low: Any,
    high: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    memory_format: Any = None,
) -> Any:
    """Draw integers uniformly from [low, high), in the shape of `input`. A single bound is the upper bound."""
    if high is None:
        low, high = 0, low
    place = _place(input, dtype, device, generator)
    return prims.randint(input.shape, number_value(low), number_value(high), **place)


def _like_samples(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape))
    yield SampleInput(make((2, 3)), dtype=float64)


for _op in (rand_like, randn_like):
    _op.samples(_like_samples)


@randint_like.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape), 2)
        yield SampleInput(make(shape), -3, 7, dtype=int64)


# -- distributions ----------------------------------------------------------------------------------------------------
@torchsymbol(torch.normal, is_method=False, tags=(OpTags.RANDOM_OP,))
def normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, dtype: Any = None, device: Any = None
) -> Any:
    """Draw numbers from normal distributions with the given means and standard deviations."""
    if not isinstance(mean, TensorProxy) and not isinstance(std, TensorProxy):
        if size is None:
            raise TypeError("normal() with two numbers requires the size of its result: pass `size`")
        place = {"device": device_or_default(device), "dtype": dtype_or_default(dtype), "generator": generator}
        return prims.normal(size_of("normal", (), size), number_value(mean), number_value(std), **place)
    tensors = [x for x in (mean, std) if isinstance(x, TensorProxy)]
    for x in tensors:
        check(not x.dtype.is_complex or x is mean, lambda: "normal expects standard deviation to be non-complex")
    like = mean if isinstance(mean, TensorProxy) else std
    shape = clang.base.compute_broadcast_shape(*[x.shape for x in tensors])
    noise = prims.normal(shape, 0.0, 1.0, device=like.device, dtype=like.dtype, generator=generator)
    scaled = clang.mul(noise, clang.maybe_convert_to_dtype(std, like.dtype))
    return clang.add(scaled, clang.maybe_convert_to_dtype(mean, like.dtype))


normal.vjp(zero_vjp)


@normal.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(1.0, 2.0, (3, 16), device=make.device, dtype=make.dtype)
    yield SampleInput(0.0, 1.0, (3, 16), device=make.device, dtype=make.dtype)
    yield SampleInput(make((3, 4)), make((3, 4), low=0.1))
    yield SampleInput(make((3, 4)), 0.5)
    yield SampleInput(make((3, 4)))
    yield SampleInput(2.0, make((3, 4), low=0.1))
    yield SampleInput(make((3, 1)), make((4,), low=0.1))


@normal.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(1.0, 2.0), TypeError, "requires the size"
    yield SampleInput(0.0, -1.0, (2,)), RuntimeError, "expects std >= 0.0"


@torchsymbol(torch.bernoulli, tags=(OpTags.RANDOM_OP,))
def bernoulli(input: TensorProxy, p: Any = None, *, generator: Any = None) -> Any:
    """Draw ones with the probabilities in `input`, or with probability `p` if it is given, and zeros otherwise."""
    if p is None:
        return prims.bernoulli_tensor(input, dtype=input.dtype, generator=generator)
    if isinstance(p, TensorProxy):
        return prims.bernoulli_tensor(p, dtype=input.dtype, generator=generator)
    return prims.bernoulli(input.shape, number_value(p), device=input.device, dtype=input.dtype, generator=generator)


bernoulli.vjp(zero_vjp)


@bernoulli.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape, low=0, high=1))
        yield SampleInput(make(shape), 0.3)


@bernoulli.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,), dtype=int64)), NotImplementedError, "not implemented for probabilities of int64"
    yield SampleInput(make((2,), dtype=float32), 1.5), RuntimeError, r"p to be in \[0, 1\]"


@torchsymbol(torch.multinomial, tags=_TAGS)
def multinomial(input: TensorProxy, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Any:
    """Draw indices with the weights in `input`, or in each of its rows."""
    return prims.multinomial(input, num_samples, replacement, generator=generator)


multinomial.samples_of(prims.multinomial)


# -- what the in-place methods put into a tensor ----------------------------------------------------------------------
# As in torch, the results require grad if the tensor does. The gradient that flows back is zero.
_FILL = (OpTags.RANDOM_OP,)


@torchsymbol(id="torch.Tensor.uniform_", method_name="uniform_", tags=_FILL)
def uniform(input: TensorProxy, from_: float = 0.0, to: float = 1.0, *, generator: Any = None) -> Any:
    """Draw numbers from the uniform distribution on [from, to), in the shape of `input`."""
    return prims.uniform(input.shape, number_value(from_), number_value(to), **_place(input, None, None, generator))


@torchsymbol(id="torch.Tensor.normal_", method_name="normal_", tags=_FILL)
def normal_values(input: TensorProxy, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    """Draw numbers from the normal distribution with the given mean and standard deviation, in the shape of `input`."""
    return prims.normal(input.shape, number_value(mean), number_value(std), **_place(input, None, None, generator))


@torchsymbol(id="torch.Tensor.exponential_", method_name="exponential_", tags=_FILL)
def exponential(input: TensorProxy, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """Draw numbers from the exponential distribution with the rate `lambd`, in the shape of `input`."""
    return prims.exponential(input.shape, number_value(lambd), **_place(input, None, None, generator))


@torchsymbol(id="torch.Tensor.bernoulli_", method_name="bernoulli_", tags=_FILL)
def bernoulli_values(input: TensorProxy, p: Any = 0.5, *, generator: Any = None) -> Any:
    """Draw ones with probability `p` and zeros otherwise, in the shape of `input`."""
    if isinstance(p, TensorProxy):
        shape = clang.base.compute_broadcast_shape(p.shape, input.shape)
        check(shape == input.shape, lambda: f"bernoulli_: probabilities of shape {p.shape} do not fit {input.shape}")
        return prims.bernoulli_tensor(clang.base.expand(p, shape), dtype=input.dtype, generator=generator)
    return prims.bernoulli(input.shape, number_value(p), **_place(input, None, None, generator))


@torchsymbol(id="torch.Tensor.random_", method_name="random_", tags=_FILL)
def random_values(input: TensorProxy, from_: Any = None, to: Any = None, *, generator: Any = None) -> Any:
    """Draw integers uniformly from [from, to). A single bound is the upper one. The default depends on the dtype."""
    if to is None and from_ is not None:
        from_, to = 0, from_
    low, high = number_value(from_), number_value(to)
    return prims.randint(input.shape, low, high, **_place(input, None, None, generator))


@torchsymbol(id="torch.Tensor.geometric_", method_name="geometric_", tags=_FILL)
def geometric(input: TensorProxy, p: float, *, generator: Any = None) -> Any:
    """Draw the number of trials, each with success probability `p`, until the first success."""
    return prims.geometric(input.shape, number_value(p), **_place(input, None, None, generator))


@torchsymbol(id="torch.Tensor.cauchy_", method_name="cauchy_", tags=_FILL)
def cauchy(input: TensorProxy, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Any:
    """Draw numbers from the Cauchy distribution with the given median and scale, in the shape of `input`."""
    return prims.cauchy(input.shape, number_value(median), number_value(sigma), **_place(input, None, None, generator))


@torchsymbol(id="torch.Tensor.log_normal_", method_name="log_normal_", tags=_FILL)
def log_normal(input: TensorProxy, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Any:
    """Draw numbers whose logarithms have a normal distribution with the given mean and standard deviation."""
    return prims.log_normal(input.shape, number_value(mean), number_value(std), **_place(input, None, None, generator))


def _fill_samples(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape))


for _op in (uniform, normal_values, exponential, bernoulli_values, random_values, cauchy, log_normal):
    _op.samples(_fill_samples)
    _op.vjp(zero_vjp)
geometric.vjp(zero_vjp)


@geometric.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape), 0.3)


@torchsymbol(torch.poisson, tags=(OpTags.RANDOM_OP,))
def poisson(input: TensorProxy, generator: Any = None) -> Any:
    """Draw numbers from Poisson distributions with the rates in `input`."""
    return prims.poisson(input, generator=generator)


poisson.vjp(zero_vjp)


poisson.samples_of(prims.poisson)


@torchsymbol(torch.nn.functional.rrelu, torch.rrelu)
def rrelu(
    input: TensorProxy, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Any:
    """Return `input` where it is positive, otherwise input * slope. Training draws slopes from [lower, upper)."""
    if training:
        return clang.mul(input, prims.rrelu_noise(input, lower, upper))
    if not input.dtype.is_floating_point:
        raise NotImplementedError(f'"rrelu" not implemented for {input.dtype}: it requires floating point tensors')
    return clang.where(clang.gt(input, 0), input, clang.mul(input, (lower + upper) / 2))


@rrelu.samples
def _(make: MakeTensor) -> Any:
    for shape in _SHAPES:
        yield SampleInput(make(shape))
        yield SampleInput(make(shape), 0.2, 0.4, True)


@rrelu.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), 0.4, 0.1, True), RuntimeError, "Lower bound should be less than or equal"
