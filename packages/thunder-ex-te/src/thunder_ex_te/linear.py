# SPDX-License-Identifier: Apache-2.0
"""Linear layers in fp8: which calls are taken, what they become, and their gradients.

Forward is one product, backward two. Each wants both factors with the dimension that is summed over last, so what
backward needs of input and weight are their transposes, in fp8: these are what is saved.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import (
    BoundSymbol,
    Symbol,
    TensorProxy,
    Trace,
    argument_key,
    compilation,
    current_trace,
    dtypes,
    get_grad,
    map_proxies,
    proxies_in,
    put_grads,
    to_torch_dtype,
)
from thunder_ex_te.operators import multiply, quantize, quantize_scaled
from thunder_ex_te.probe import unusable_device
from thunder_ex_te.recipes import Quantization, Scheme, scheme_of
from thunder_ex_te.reference import Quantized
from thunder_ex_te.scales import Slot, kept

__all__ = ["GROUP", "KEEP", "RECIPE", "Layer", "factors", "register", "takes", "why_not", "writes"]

# The options of thunder.jit.
RECIPE, GROUP, KEEP = "te_recipe", "te_amax_reduction_group", "te_keep_weights"
MULTIPLE = 16
_SHARED = ("te_quantize", "te_quantize_scaled", "te_quantize_groups")
_TAKEN = (dtypes.bfloat16, dtypes.float16, dtypes.float32)


# -- what is taken -----------------------------------------------------------------------------------------------------
def takes(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> bool | str:
    """True, or why not."""
    reason = why_not(input, weight, bias)
    if reason is not None:
        return reason
    return True if recipe is not None or asked() else NOT_ASKED


NOT_ASKED = f"computes in fp8 where it is asked to: thunder.jit(…, {RECIPE}=…)"


def asked() -> bool:
    """Check whether the program that is compiled is to compute in fp8."""
    return compilation().options.get(RECIPE) is not None


def why_not(input: Any, weight: Any, bias: Any) -> str | None:
    """Return why such a layer cannot run in fp8; None when it can."""
    reason = unusable_device(input.device)
    if reason is not None:
        return reason
    kinds = input.dtype, weight.dtype
    if dtypes.to_dtype(kinds[0]) not in _TAKEN or kinds[0] != kinds[1]:
        return f"takes {', '.join(str(d) for d in _TAKEN)}, not {input.dtype}"
    if weight.ndim != 2:
        return "takes a matrix as weight"
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return "takes a bias with a number for each output"
    rows = math.prod(input.shape[:-1])
    if rows == 0 or 0 in weight.shape:
        return "there is nothing to compute for no elements"
    sizes = {"rows": rows, "inputs": weight.shape[1], "outputs": weight.shape[0]}
    odd = [f"{n} {what}" for what, n in sizes.items() if n % MULTIPLE != 0]
    if odd:
        return f"products in fp8 want sizes that are multiples of {MULTIPLE}, and here are {', '.join(odd)}"
    return None


# -- values of the trace that is written -------------------------------------------------------------------------------
class _Written:
    """What is known of the operations of a trace that is being written, as far as they have been looked at."""

    def __init__(self) -> None:
        self.looked_at = 0
        self.sources: dict[str, Any] = {}  # of casts to a narrower type
        self.quantized: dict[Any, Any] = {}
        self.made_by: dict[str, BoundSymbol] = {}
        self.computed: dict[str, tuple[str, str]] = {}


_written: weakref.WeakKeyDictionary[Trace, _Written] = weakref.WeakKeyDictionary()


def _here() -> _Written:
    trace = current_trace()
    assert trace is not None
    known = _written.get(trace)
    if known is None:
        known = _written[trace] = _Written()
    program = trace.scopes[0]
    for op in program[known.looked_at :]:
        known.made_by.update((name, op) for name in op.out_names)
        if _narrows(op):
            known.sources[op.output.name] = op.flat_args[0]
        elif op.sym.name in _SHARED:
            known.quantized.setdefault(_identity(op.sym, op.args), op.output)
    known.looked_at = len(program)
    return known


def _narrows(op: BoundSymbol) -> bool:
    """Check whether it is a cast to a narrower float type, as autocast makes them."""
    parts = op
    while len(parts.like.subsymbols) == 1:
        parts = parts.like.subsymbols[0]
    if parts.sym is not prims.convert_element_type or not isinstance(op.output, TensorProxy) or not op.flat_args:
        return False
    source = op.flat_args[0]
    return (
        isinstance(source, TensorProxy)
        and source.shape == op.output.shape
        and source.dtype in _TAKEN
        and source.dtype.bytes > op.output.dtype.bytes
    )


def lasting_name(x: TensorProxy) -> str:
    """Return what a weight is called in all programs: an input by its name, another by an input's and how it is
    computed.
    """
    root, how = _computed(x.name, _here())
    return f"{root}.{how[:8]}" if how else root


def _computed(name: str, known: _Written) -> tuple[str, str]:
    """Return the first input that a value is made of, and a digest of what makes it, whoever runs that."""
    found = known.computed.get(name)
    if found is not None:
        return found
    op = known.made_by.get(name)
    if op is None:
        return name, ""
    if op.like.subsymbols:
        known.made_by.update((made, part) for part in primitives(op.like) for made in part.out_names)
        op = known.made_by[name]
    inputs = {p.name: _computed(p.name, known) for p in proxies_in((op.args, op.kwargs))}
    how = argument_key(map_proxies((op.args, op.kwargs), lambda p: str(inputs[p.name])))
    text = f"{op.sym.name} {how} {list(op.out_names).index(name)}"
    root = next((root for root, _ in inputs.values()), "made")
    known.computed[name] = root, hashlib.sha256(text.encode()).hexdigest()
    return known.computed[name]


def primitives(op: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield what an operation consists of."""
    if op.sym.is_prim or not op.subsymbols:
        yield op
    for sub in op.subsymbols:
        yield from primitives(sub)


def _identity(sym: Symbol, args: tuple[Any, ...]) -> Any:
    """Return what is equal for quantizations of one value in one way. Slots do not count: one value has one scale."""
    x, *how = sym.bind(args, {})[0]
    return sym.name, x.name, *[each for each in how if not is_slot(each)]


def is_slot(x: Any) -> bool:
    """Check whether it is the place of a scale, or places of several."""
    return isinstance(x, Slot) or (isinstance(x, tuple) and bool(x) and all(isinstance(each, Slot) for each in x))


def quantized_once(symbol: Symbol, args: tuple[Any, ...], **how: Any) -> Any:
    """Return what a quantization gives, which may be known from before: what several layers take is quantized once."""
    known = _here().quantized.get(_identity(symbol, args))
    return symbol(*args, **how) if known is None else known


class Layer:
    """The pieces of which one linear layer is written."""

    def __init__(self, operators: dict[str, Any], weight: TensorProxy, recipe: Any = None):
        self.operators = operators
        self.options = compilation().options
        self.scheme: Scheme = scheme_of(self.options[RECIPE] if recipe is None else recipe)
        # Under autocast the weight is a copy in a narrow type, made anew for each call; its source is what stays.
        self.weight = _here().sources.get(weight.name, weight)

    def quantized(self, x: TensorProxy, role: str) -> Quantized:
        """Compute `x` in fp8."""
        how: Quantization = getattr(self.scheme, role)
        by: tuple[Any, ...]
        keep = role == "weight" and bool(self.options.get(KEEP, True))
        if self.scheme.delayed is None:
            symbol, by = self.operators["te_quantize"], (how.power_2, how.epsilon)
        else:
            symbol, by = self.operators["te_quantize_scaled"], (self.slot(role, how.kind),)
        args = (x, how.kind, *by)
        if role == "grad":
            return Quantized(*symbol(*args))
        return Quantized(*quantized_once(symbol, args, **({"keep": True} if keep else {})))

    def slot(self, role: str, kind: str) -> Slot:
        """Return where the scale of one of its tensors is kept."""
        assert self.scheme.delayed is not None
        name = f"{lasting_name(self.weight)}.{role}"
        return Slot(name, kept(compilation().state, name), kind, self.scheme.delayed, self.options.get(GROUP))

    def product(self, a: tuple[Any, Any, str], b: tuple[Any, Any, str], dtype: Any, bias: Any, which: int) -> Any:
        """Return one of the three products of a layer."""
        split = self.scheme.split[which]
        return self.operators["te_matmul"](*a, *b, to_torch_dtype(dtype), bias, split=split)

    def forward(self, x: TensorProxy, bias: Any) -> tuple[Any, Quantized, Quantized]:
        """Return the result, and input and weight in fp8."""
        of_x, of_w = self.quantized(x, "input"), self.quantized(self.weight, "weight")
        # The library would have it in bfloat16 beside float32.
        inside = bias if x.dtype is not dtypes.float32 else None
        a = (of_x.data, of_x.scale, self.scheme.input.kind)
        out = self.product(a, (of_w.data, of_w.scale, self.scheme.weight.kind), x.dtype, inside, 0)
        return (out if inside is bias else ltorch.add(out, bias)), of_x, of_w


def like(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> Any:
    """Return a linear layer in fp8 by this recipe, or by the one that `thunder.jit` was given."""
    return ltorch.linear(input, weight, bias)


def run(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> Any:
    """Return the same on real tensors, outside of a program; scales that move on are one there."""
    if why_not(input, weight, bias) is not None:
        return torch.nn.functional.linear(input, weight, bias)
    scheme = scheme_of(recipe)

    def fp8(x: Any, how: Quantization) -> tuple[Any, Any, str]:
        if scheme.delayed is None:
            data, scale, *_ = quantize(x, how.kind, how.power_2, how.epsilon, columns=False)
        else:
            slot = Slot("a call", {}, how.kind, scheme.delayed, None)
            data, scale, *_ = quantize_scaled(x, how.kind, slot, columns=False, note=False)
        return data, scale, how.kind

    inside = bias if input.dtype is not torch.float32 else None
    factors = (*fp8(input, scheme.input), *fp8(weight, scheme.weight))
    out = multiply(*factors, input.dtype, inside, split=scheme.split[0])
    return out if inside is bias else out + bias


def writes(operators: dict[str, Any]) -> Callable[..., Any]:
    """Return what writes a layer in fp8, without its gradient."""

    def layer(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> Any:
        return Layer(operators, weight, recipe).forward(input, bias)[0]

    return layer


def factors(kinds: Any, of_g: Any, of_w: Any, of_x: Any) -> tuple[Any, Any, Any, Any]:
    """Return what backward multiplies: the gradient and the weight; the gradient and the input, both transposed."""
    return (
        (of_g.data, of_g.scale, kinds.grad.kind),
        (of_w.transposed, of_w.transposed_scale, kinds.weight.kind),
        (of_g.transposed, of_g.transposed_scale, kinds.grad.kind),
        (of_x.transposed, of_x.transposed_scale, kinds.input.kind),
    )


def register(registry: Any, executor: str, operators: dict[str, Any]) -> None:
    """Take linear layers, by thunder's operation and by its primitive, and those that say which recipe is theirs."""
    execution = writes(operators)

    def gradient(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> Any:
        layer = Layer(operators, weight, recipe)
        out, of_x, of_w = layer.forward(input, bias)
        g = get_grad(out)
        rows, by_weight, columns, by_input = factors(layer.scheme, layer.quantized(g, "grad"), of_w, of_x)
        put_grads(
            (input, weight),
            (
                layer.product(rows, by_weight, input.dtype, None, 1),
                layer.product(columns, by_input, weight.dtype, None, 2),
            ),
        )
        if bias is not None:
            put_grads((bias,), (ltorch.sum(g, tuple(range(g.ndim - 1))),))
        return out

    own = registry.register_operator("te_linear", executor=executor, like=like, fn=run)
    implementations: tuple[Callable[..., Any], ...] = (own, ltorch.linear, prims.linear)
    for symbol in implementations:
        registry.register_implementation(
            symbol, executor=executor, checker=takes, execution_transform=execution, grad_transform=gradient
        )
