# SPDX-License-Identifier: Apache-2.0
"""Variable-length attention of packed sequences (torch's `varlen_attn`), on tensors of (tokens, heads, width).

cuDNN treats the sequences as a ragged batch: padded to the longest length, with an offset and a length for each
sequence. Operations of the trace compute offsets and lengths, so that all layers and both directions share them.

`window` is the number of keys that a query sees to the left and to the right of its position; -1 means all. (-1, 0) is
causal. The last query of a sequence is aligned with the last key.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple, TypeAlias

import torch

import thunder.torch as ltorch
from thunder.extend import OpTags, TensorProxy, dtypes, get_grad, put_grads
from thunder_ex_cudnn.attention import fallback
from thunder_ex_cudnn.attention.implementation import why_not_kinds
from thunder_ex_cudnn.plans import (
    Context,
    Description,
    Layout,
    Plan,
    context,
    current_device,
    dense,
    library,
    require_deterministic_attention,
)

__all__ = ["backward_in_steps", "forward_in_steps", "register"]

Tensor: TypeAlias = torch.Tensor


class Call(NamedTuple):
    """Everything that a plan depends on. It is also the cache key of the plan."""

    backward: bool
    dtype: torch.dtype
    sequences: int
    tokens: tuple[int, int]
    longest: tuple[int, int]
    heads: tuple[int, int]
    widths: tuple[int, int]
    window: tuple[int, int]
    same: bool
    scale: float
    deterministic: bool


class _Description(Description):
    def __init__(self, context: Context, call: Call):
        super().__init__(context, call.dtype)
        self.call = call
        counts, each = ((call.sequences + 1, 1, 1, 1), (1, 1, 1, 1)), ((call.sequences, 1, 1, 1), (1, 1, 1, 1))
        self.lengths = [self.tensor(n, each, torch.int32) for n in ("lengths_q", "lengths_kv")]
        names = ("query", "key", "value", "out", "sums")
        self.offsets = {n: self.tensor(f"of_{n}", counts, torch.int64) for n in names}

    def layout(self, like: str) -> Layout:
        """Return the layout of the query, key, value, result or sums."""
        call, keys = self.call, like in ("key", "value")
        heads, longest = call.heads[keys], call.longest[keys]
        width = 1 if like == "sums" else call.widths[like in ("value", "out")]
        return (call.sequences, heads, longest, width), (longest * heads * width, width, heads * width, 1)

    def input(self, name: str, like: str, dtype: torch.dtype) -> Any:
        made = self.tensor(name, self.layout(like), dtype)
        made.set_ragged_offset(self.offsets[like])
        return made

    def output(self, made: Any, like: str, dtype: torch.dtype) -> None:
        self.result(made, self.layout(like), dtype)
        made.set_ragged_offset(self.offsets[like])

    def options(self) -> dict[str, Any]:
        how: dict[str, Any] = {"attn_scale": self.call.scale, "use_padding_mask": True}
        how["seq_len_q"], how["seq_len_kv"] = self.lengths
        left, right = self.call.window
        if left >= 0 or right >= 0:
            sides = library().diagonal_alignment
            how["diagonal_alignment"] = sides.TOP_LEFT if self.call.same else sides.BOTTOM_RIGHT
        if left >= 0:
            how["diagonal_band_left_bound"] = left + 1  # cuDNN also counts the key at the query's position
        if right >= 0:
            how["diagonal_band_right_bound"] = right
        return how


def _described(context: Context, call: Call) -> Plan:
    if call.deterministic:
        require_deterministic_attention(context.device)
    d = _Description(context, call)
    q, k, v = (d.input(name, name, call.dtype) for name in ("query", "key", "value"))
    if not call.backward:
        out, sums = d.graph.sdpa(q, k, v, generate_stats=True, **d.options())
        d.output(out, "out", call.dtype)
        d.output(sums, "sums", torch.float32)
        return d.plan()
    out, grad = d.input("out", "out", call.dtype), d.input("grad", "out", call.dtype)
    sums, how = d.input("sums", "sums", torch.float32), d.options()
    if call.deterministic:
        how["use_deterministic_algorithm"] = True
    how["max_total_seq_len_q"], how["max_total_seq_len_kv"] = call.tokens
    made = d.graph.sdpa_backward(q, k, v, out, grad, sums, **how)
    for gradient, like in zip(made, ("query", "key", "value")):
        d.output(gradient, like, call.dtype)
    return d.plan()


# -- running it --------------------------------------------------------------------------------------------------------
def _run(tensors: Any, places: Any, outputs: Any, how: Any, *, backward: bool) -> bool:
    """Compute the outputs. Return False if cuDNN has no plan."""
    longest, same, window, scale = how
    # If the longest length is 1, cuDNN silently writes the sums of only the first head, and gradients become wrong.
    # Padding to 2 avoids this.
    longest = (max(longest[0], 2), longest[1])
    q, k, v, *_ = tensors
    device = q.get_device()
    if device != current_device():
        with torch.cuda.device(device):
            return _run(tensors, places, outputs, how, backward=backward)
    deterministic = backward and torch.are_deterministic_algorithms_enabled()
    heads, widths = (q.shape[1], k.shape[1]), (q.shape[2], v.shape[2])
    tokens = (q.shape[0], k.shape[0])
    kind = (longest, heads, widths, window, same, scale, deterministic)
    call = Call(backward, q.dtype, places[0].shape[0], tokens, *kind)
    here = context(device)
    plan = here.plans.get(call, here)
    if plan is here:
        plan = here.make(call, lambda here: _described(here, call), "attention of sequences")
    if plan is None:
        return False
    plan.run((*places, *map(dense, tensors), *outputs))
    return True


def _sequences(places: Any, *tensors: Any) -> Any:
    """Yield each sequence's slice of every tensor, as a batch of one. `tensors` are (tensor, whether it has keys)."""
    begins: list[list[int]] = [[0], [0]]
    for side in (0, 1):
        for n in places[side].tolist():
            begins[side].append(begins[side][-1] + n)
    for i in range(len(begins[0]) - 1):
        yield [x[begins[of_keys][i] : begins[of_keys][i + 1]].transpose(0, 1)[None] for x, of_keys in tensors]


def _unseen(rows: int, columns: int, window: tuple[int, int], like: Tensor) -> Tensor | None:
    """Return the additive mask of a window for one sequence; None if all keys are visible."""
    left, right = window
    if left < 0 and right < 0:
        return None
    own = torch.arange(rows, device=like.device).unsqueeze(1) + (columns - rows)
    keys = torch.arange(columns, device=like.device)
    unseen = (keys < own - left if left >= 0 else keys < 0) | (keys > own + right if right >= 0 else keys < 0)
    return torch.zeros(rows, columns, device=like.device).masked_fill(unseen, -math.inf)[None, None]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, places: Any, longest: Any, same: bool, window: Any, scale: float
) -> tuple[Tensor, Tensor]:
    make = torch.empty if same else torch.zeros  # the kernel does not write sequences without keys
    out = make((*query.shape[:2], value.shape[2]), dtype=query.dtype, device=query.device)
    sums = make(query.shape[:2], dtype=torch.float32, device=query.device)
    how = (longest, same, window, scale)
    if not _run((query, key, value), places, (out, sums), how, backward=False):
        return forward_in_steps(query, key, value, places, *how)
    return out, sums


def forward_in_steps(
    query: Tensor, key: Tensor, value: Tensor, places: Any, longest: Any, same: bool, window: Any, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute forward with torch, one sequence at a time."""
    out = torch.zeros((*query.shape[:2], value.shape[2]), dtype=query.dtype, device=query.device)
    sums = torch.zeros(query.shape[:2], dtype=torch.float32, device=query.device)
    parts = ((query, False), (key, True), (value, True), (out, False), (sums.unsqueeze(2), False))
    for q, k, v, o, s in _sequences(places, *parts):
        found, of_rows = fallback.forward(q, k, v, _unseen(q.shape[2], k.shape[2], window, q), None, scale)
        o.copy_(found)
        s.copy_(of_rows.unsqueeze(3))
    return out, sums


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, places: Any, longest: Any,
    same: bool, window: Any, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    make = torch.empty if same else torch.zeros
    made = tuple(make(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    tensors, how = (query, key, value, out, grad, sums), (longest, same, window, scale)
    if not _run(tensors, places, made, how, backward=True):
        return backward_in_steps(grad, query, key, value, out, sums, places, *how)
    return made


def backward_in_steps(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, places: Any, longest: Any,
    same: bool, window: Any, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute backward with torch, one sequence at a time."""
    made = tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    parts = ((grad, False), (query, False), (key, True), (value, True), (out, False), (sums.unsqueeze(2), False))
    for g, q, k, v, o, s, *of in _sequences(places, *parts, (made[0], False), (made[1], True), (made[2], True)):
        bias = _unseen(q.shape[2], k.shape[2], window, q)
        for x, found in zip(of, fallback.backward(g, q, k, v, o, s.squeeze(3), bias, None, scale, False)):
            x.copy_(found)
    return made


# -- operators --------------------------------------------------------------------------------------------------------
def _forward_meta(
    query: TensorProxy, key: TensorProxy, value: TensorProxy, places: Any, longest: Any, same: bool, window: Any,
    scale: float,
) -> tuple[TensorProxy, TensorProxy]:  # fmt: skip
    out = TensorProxy(like=query, shape=(*query.shape[:2], value.shape[2]))
    return out, TensorProxy(like=query, shape=query.shape[:2], dtype=dtypes.float32)


def _backward_meta(
    grad: TensorProxy, query: TensorProxy, key: TensorProxy, value: TensorProxy, out: TensorProxy, sums: TensorProxy,
    places: Any, longest: Any, same: bool, window: Any, scale: float,
) -> tuple[TensorProxy, ...]:  # fmt: skip
    return tuple(TensorProxy(like=x) for x in (query, key, value))


class _Arguments:
    """The arguments of torch's operator, by the names of its schema. The schema differs between versions of torch."""

    def __init__(self, names: list[tuple[str, Any]], args: Any, kwargs: Any):
        found = dict(names)
        found.update(zip([name for name, _ in names], args))
        found.update(kwargs)
        self.query, self.key, self.value = found["query"], found["key"], found["value"]
        self.starts = found["cu_seq_q"], found["cu_seq_k"]
        self.longest = found["max_q"], found["max_k"]
        left, right = found.get("window_size") or (-1, -1)
        self.window = (left, 0 if found.get("is_causal") else right)
        scale = found.get("scale")
        self.scale = 1.0 / math.sqrt(self.query.shape[-1]) if scale is None else float(scale)
        further = ("seqused_k", "block_table", "num_splits")
        self.further = [name for name in further if found.get(name) is not None]

    @property
    def same(self) -> bool:
        """Whether queries and keys belong to the same sequences."""
        first, second = self.starts
        return second is not None and first.name == second.name and self.longest[0] == self.longest[1]

    def why_not(self) -> str | None:
        """Return why cuDNN does not support the call; None if it does."""
        q, k, v = self.query, self.key, self.value
        if self.further or self.starts[1] is None:
            return f"does not support {' and '.join(self.further) or 'a cache'}"
        if not q.ndim == k.ndim == v.ndim == 3:
            return "supports only tensors of three dimensions: tokens, heads and width"
        if not all(type(n) is int and n >= -1 for n in self.window):
            return "supports only windows whose sizes are known while tracing"
        if not all(type(n) is int and n > 0 for n in self.longest) or not self.scale > 0:
            return "supports only positive lengths that are known while tracing, and positive scales"
        return why_not_kinds(q, k, v)

    def places(self) -> tuple[Any, ...]:
        """Return the lengths of queries and keys, and the offsets in query, key, value, result and sums."""
        (q, k), h, hk = self.starts, self.query.shape[1], self.key.shape[1]

        def lengths_of(x: Any) -> Any:
            return ltorch.to(ltorch.getitem(x, slice(1, None)) - ltorch.getitem(x, slice(None, -1)), dtypes.int32)

        lengths = lengths_of(q)
        both = (lengths, lengths if self.same else lengths_of(k))
        d, dv = self.query.shape[2], self.value.shape[2]
        steps = ((q, h * d), (k, hk * d), (k, hk * dv), (q, h * dv), (q, h))
        made: dict[Any, Any] = {}
        for x, n in steps:
            if (x.name, n) not in made:
                made[x.name, n] = ltorch.to(x, dtypes.int64) * n
        return (*both, *(made[x.name, n] for x, n in steps))


def register(registry: Any, executor: str) -> None:
    """Register the operators. Implement torch's operator with them if this version of torch has it."""
    tags = (OpTags.MATMUL_OP,)
    forward = registry.register_operator(
        "cudnn_varlen_forward", executor=executor, meta=_forward_meta, fn=_forward, tags=tags
    )
    backward = registry.register_operator(
        "cudnn_varlen_backward", executor=executor, meta=_backward_meta, fn=_backward, tags=tags
    )
    try:
        importlib.import_module("torch.nn.attention.varlen")
        operator = torch.ops.torch_attn._varlen_attn
        names = [(a.name, a.default_value) for a in operator.default._schema.arguments]
    except (ImportError, AttributeError):  # an older version of torch
        return

    def checker(*args: Any, **kwargs: Any) -> bool | str:
        return _Arguments(names, args, kwargs).why_not() or True

    def computed(found: _Arguments) -> tuple[Any, Any, Any]:
        how = (found.places(), found.longest, found.same, found.window, found.scale)
        return forward(found.query, found.key, found.value, *how), how, found

    def results(out: Any, sums: Any) -> tuple[Any, ...]:
        state = ltorch.zeros((2,), dtype=dtypes.uint64, device=out.device)
        return out, ltorch.transpose(sums, 0, 1), state

    def execution(*args: Any, **kwargs: Any) -> Any:
        (out, sums), _, _ = computed(_Arguments(names, args, kwargs))
        return results(out, sums)

    def gradient(*args: Any, **kwargs: Any) -> Any:
        (out, sums), how, found = computed(_Arguments(names, args, kwargs))
        tensors = (found.query, found.key, found.value)
        put_grads(tensors, backward(get_grad(out), *tensors, out, sums, *how))
        return results(out, sums)

    registry.register_implementation(
        ("opaque", operator),
        executor=executor,
        checker=checker,
        execution_transform=execution,
        grad_transform=gradient,
    )
