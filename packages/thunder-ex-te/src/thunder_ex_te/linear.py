# SPDX-License-Identifier: Apache-2.0
"""Linear layers in fp8: the checker, the lowering and the gradients.

Forward is one matmul and backward is two. Each matmul needs both operands with the contracted dimension last. Backward
therefore needs the transposes of input and weight, which forward saves in fp8.
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


# -- the checker -------------------------------------------------------------------------------------------------------
def takes(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> bool | str:
    """Return True, or the reason why the kernels do not support the call."""
    reason = why_not(input, weight, bias)
    if reason is not None:
        return reason
    return True if recipe is not None or asked() else NOT_ASKED


NOT_ASKED = f"computes in fp8 only with a recipe: thunder.jit(…, {RECIPE}=…)"


def asked() -> bool:
    """Check whether the current compilation has a recipe."""
    return compilation().options.get(RECIPE) is not None


def why_not(input: Any, weight: Any, bias: Any) -> str | None:
    """Return why a layer cannot run in fp8; None if it can."""
    reason = unusable_device(input.device)
    if reason is not None:
        return reason
    kinds = input.dtype, weight.dtype
    if dtypes.to_dtype(kinds[0]) not in _TAKEN or kinds[0] != kinds[1]:
        return f"supports {', '.join(str(d) for d in _TAKEN)}, not {input.dtype}"
    if weight.ndim != 2:
        return "supports only a weight with two dimensions"
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return "supports only a bias with one element per output feature"
    rows = math.prod(input.shape[:-1])
    if rows == 0 or 0 in weight.shape:
        return "the tensors have no elements"
    sizes = {"rows": rows, "inputs": weight.shape[1], "outputs": weight.shape[0]}
    odd = [f"{n} {what}" for what, n in sizes.items() if n % MULTIPLE != 0]
    if odd:
        return f"fp8 matmuls need sizes that are multiples of {MULTIPLE}, but the sizes are {', '.join(odd)}"
    return None


# -- values of the trace under construction ----------------------------------------------------------------------------
class _Written:
    """Facts about the operations of a trace under construction, up to the last inspected operation."""

    def __init__(self) -> None:
        self.looked_at = 0
        self.sources: dict[str, Any] = {}  # the operands of casts to a narrower dtype
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
    """Check whether an operation casts to a narrower float dtype, as autocast does."""
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
    """Return a name for a weight that is equal in all programs.

    A computed weight is named after an input and a hash.
    """
    root, how = _computed(x.name, _here())
    return f"{root}.{how[:8]}" if how else root


def _computed(name: str, known: _Written) -> tuple[str, str]:
    """Return the first input that a value depends on, and a hash of its computation.

    The hash is equal for all executors.
    """
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
    """Yield the primitives that an operation consists of."""
    if op.sym.is_prim or not op.subsymbols:
        yield op
    for sub in op.subsymbols:
        yield from primitives(sub)


def _identity(sym: Symbol, args: tuple[Any, ...]) -> Any:
    """Return a key that is equal for equal quantizations of a value.

    The key omits slots, because a value has only one scale.
    """
    x, *how = sym.bind(args, {})[0]
    return sym.name, x.name, *[each for each in how if not is_slot(each)]


def is_slot(x: Any) -> bool:
    """Check whether an argument is a slot or a tuple of slots."""
    return isinstance(x, Slot) or (isinstance(x, tuple) and bool(x) and all(isinstance(each, Slot) for each in x))


def quantized_once(symbol: Symbol, args: tuple[Any, ...], **how: Any) -> Any:
    """Quantize a value, or return its earlier quantization. An input of several layers is quantized only once."""
    known = _here().quantized.get(_identity(symbol, args))
    return symbol(*args, **how) if known is None else known


class Layer:
    """Lowers one linear layer."""

    def __init__(self, operators: dict[str, Any], weight: TensorProxy, recipe: Any = None):
        self.operators = operators
        self.options = compilation().options
        self.scheme: Scheme = scheme_of(self.options[RECIPE] if recipe is None else recipe)
        # Under autocast the weight is a temporary cast. Its source is the parameter, whose fp8 copy can be cached.
        self.weight = _here().sources.get(weight.name, weight)

    def quantized(self, x: TensorProxy, role: str) -> Quantized:
        """Quantize `x` to fp8."""
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
        """Return the slot that stores the scale of a tensor of this layer (input, weight or gradient)."""
        assert self.scheme.delayed is not None
        name = f"{lasting_name(self.weight)}.{role}"
        return Slot(name, kept(compilation().state, name), kind, self.scheme.delayed, self.options.get(GROUP))

    def product(self, a: tuple[Any, Any, str], b: tuple[Any, Any, str], dtype: Any, bias: Any, which: int) -> Any:
        """Compute one of the three matmuls of a layer (forward, input gradient or weight gradient)."""
        split = self.scheme.split[which]
        return self.operators["te_matmul"](*a, *b, to_torch_dtype(dtype), bias, split=split)

    def forward(self, x: TensorProxy, bias: Any) -> tuple[Any, Quantized, Quantized]:
        """Return the result, and the input and weight in fp8."""
        of_x, of_w = self.quantized(x, "input"), self.quantized(self.weight, "weight")
        # For results in float32 the library requires a bias in bfloat16, so the bias is added separately.
        inside = bias if x.dtype is not dtypes.float32 else None
        a = (of_x.data, of_x.scale, self.scheme.input.kind)
        out = self.product(a, (of_w.data, of_w.scale, self.scheme.weight.kind), x.dtype, inside, 0)
        return (out if inside is bias else ltorch.add(out, bias)), of_x, of_w


def like(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> Any:
    """Decompose a linear layer into torch's. Its recipe is given by the call or by `thunder.jit`."""
    return ltorch.linear(input, weight, bias)


def run(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> Any:
    """Run the layer on tensors, outside of a trace. Delayed scales are 1 there."""
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
    """Return the function that lowers a layer to fp8, without the gradient."""

    def layer(input: Any, weight: Any, bias: Any = None, recipe: Any = None) -> Any:
        return Layer(operators, weight, recipe).forward(input, bias)[0]

    return layer


def factors(kinds: Any, of_g: Any, of_w: Any, of_x: Any) -> tuple[Any, Any, Any, Any]:
    """Return the operands of backward's two matmuls: gradient and weight; gradient and input, both transposed."""
    return (
        (of_g.data, of_g.scale, kinds.grad.kind),
        (of_w.transposed, of_w.transposed_scale, kinds.weight.kind),
        (of_g.transposed, of_g.transposed_scale, kinds.grad.kind),
        (of_x.transposed, of_x.transposed_scale, kinds.input.kind),
    )


def register(registry: Any, executor: str, operators: dict[str, Any]) -> None:
    """Register `te_linear`, and implement thunder's linear operation and primitive."""
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
