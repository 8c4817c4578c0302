# SPDX-License-Identifier: Apache-2.0
"""DTensors in a traced program: operations on them become operations on local tensors and collectives.

User code holds a handle of the whole tensor. Its value has a layout, and is the result of `prims.dtensor_of`, or an
input, from which `prims.local_of` takes the local tensor. An operation runs on the local tensors:

1. The sharding rule of the operation (`sharding.py`) chooses placements of the operands, which are redistributed.
2. Replicated operands of an operation whose results are not replicated are read through `varying`, so that their
   gradients are summed over the ranks.
3. torch's function is called with the local tensors, as if the user had called it.

An operation without a rule runs on replicated operands, and `thunder.explain` reports it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.sources import Root, Source
from thunder.capture.dispatch.collectives import check_scope, note_group
from thunder.capture.dispatch.sharded_losses import plan_of_loss
from thunder.capture.dispatch.sharding import RULES, Call, Rule, placements_for, pointwise
from thunder.capture.dispatch.writing import writes_in_place
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.communication import Shard
from thunder.capture.tensors.handle import Handle, Lifted
from thunder.capture.tensors.leaf_tensors import set_requires_grad
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.core import prims
from thunder.core.events import current_log
from thunder.core.layouts import NORM, Layout, Partial, Placement, Replicated, Sharded
from thunder.core.proxies import OPERATORS
from thunder.core.state import state
from thunder.core.symbol import OpTags, Symbol
from thunder.runtime.kernels import dtensors
from thunder.torch import redistribution
from thunder.torch.base import language, torch_function_map
from thunder.torch.private import DisableTorchFunction, without_overrides
from thunder.torch.sharded_loss import sharded_cross_entropy

__all__ = [
    "call_on_dtensors", "contiguous_strides", "dtensor", "dtensor_class", "filled", "finish_dtensors", "has_dtensors",
    "local_and_layout", "local_tensor", "redistributed", "tensors_of", "values_of_layouts", "varying",
]  # fmt: skip

# Operations with the values of DTensors as operands.
_BORDER = (prims.local_of, prims.dtensor_of, prims.python_return, prims.python_del, prims.unpack_trivial)


# The usual types of arguments.
_NO_DTENSORS = {Handle, torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None), torch.dtype, torch.device}


def has_dtensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Check whether a call has DTensors among its arguments."""
    cls = dtensor_class()
    return cls is not None and _holds(cls, (*args, *kwargs.values()), set())


def _holds(cls: type, values: Collection[Any], seen: set[int]) -> bool:
    """Look for a DTensor, which is asked for at each call: first by the types of all values at once."""
    kinds = set(map(type, values))
    if Handle in kinds and any(type(x) is Handle and x._class is cls for x in values):
        return True
    kinds -= _NO_DTENSORS
    if not kinds:
        return False
    if any(issubclass(kind, cls) for kind in kinds):
        return True
    inner = [x for x in values if isinstance(x, (list, tuple, dict)) and id(x) not in seen]
    seen.update(map(id, inner))  # a list or dict may contain itself
    return any(_holds(cls, x.values() if isinstance(x, dict) else x, seen) for x in inner)


def dtensor_class() -> Any:
    """Return the class DTensor, or None if it is not imported."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


# -- values -----------------------------------------------------------------------------------------------------------
def _layout(handle: Handle) -> Layout:
    layout = handle._value.dtensor_layout
    if layout is None:
        fall_back("the program uses a DTensor whose layout is not known while tracing")
    return layout


def local_and_layout(tracer: Tracer, x: Any) -> tuple[Handle, Layout]:
    """Return the local tensor of a DTensor, and its layout."""
    handle = tracer.handle_of(x)
    layout = _layout(handle)
    if handle._local is None:
        lifted = tracer.input_with(handle)
        if lifted is None:
            fall_back("the program changes a DTensor in a way that no trace can express")
        with tracer.recording():
            for group in layout.mesh.groups:
                note_group(tracer, group)
            handle._local = _of_input(tracer, lifted, layout)
    return handle._local, layout


def local_tensor(tracer: Tracer, x: Any, layout: Layout) -> Handle:
    """Return the local tensor of a DTensor that must have a layout's placements."""
    local, found = local_and_layout(tracer, x)
    if found.placements != layout.placements or found.mesh != layout.mesh:
        fall_back("the program adds to the gradient of a DTensor that has other placements")
    return local


def _of_input(tracer: Tracer, lifted: Lifted, layout: Layout) -> Handle:
    """Return the local tensor of an input.

    It is an input, too, except for tensors that require grad in the program of a module: there an operation of the
    outermost scope takes the local tensor, so that the whole program may read it.
    """
    tracer.communication.in_own_order = True
    shard = tracer.communication.shards.get(id(lifted.tensor))
    if shard is not None:
        return shard.local
    source = None if tracer.recorder is None else tracer.recorder.source_of_input(lifted.tensor)
    if not lifted.tensor.requires_grad and source is not None:
        tensor = lifted.tensor._local_tensor  # type: ignore[attr-defined]
        tracer.recorder.tensor_found(source.attr("_local_tensor"), tensor)
        return tracer.handle_of(tensor)
    if source is not None and not tracer.recorder.of_module:
        # A step may call backward(), and write to the tensor. Its gradients arrive at the DTensor.
        tensor = without_overrides(dtensors.local_with_gradient, lifted.tensor)
        at = Root(dtensors, "thunder.runtime.kernels.dtensors").attr("local_with_gradient").call((source,))
        tracer.recorder.tensor_found(at, tensor)
        local = tracer.handle_of(tensor)
        tracer.communication.shards[id(lifted.tensor)] = Shard(lifted.tensor, local)
        return local
    with tracer.trace.scope() as operations:
        local = prims.local_of(lifted.proxy, layout)
    tracer.trace.scopes[0].extend(operations)
    found: Handle = tracer.wrap(local, requires_grad=lifted.handle._needs_grad)
    tracer.communication.read_only.append((found._storage, "the program writes to a DTensor that requires grad"))
    return found


def dtensor(tracer: Tracer, local: Handle, layout: Layout) -> Handle:
    """Return the handle of the DTensor with a local tensor."""
    tracer.communication.in_own_order = True
    with tracer.recording():
        for group in layout.mesh.groups:
            note_group(tracer, group)
        value = aliasing.read(local)
        found: Handle = tracer.wrap(prims.dtensor_of(value, layout), requires_grad=needs_grad(local))
        found._local, found._made_of = local, value
        return found


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= max(size, 1)
    return tuple(reversed(strides))


def _call(tracer: Tracer, sym: Symbol, *args: Any) -> Any:
    with tracer.recording():
        current_log().add("collective", f"thunder.torch.{sym.name}", where=state.source)
    return tracer.call_symbol(sym, args, {})


# -- redistribution ---------------------------------------------------------------------------------------------------
def redistributed(tracer: Tracer, local: Any, layout: Layout, wanted: Sequence[Placement]) -> Any:
    """Return the local tensor of a DTensor with other placements."""
    placements = list(layout.placements)
    for i, (group, new) in enumerate(zip(layout.mesh.groups, wanted)):
        old = placements[i]
        if old == new:
            continue
        if layout.part is not None:
            fall_back(
                f"the program redistributes a DTensor of shape {list(layout.shape)} that the ranks share unevenly"
            )
        others = [p for k, p in enumerate(placements) if k > i and isinstance(p, Sharded)]
        if any(p.dim == x.dim for p in others for x in (old, new) if isinstance(x, Sharded)):
            fall_back("the program redistributes a dimension of a DTensor that several mesh dimensions shard")
        if isinstance(new, Sharded) and _sizes(layout, placements, i)[new.dim] % group.size:
            fall_back(
                f"a dimension of a DTensor of shape {list(layout.shape)} cannot be divided among {group.size} ranks"
            )
        local = _moved(tracer, local, old, new, group)
        placements[i] = new
    return local


def _sizes(layout: Layout, placements: Sequence[Placement], without: int) -> list[int]:
    sizes = list(layout.shape)
    for i, (group, p) in enumerate(zip(layout.mesh.groups, placements)):
        if isinstance(p, Sharded) and i != without:
            sizes[p.dim] //= group.size
    return sizes


def _moved(tracer: Tracer, local: Any, old: Placement, new: Placement, group: Any) -> Any:
    if isinstance(old, Partial) and old.op.startswith(NORM):
        order = float(old.op.removeprefix(NORM))
        local = _moved(tracer, local**order, Partial("sum"), Replicated(), group) ** (1.0 / order)
        return local if isinstance(new, Replicated) else _moved(tracer, local, Replicated(), new, group)
    if isinstance(old, Partial):
        if isinstance(new, Sharded) and old.op == "sum":
            return _call(tracer, redistribution.scatter_sum, local, new.dim, group)
        if old.op not in ("sum", "avg") and needs_grad(local) and torch.is_grad_enabled():
            fall_back(f"the program reduces a DTensor that requires grad by {old.op}")
        local = _call(tracer, redistribution.sum_partial, local, old.op, group)
        return local if isinstance(new, Replicated) else _moved(tracer, local, Replicated(), new, group)
    if isinstance(old, Sharded):
        if isinstance(new, Sharded):
            return _call(tracer, redistribution.move_shards, local, old.dim, new.dim, group)
        local = _call(tracer, redistribution.gather_shards, local, old.dim, group)
        return local if isinstance(new, Replicated) else _moved(tracer, local, Replicated(), new, group)
    if isinstance(new, Sharded):
        return tracer.call_symbol(redistribution.own_shard, (local, new.dim, group), {})
    if new.op == "sum" and not local.is_floating_point():  # type: ignore[union-attr]
        fall_back("the program adds a partial DTensor of integers to a replicated one")
    if new.op == "sum":  # type: ignore[union-attr]
        return tracer.call_symbol(redistribution.split_sum, (local, group), {})
    if new.op == "avg":  # type: ignore[union-attr]
        return local
    if new.op.startswith(NORM):  # type: ignore[union-attr]
        return local / math.pow(group.size, 1 / float(new.op.removeprefix(NORM)))  # type: ignore[union-attr]
    return fall_back(f"the program distributes a DTensor as {new}")


def varying(tracer: Tracer, local: Any, group: Any) -> Any:
    """Return a replicated value for operations that differ between ranks; the same one for each of them."""
    if group.size == 1 or not (torch.is_grad_enabled() and needs_grad(local)):
        return local
    value = aliasing.read(tracer.handle_of(local))
    key = value.name, group.name, id(tracer.trace.scopes[-1])
    known = tracer.communication.varying.get(key)
    if known is None:
        known = tracer.call_symbol(redistribution.varying, (local, group), {})
        tracer.communication.varying[key] = known._value
        return known
    return tracer.wrap(known, requires_grad=True)


# -- operations -------------------------------------------------------------------------------------------------------
_DUNDER = dict(OPERATORS)
_DUNDER.update({f"__r{d.strip('_')}__": m for d, m in OPERATORS.items()})
del _DUNDER["__rmatmul__"]  # its operands are swapped
_INPLACE_DUNDER = {f"__i{d.strip('_')}__": m for d, m in OPERATORS.items()}
_DUNDER["__rdiv__"] = _DUNDER["__rtruediv__"] = "reciprocal"  # not linear, unlike a division by a number


def _symbol(func: Any) -> Any:
    """Return the operation that a function of torch stands for, or None."""
    found = torch_function_map().get(func)
    if found is not None:
        return found
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return language.properties.get(func.__self__.__name__)
    return language.methods.get(_DUNDER.get(name, name))


def call_on_dtensors(
    tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[..., Any]
) -> Any:
    """Call a function of torch on DTensors. `call` calls it on local tensors."""
    name = getattr(func, "__name__", "")
    prop = getattr(func.__self__, "__name__", "") if name in ("__get__", "__set__") else None
    if name == "__set__" and prop != "grad":
        fall_back(f"the program sets the attribute {prop} of a DTensor")
    if name == "requires_grad_" and needs_grad(args[0]) is (*args[1:], *kwargs.values(), True)[0]:
        return args[0]
    in_place = writes_in_place(name) or (name.startswith("__i") and name not in ("__invert__", "__index__"))
    if in_place and not isinstance(args[0], dtensor_class()):
        fall_back(f"the program calls {name}, which writes a DTensor to a torch.Tensor")
    sym = _in_place_form(name) if in_place else _symbol(func)
    if prop is None and name in _OF_MEMORY and tracer.input_with(tracer.handle_of(args[0])) is None:
        fall_back(f"the program calls {name} on a DTensor that it computes, whose strides are not known")
    if prop is None and name in _METADATA:
        return NotImplemented
    if not isinstance(sym, Symbol):
        return NotImplemented if prop is not None else _unknown(name)
    if kwargs.get("out") is not None or kwargs.get("inplace"):
        fall_back(f"the program calls {name}, which writes to a DTensor")
    if OpTags.RANDOM_OP in sym.tags or _draws(sym, args, kwargs):
        fall_back(f"the program calls {name} on a DTensor, which draws random numbers")
    if tracer.parts:
        fall_back("a transform of the program uses DTensors")
    check_scope(tracer, f"{name} on a DTensor")
    return _Operation(tracer, func, args, kwargs, sym, call).run(in_place)


# Operations that have the sharding rule of a function that writes to a tensor.
_FILLS = {"copy_": "add", "zero_": "neg", "fill_": "pow"}


def _in_place_form(name: str) -> Any:
    """Return the operation whose result an in-place method writes to its first argument, or None."""
    return language.methods.get(_INPLACE_DUNDER.get(name) or _FILLS.get(name) or name[:-1])


_METADATA = frozenset({"size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "__len__",
                       "element_size", "get_device", "is_contiguous", "stride", "storage_offset"})  # fmt: skip


_OF_MEMORY = frozenset({"is_contiguous", "stride", "storage_offset"})


def _unknown(name: str) -> Any:
    return fall_back(f"the program calls {name} on a DTensor, for which there is no operation on local tensors")


def _draws(sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if "dropout" not in sym.name:
        return False
    given = {**dict(zip(sym.bind.names, args)), **kwargs}
    return bool(given.get("training", True)) and given.get("p", 0.5) != 0


def tensors_of(x: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (tuple, list)):
        for i in x:
            yield from tensors_of(i)
    elif isinstance(x, dict):
        yield from tensors_of(list(x.values()))
    elif isinstance(x, slice):
        yield from tensors_of([x.start, x.stop, x.step])


def filled(x: Any, values: Iterator[Any]) -> Any:
    """Return arguments with the tensors replaced, in the order of `tensors_of`."""
    if isinstance(x, torch.Tensor):
        return next(values)
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        return type(x)([filled(i, values) for i in x])
    if isinstance(x, dict):
        return {k: filled(v, values) for k, v in x.items()}
    return slice(*[filled(i, values) for i in (x.start, x.stop, x.step)]) if isinstance(x, slice) else x


class _Operation:
    """A call of torch with DTensors."""

    def __init__(self, tracer: Tracer, func: Any, args: Any, kwargs: Any, sym: Symbol, call: Callable[..., Any]):
        self.tracer, self.func, self.args, self.kwargs, self.sym, self.call = tracer, func, args, kwargs, sym, call
        given = list(tensors_of((args, kwargs)))
        self.locals: list[Any] = []
        self.layouts: list[Layout] = []
        cls = dtensor_class()
        meshes = {}
        for x in given:
            if isinstance(x, cls):
                local, layout = local_and_layout(tracer, x)
                meshes[layout.mesh] = None
                self.locals.append(local)
                self.layouts.append(layout)
            else:
                self.locals.append(x)
                self.layouts.append(None)  # type: ignore[arg-type]
        if len(meshes) != 1:
            fall_back(f"the program combines DTensors of several meshes in {sym.name}")
        (self.mesh,) = meshes
        for i, x in enumerate(given):
            if self.layouts[i] is None:
                if x.dim() != 0 and x.numel() != 1 and sym.name != "cross_entropy":  # all ranks have the same targets
                    fall_back(f"the program combines a DTensor and a torch.Tensor in {sym.name}")
                shape = tuple(x.shape)
                self.layouts[i] = Layout(
                    [Replicated()] * len(self.mesh.groups), shape, contiguous_strides(shape), self.mesh
                )
        self.shapes = [layout.shape for layout in self.layouts]
        self.uneven: dict[int, int] = {}  # by dimension of the mesh: the size of the dimension that is shared unevenly

    def run(self, in_place: bool) -> Any:
        """Run the operation on local tensors, and return its results as DTensors."""
        loss = self._loss_of_sharded_classes() if self.sym.name == "cross_entropy" else None
        if loss is not None:
            return loss
        rule = self._rule()
        operands, results = self._placements(rule)
        if in_place and not list(self.layouts[0].placements) == operands[0] == results[0]:
            fall_back(f"the program calls {self.func.__name__}, which changes the placements of a DTensor in place")
        locals_ = [
            redistributed(self.tracer, x, layout, placements)
            for x, layout, placements in zip(self.locals, self.layouts, operands)
        ]
        for k, group in enumerate(self.mesh.groups):
            if any(not isinstance(p[k], Replicated) for p in results):
                locals_ = [
                    varying(self.tracer, x, group) if isinstance(p[k], Replicated) else x
                    for x, p in zip(locals_, operands)
                ]
        out = self._run_on(rule, locals_, results)
        if in_place:
            if needs_grad(self.locals[0]):
                set_requires_grad(self.tracer.handle_of(self.args[0]), True)
            return self.args[0]
        return self._wrapped(out, iter(results), results[0] if len(results) == 1 else None)

    def _loss_of_sharded_classes(self) -> Any:
        """Return the cross-entropy of logits whose classes are sharded, or None for other logits."""
        arguments = self._arguments()
        tensors = [name for name, x in arguments.items() if isinstance(x, torch.Tensor)]
        plan = plan_of_loss(arguments, dict(zip(tensors, self.layouts)))
        if plan is None:
            return None
        if plan.rows and not isinstance(arguments["target"], dtensor_class()):
            fall_back("the program calls cross_entropy on a DTensor whose rows are sharded, with targets that are not")
        operands = {
            name: redistributed(self.tracer, x, layout, plan.operands[name])
            for name, x, layout in zip(tensors, self.locals, self.layouts)
        }
        values = (operands["input"], operands["target"], operands.get("weight"), plan.ignore_index, plan.reduction)
        groups = self.mesh.groups[plan.classes], tuple([self.mesh.groups[k] for k in plan.rows])
        out = _call(self.tracer, sharded_cross_entropy, *values, *groups)
        return self._wrapped(out, iter(()), plan.result)

    def _arguments(self) -> dict[str, Any]:
        return {**dict(zip(self.sym.bind.names, self.args)), **self.kwargs}

    def _rule(self) -> Rule | None:
        sym = self.sym
        arguments = self._arguments()
        call = Call(sym.name, self.shapes, arguments, self._on_meta)
        found = RULES.get(sym.name)
        if found is not None:
            return found(call)
        if OpTags.ELEMENTWISE_OP in sym.tags:
            return pointwise(call, sym.name)
        return None

    def _on_meta(self, operands: Sequence[torch.Tensor]) -> Any:
        values = iter(operands)
        with self.tracer.recording(), DisableTorchFunction():
            return self.func(*filled(self.args, values), **filled(self.kwargs, values))

    def _placements(self, rule: Rule | None) -> tuple[list[list[Placement]], list[list[Placement]]]:
        """Return the placements of each operand and each result, dimension by dimension of the mesh."""
        count = 1 if rule is None else len(rule.results)
        operands: list[list[Placement]] = [[] for _ in self.layouts]
        results: list[list[Placement]] = [[] for _ in range(count)]
        shapes = [list(s) for s in self.shapes]
        for k, group in enumerate(self.mesh.groups):
            given = [layout.placements[k] for layout in self.layouts]
            needed: list[Placement]
            made: list[Placement]
            if rule is None or all(isinstance(p, Replicated) for p in given):
                needed, made = [Replicated()] * len(given), [Replicated()] * count
            else:
                plan = list(given), [tuple(s) for s in shapes], group.size
                needed, made = placements_for(rule, *plan, even=not self._is_uneven(k))  # type: ignore[arg-type]
                needed, made = self._in_blocks(given, needed, made)
            for i, p in enumerate(needed):
                operands[i].append(p)
                if isinstance(p, Sharded):
                    shapes[i][p.dim] //= group.size
            for i, p in enumerate(made):
                results[i].append(p)
        moved = [i for i, layout in enumerate(self.layouts) if list(layout.placements) != operands[i]]
        if rule is None and moved:
            with self.tracer.recording():
                reason = f"{self.sym.name} has no sharding rule: its DTensors are replicated first"
                current_log().add("replicated", reason, where=state.source)
        return operands, results

    def _in_blocks(
        self, given: list[Placement], needed: list[Placement], made: list[Placement]
    ) -> tuple[list[Placement], list[Placement]]:
        """Return placements as `fully_shard` and tensor parallelism make them together, if operands have such."""
        blocks = {p for p in given if isinstance(p, Sharded) and p.factor > 1}
        if not blocks:
            return needed, made
        (block,) = blocks if len(blocks) == 1 else (None,)
        if any(isinstance(p, Sharded) and own != block for p, own in zip(needed, given)):
            fall_back(f"the program calls {self.sym.name} on DTensors that ranks share in different blocks")
        return given, [p if block is None or p != Sharded(block.dim) else block for p in made]

    def _is_uneven(self, k: int) -> bool:
        """Check whether operands are shared unevenly in a dimension of the mesh, and note the size of theirs."""
        for layout in self.layouts:
            p = layout.placements[k]
            if layout.part is not None and isinstance(p, Sharded):
                self.uneven[k] = layout.shape[p.dim]
        return k in self.uneven

    def _run_on(self, rule: Rule | None, locals_: Sequence[Any], results: Sequence[Sequence[Placement]]) -> Any:
        if rule is not None and rule.reshapes:
            if self.uneven:
                fall_back(f"the program calls {self.sym.name} on a DTensor that the ranks share unevenly")
            new = list(self._on_meta([torch.empty(self.shapes[0], device="meta")]).shape)
            for group, p in zip(self.mesh.groups, results[0]):
                if isinstance(p, Sharded):
                    new[p.dim] //= group.size
            return locals_[0].reshape(new)
        values = iter(locals_)
        return self.call(self.tracer, self.func, filled(self.args, values), filled(self.kwargs, values))

    def _wrapped(self, out: Any, placements: Iterator[Sequence[Placement]], always: Any) -> Any:
        if isinstance(out, torch.Tensor):
            placed = next(placements) if always is None else always
            shape, part = list(out.shape), None
            for k, (group, p) in enumerate(zip(self.mesh.groups, placed)):
                if isinstance(p, Sharded):
                    shape[p.dim] = self.uneven.get(k, shape[p.dim] * group.size)
                    part = out.shape if self.uneven else None
            layout = Layout(placed, shape, contiguous_strides(shape), self.mesh, part)
            return dtensor(self.tracer, self.tracer.handle_of(out), layout)
        if isinstance(out, (tuple, list)):
            items = [self._wrapped(x, placements, always) for x in out]
            return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
        return fall_back(f"the program calls {self.sym.name} on a DTensor, whose result is no tensor")


# -- the end of the trace ---------------------------------------------------------------------------------------------
def finish_dtensors(tracer: Tracer) -> None:
    """Fall back if an operation reads the value of a DTensor as if it were a local tensor."""
    if not tracer.communication.groups:
        return
    for storage, reason in tracer.communication.read_only:
        if storage.written:
            fall_back(reason)
    for op in tracer.trace.bound_symbols:
        if op.sym not in _BORDER and any(getattr(p, "dtensor_layout", None) is not None for p in op.flat_args):
            fall_back(f"the program calls {op.sym.name} on a DTensor in a way that no trace can express")


def values_of_layouts(tracer: Tracer, source_of: Callable[[Any], Source | None]) -> list[tuple[Source, Any]]:
    """Return the layouts on which a program is guarded, with their sources."""
    key = Root(dtensors, "thunder.runtime.kernels.dtensors").attr("layout_key")
    found: list[tuple[Source, Any]] = []
    for lifted in tracer.inputs:
        source = source_of(lifted.tensor) if lifted.proxy.dtensor_layout is not None else None
        if source is not None:
            found.append((key.call((source,)), dtensors.layout_key(lifted.tensor)))
    return found
