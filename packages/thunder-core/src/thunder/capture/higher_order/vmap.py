# SPDX-License-Identifier: Apache-2.0
"""`vmap` inside a traced program: a function of one example is traced once and applied to a batch of examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.higher_order.derivatives import located
from thunder.capture.higher_order.subtrace import Escaped, Subtrace, tracer_here
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.passes.batching import RANDOMNESS, Batch
from thunder.torch.private import pytree

__all__ = ["check_vmap_options", "vmap"]


def check_vmap_options(randomness: str, chunk_size: int | None) -> None:
    """Raise torch's errors for invalid options of `vmap`."""
    if randomness not in RANDOMNESS:
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")
    if chunk_size is not None and not chunk_size > 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", None) or repr(fn)


# -- dimensions -------------------------------------------------------------------------------------------------------
def _spread(dims: Any, tree: Any) -> list[int | None] | None:
    """Return a dimension, or None, for each leaf of `tree`. `dims` has the structure of `tree` or a prefix of it.

    Return None if the structures do not match.
    """
    if dims is None or (isinstance(dims, int) and not isinstance(dims, bool)):
        return [dims] * len(pytree.tree_leaves(tree))
    ours, one = pytree.tree_flatten(dims, is_leaf=lambda x: x is not dims)
    theirs, other = pytree.tree_flatten(tree, is_leaf=lambda x: x is not tree)
    if one != other or ours == [dims]:
        return None
    found: list[int | None] = []
    for d, x in zip(ours, theirs):
        below = _spread(d, x)
        if below is None:
            return None
        found += below
    return found


def _in_dims(fn: Any, in_dims: Any, args: tuple[Any, ...], leaves: Sequence[Any]) -> list[int | None]:
    """Return the batch dimension of each argument, or raise if `in_dims` is invalid."""
    where = f"vmap({_name(fn)}, in_dims={in_dims}, ...)(<inputs>)"
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"{where}: expected `in_dims` to be int or a (potentially nested) tuple matching the structure of inputs, "
            f"got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"vmap({_name(fn)})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are trying to vmap "
            "over a function with no inputs. The latter is unsupported."
        )
    found = _spread(in_dims, args)
    if found is None:
        raise ValueError(
            f"{where}: in_dims is not compatible with the structure of `inputs`. in_dims has structure "
            f"{pytree.tree_structure(in_dims)} but inputs has structure {pytree.tree_structure(args)}."
        )
    for x, d in zip(leaves, found):
        if d is None:
            continue
        if not isinstance(x, torch.Tensor):
            raise ValueError(
                f"{where}: Got in_dim={d} for an input but the input is of type {type(x)}. We cannot vmap over "
                "non-Tensor arguments, please use None as the respective in_dim"
            )
        if not -x.dim() <= d < x.dim():
            raise ValueError(
                f"{where}: Got in_dim={d} for some input, but that input is a Tensor of dimensionality {x.dim()} so "
                f"expected in_dim to satisfy -{x.dim()} <= in_dim < {x.dim()}."
            )
    return [None if d is None else d % x.dim() for x, d in zip(leaves, found)]


def _size(leaves: Sequence[Any], dims: Sequence[int | None]) -> Any:
    sizes = [x.shape[d] for x, d in zip(leaves, dims) if d is not None]
    if not sizes:
        raise ValueError("vmap: at least one input must be batched, but in_dims is None for all inputs")
    if any(n != sizes[0] for n in sizes):
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    return sizes[0]


def _out_dims(fn: Any, out_dims: Any, outputs: Any, leaves: Sequence[Any]) -> list[int | None]:
    found = _spread(out_dims, outputs)
    if found is None and isinstance(out_dims, tuple) and len(out_dims) == 1 and isinstance(outputs, torch.Tensor):
        found = list(out_dims)
    if found is None:
        raise ValueError(
            f"vmap({_name(fn)}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the structure of "
            f"`outputs`. out_dims has structure {pytree.tree_structure(out_dims)} but outputs has structure "
            f"{pytree.tree_structure(outputs)}."
        )
    for x, d in zip(leaves, found):
        if d is None:
            continue
        if not isinstance(x, torch.Tensor):
            raise ValueError(
                f"vmap({_name(fn)}, ...): `{_name(fn)}` must only return Tensors, got type {type(x)}. Did you mean to "
                "set out_dims= to None for output?"
            )
        if not -x.dim() - 1 <= d <= x.dim():
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{x.dim() + 1}, {x.dim()}], but got {d})"
            )
    return [None if d is None else d % (x.dim() + 1) for x, d in zip(leaves, found)]


def _moved(x: TensorProxy, start: int, end: int) -> Any:
    if start == end:
        return x
    order = [d for d in range(x.ndim) if d != start]
    order.insert(end, start)
    return prims.transpose(x, tuple(order))


# -- the transform ----------------------------------------------------------------------------------------------------
@located
def vmap(
    fn: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str, chunk_size: int | None, args: Any, kwargs: Any
) -> Any:
    """Call `torch.func.vmap(fn, in_dims, out_dims, randomness, chunk_size=chunk_size)(*args, **kwargs)`."""
    check_vmap_options(randomness, chunk_size)
    leaves, spec = pytree.tree_flatten(args)
    dims = _in_dims(fn, in_dims, args, leaves)
    size = _size(leaves, dims)
    if chunk_size is None or chunk_size >= size:
        return _vmap(fn, leaves, spec, dims, size, out_dims, randomness, kwargs)
    found = []
    for start in range(0, int(size), chunk_size):
        length = min(chunk_size, int(size) - start)
        rows = [x if d is None else x.narrow(d, start, length) for x, d in zip(leaves, dims)]
        found.append(_vmap(fn, rows, spec, dims, length, out_dims, randomness, kwargs))
    flat = [pytree.tree_leaves(outputs) for outputs in found]
    structure = pytree.tree_structure(found[0])
    over = _out_dims(fn, out_dims, pytree.tree_map(lambda x: x[0], found[0]), [x[0] for x in flat[0]])
    joined = [parts[0] if d is None else torch.cat(list(parts), d) for d, parts in zip(over, zip(*flat))]
    return pytree.tree_unflatten(joined, structure)


def _vmap(
    fn: Any, leaves: Sequence[Any], spec: Any, dims: Sequence[int | None], size: Any, out_dims: Any, randomness: str,
    kwargs: Any,
) -> Any:  # fmt: skip
    tracer = tracer_here("vmap")
    part = Subtrace(tracer, "vmap", constant=False)
    inputs = [x if d is None else part.stand_in(x, batch_dim=d) for x, d in zip(leaves, dims)]
    out = part.run(fn, *pytree.tree_unflatten(inputs, spec), **kwargs)
    outputs, structure = pytree.tree_flatten(out)
    over = _out_dims(fn, out_dims, out, outputs)
    tensors = [x for x in outputs if isinstance(x, torch.Tensor)]
    values = dict(zip(map(id, tensors), part.read(tensors)))
    written, kept = part.written(), part.own_handles()
    program = part.to_trace(list(values.values()))
    batch = Batch(size, randomness)
    at = {id(h): d for h, d in zip(part.given, [d for d in dims if d is not None])}
    with part.transforming():
        for inner, outer, d in zip(part.values, part.values_given, [d for d in dims if d is not None]):
            batch.env[inner.name] = batch.add(part.apart(_moved(outer, d, 0)))
        batch.run(program.bound_symbols)
        results = [_result(batch, fn, values.get(id(x), x), d) for x, d in zip(outputs, over)]
        changed = [(handle, _moved(batch.batched(value), 0, at[id(handle)])) for handle, value in written]
    _settle_memory(part, batch, kept)
    for handle, value in changed:
        with tracer.recording():
            aliasing.write(handle, part.outer(value), "vmap")
    return pytree.tree_unflatten(part.give(results), structure)


def _result(batch: Batch, fn: Any, value: Any, dim: int | None) -> Any:
    if dim is not None:
        return _moved(batch.batched(value), 0, dim)
    if isinstance(value, TensorProxy):
        value = batch.value(value)
        if value in batch:
            raise ValueError(
                f"vmap({_name(fn)}, ...): `{_name(fn)}` can not return a BatchedTensor when out_dim is None"
            )
    return value


def _settle_memory(part: Subtrace, batch: Batch, kept: Sequence[Handle]) -> None:
    """Update the storages that the part wrote to, and the handles in `kept`, to values of the surrounding trace."""
    for storage in part.written_outside():
        storage.value = batch.value(storage.value)
        if storage.value in batch:
            raise RuntimeError(
                "vmap: an in-place operation writes a batched value into a tensor that is not batched. Use the "
                "out-of-place operation, or create the tensor inside the function from a batched input "
                "(torch.zeros_like(x), x.new_zeros(...))"
            )
    for handle in kept:
        value = batch.value(handle._value)
        if value in batch or batch.value(handle._storage.value) in batch:
            handle._tracer = Escaped()  # type: ignore[assignment]
        else:
            handle._value = value
            handle._storage.value = batch.value(handle._storage.value)
