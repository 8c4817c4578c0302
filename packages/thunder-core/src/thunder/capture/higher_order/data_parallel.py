# SPDX-License-Identifier: Apache-2.0
"""`DistributedDataParallel` inside a traced program: its collectives are operations of the program.

The forward broadcasts the buffers of rank 0. After `backward()`, the gradients are averaged over all ranks, in buckets.
DDP does both in C++, outside of autograd's graph, so a trace cannot see it. The buckets are those that DDP forms after
its first step, so that the sums have the same bits. As in DDP, they depend on the order in which gradients become ready
in the first step of the first rank, and it is the accumulated `.grad` that is averaged, and only if the forward did not
run under `no_sync()`.

If the program leaves `backward()` to its caller, DDP itself reduces the gradients that the backward program returns.
The program only prepares it (`runtime/replicas.py`).
"""

from __future__ import annotations

import datetime
import json
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import compile_later, fall_back
from thunder.capture.base.sources import Root
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.collectives import check_scope, start, wait
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors.communication import Replica
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.layout import memory_order
from thunder.capture.tensors.tracer import Tracer
from thunder.core import prims
from thunder.core.groups import UNITS, Group
from thunder.core.symbol import OpTags
from thunder.executors.pythonex import ex as python_executor
from thunder.runtime import replicas
from thunder.torch import private
from thunder.torch.collectives import group_named

__all__ = ["check_reductions", "data_parallel_forward", "leave_reduction_to_torch", "reduce_gradients"]

_FUNCTIONS = Root(replicas, title="thunder.runtime.replicas")  # that prologues call


def data_parallel_forward(tracer: Tracer, ddp: Any, *inputs: Any, **kwargs: Any) -> Any:
    """Run the forward of a `DistributedDataParallel` module in a traced program."""
    _refuse(_why_not(tracer, ddp, (inputs, kwargs)))
    check_scope(tracer, "the forward of a DistributedDataParallel module")
    replica = _replica_of(tracer, ddp)
    synchronizes = torch.is_grad_enabled() and ddp.require_backward_grad_sync
    if torch.is_grad_enabled():
        _prepare(tracer, replica, synchronizes)
    if ddp.require_forward_param_sync and private.broadcasts_buffers(ddp):
        _broadcast_buffers(tracer, ddp, replica)
    output = ddp.module(*inputs, **kwargs)
    if ddp.require_forward_param_sync is not synchronizes:
        ddp.require_forward_param_sync = synchronizes
    replica.expects_gradients |= synchronizes
    return output


def _refuse(reason: str | None) -> None:
    if reason is not None:
        fall_back(f"the program calls a DistributedDataParallel module {reason}")


def _why_not(tracer: Tracer, ddp: Any, inputs: Any) -> str | None:
    """Return what a trace does not support about a module's forward or its inputs, or None."""
    reasons = [
        ("with communication hooks on its buffers", hasattr(ddp, "buffer_hook")),
        ("with mixed precision", getattr(ddp, "mixed_precision", None) is not None),
        ("with static_graph=True", ddp.static_graph),
        ("with the Python reducer", getattr(ddp, "_use_python_reducer", False)),
        ("with delay_all_reduce_named_params", getattr(ddp, "_delay_all_reduce_all_params", False)),
        ("in a join context", ddp._join_config.enable),
        ("in a transform or a checkpointed region", bool(tracer.parts) or len(tracer.trace.scopes) > 1),
    ]
    found = next((reason for reason, holds in reasons if holds), None)
    device = torch.device(ddp.device_type, ddp.device_ids[0]) if ddp.device_ids else None
    if found is None and device is not None and any(x.device != device for x in _tensors(inputs)):
        return "whose inputs it moves to another device"
    return found


def _why_not_reduced(tracer: Tracer, ddp: Any) -> str | None:
    """Return what a trace does not support about the reduction of a module's gradients, or None."""
    reasons = [
        ("with communication hooks", bool(ddp._comm_hooks)),
        ("that runs optimizers in backward", bool(getattr(ddp, "_optimizers_in_backward", ()))),
        ("whose parameters were replaced or added afterwards", not private.named_as_constructed(ddp)),
    ]
    found = next((reason for reason, holds in reasons if holds), None)
    if found is not None:
        return found
    with tracer.recording():
        if private.has_builtin_hook(ddp):
            return "with communication hooks"
        if private.reduced_parameters(ddp) is None:
            return "with parameters (un)frozen afterwards"
    return None


def _prepare(tracer: Tracer, replica: Replica, synchronizes: bool) -> None:
    """Record that the reducer of a module is prepared for a forward, unless the program itself reduces gradients."""
    with tracer.recording():
        prepare_reducer(replicas.number_of(replica.module), synchronizes)
        replica.preparations.append(tracer.trace.scopes[0][-1])


prepare_reducer = python_executor.register_operator(
    "prepare_reducer", meta=lambda number, synchronizes: None, fn=replicas.prepare_reducer,
    tags=(OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE),
)  # fmt: skip


def leave_reduction_to_torch(tracer: Tracer) -> None:
    """Guard the modules whose gradients torch reduces in a `backward()` that the program leaves to its caller."""
    for replica in tracer.communication.replicas:
        if replica.expects_gradients and replica.module.find_unused_parameters:
            _refuse("with find_unused_parameters=True, and leaves backward() to its caller")
        if not replica.preparations:
            continue
        reached = tracer.recorder.reached.get(id(replica.module))
        if reached is None:
            _refuse("that no path from the function leads to, and leaves backward() to its caller")
        with tracer.recording():
            number = replicas.number_of(replica.module)
            tracer.recorder.value(_FUNCTIONS.attr("number_of").call((reached.source,)), number)


def check_reductions(tracer: Tracer) -> None:
    """End the trace of a `backward()` whose gradients it cannot reduce, or cannot reduce yet.

    DDP forms its final buckets in its second step, from the order of gradients in the first, in a collective of its
    own. Until then steps run eagerly, so that a rank that runs eagerly always pairs with compiled ones.
    """
    for replica in tracer.communication.replicas:
        if not replica.preparations:
            continue
        if replica.expects_gradients:
            _refuse(_why_not_reduced(tracer, replica.module))
        if _forms_buckets_later(replica) and tracer.communication.may_wait:
            compile_later(tracer, "DistributedDataParallel forms its buckets in its first two steps")


def _forms_buckets_later(replica: Replica) -> bool:
    """Check whether a module has not formed its final buckets yet, which depends on no rank's program."""
    alone = replica.group.size == 1 or torch.distributed.get_backend() == "fake"
    return not (alone or replica.module.find_unused_parameters or replica.module._has_rebuilt_buckets)


def _reduce_here(tracer: Tracer, replica: Replica) -> None:
    """Remove the preparations for a `backward()` of the caller, because the program calls it."""
    operations = tracer.trace.scopes[0]
    operations[:] = [op for op in operations if not any(op is x for x in replica.preparations)]
    replica.preparations.clear()


def _tensors(x: Any) -> list[Any]:
    if isinstance(x, torch.Tensor):
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _replica_of(tracer: Tracer, ddp: Any) -> Replica:
    known = next((r for r in tracer.communication.replicas if r.module is ddp), None)
    if known is not None:
        return known
    group = ddp.process_group
    with tracer.recording():
        replica = Replica(ddp, group_named(group))
    tracer.communication.replicas.append(replica)
    return replica


def _broadcast_buffers(tracer: Tracer, ddp: Any, replica: Replica) -> None:
    """Record the broadcast of the buffers of rank 0, in one collective for each dtype and device."""
    handles = [tracer.handle_of(x) for name, x in ddp.module.named_buffers() if name not in ddp.parameters_to_ignore]
    kinds: dict[Any, list[Handle]] = {}
    for handle in handles:
        kinds.setdefault((handle.dtype, handle.device), []).append(handle)

    def broadcast(flat: Any) -> Any:
        return _start_bucket(tracer, prims.broadcast, flat, 0, replica.group)

    with TracingMode(), torch.no_grad():
        _exchange(tracer, list(kinds.values()), broadcast, factor=None)


def _start_bucket(tracer: Tracer, sym: Any, flat: Any, *args: Any) -> Any:
    """Record the start of a collective on a bucket, which is not merged with other collectives."""
    result = start(tracer, "DistributedDataParallel", sym, flat, *args)
    units = tracer.trace.info.setdefault(UNITS, {})
    units[result._storage.value.name] = f"bucket {len(units)} of DistributedDataParallel"
    return result


def _exchange(
    tracer: Tracer, buckets: Sequence[Sequence[Handle]], run: Callable[[Any], Any], *, factor: float | None
) -> None:
    """Record a collective on each bucket, and write its results into the tensors of the bucket."""
    started = []
    for bucket in buckets:
        values: list[Any] = [x if factor is None else x * factor for x in bucket]
        started.append(run(tracer.handle_of(torch.cat([x.reshape(-1) for x in values]))))
    for bucket, result in zip(buckets, started):
        parts = wait(tracer, result).split([x.numel() for x in bucket])
        for target, part in zip(bucket, parts):
            assign(tracer, target, part.reshape(target.shape), "DistributedDataParallel")


def reduce_gradients(tracer: Tracer, leaves: Sequence[Handle], gradient_of: Callable[[Handle], Any]) -> None:
    """Record the average of gradients over all ranks, for the replicas whose parameters are among `leaves`.

    `leaves` are the tensors to which `backward()` has just added gradients, in the order of the additions.
    """
    known = {id(x.handle): x.tensor for x in tracer.inputs}
    for replica in tracer.communication.replicas:
        with tracer.recording():
            trained = [p for p in replica.module._module_parameters if p.requires_grad]
        ready = [leaf for leaf in leaves if any(known.get(id(leaf)) is p for p in trained)]
        if not ready:
            continue
        _reduce_here(tracer, replica)
        if not replica.expects_gradients:
            continue
        if len(ready) < len(trained):
            fall_back(
                f"{len(trained) - len(ready)} parameters of a DistributedDataParallel module get no gradient in "
                "backward()"
            )
        replica.expects_gradients = False
        _reduce(tracer, replica, trained, [known[id(leaf)] for leaf in ready], gradient_of)


def _reduce(
    tracer: Tracer, replica: Replica, parameters: Sequence[Any], ready: Sequence[Any],
    gradient_of: Callable[[Handle], Any],
) -> None:  # fmt: skip
    with tracer.recording():
        buckets = _buckets(replica, parameters, ready)

    def all_reduce(flat: Any) -> Any:
        return _start_bucket(tracer, prims.all_reduce, flat, "sum", replica.group)

    with TracingMode(), torch.no_grad():
        gradients = [[_in_bucket(tracer, p, gradient_of(tracer.handle_of(p))) for p in bucket] for bucket in buckets]
        _exchange(tracer, gradients, all_reduce, factor=1 / replica.group.size)
        if replica.module.find_unused_parameters:  # other ranks may run DDP eagerly, which counts the uses
            used = torch.ones(len(parameters), dtype=torch.int32, device=parameters[0].device)
            wait(tracer, all_reduce(tracer.handle_of(used)))


def _buckets(replica: Replica, parameters: Sequence[Any], ready: Sequence[Any]) -> list[list[Any]]:
    """Return the buckets of a module's reducer, or those that it would form if this was its first step."""
    if replica.module._has_rebuilt_buckets:
        return [[parameters[i] for i in bucket] for bucket in private.formed_buckets(replica.module)]
    return private.buckets_of_gradients(replica.module, _in_common_order(replica, parameters, ready))


# For each module the order in which gradients become ready, as the indices of parameters. It is the same on all ranks.
_ORDERS: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
_exchanges: Counter[str] = Counter()  # by the name of the group
_TIMEOUT = datetime.timedelta(seconds=300)


def _in_common_order(replica: Replica, parameters: Sequence[Any], ready: Sequence[Any]) -> Sequence[Any]:
    """Return the parameters in an order on which all ranks agree, also if they trace other programs later."""
    if replica.module.find_unused_parameters:
        return parameters
    order = _ORDERS.get(replica.module)
    if order is None:
        index = {id(p): i for i, p in enumerate(parameters)}
        order = _ORDERS[replica.module] = _of_first_rank(replica.group, [index[id(p)] for p in ready])
    return [parameters[i] for i in order]


def _of_first_rank(group: Group, order: list[int]) -> list[int]:
    """Return the order of the first rank of a group, which posts it to the store, as DDP broadcasts it."""
    if group.size == 1 or torch.distributed.get_backend() == "fake":
        return order
    import torch.distributed.distributed_c10d as c10d

    _exchanges[group.name] += 1
    store, key = c10d._get_default_store(), f"thunder/data_parallel/{group.name}/{_exchanges[group.name]}"
    if torch.distributed.get_rank() == group.ranks[0]:
        store.set(key, json.dumps(order))
        return order
    store.wait([key], _TIMEOUT)
    return json.loads(store.get(key))  # type: ignore[no-any-return]


def _in_bucket(tracer: Tracer, parameter: Any, gradient: Any) -> Handle:
    """Return a view of a gradient whose elements are in the order in which a bucket of DDP contains them."""
    with tracer.recording():
        order = memory_order(tracer.handle_of(parameter))
    keeps = order is None or order == list(range(gradient.dim()))
    return tracer.handle_of(gradient if keeps else gradient.permute(order))
