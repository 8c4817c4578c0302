# SPDX-License-Identifier: Apache-2.0
"""`thunder.export`: a model as one file, which `thunder.load` runs with torch alone, without the source of the model.

The model is compiled for inference by torch's own kernels. Its prologue only checks the arguments: what else the
program read is constant from then on. Tensors that the program reads from the model are stored as parameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from thunder.capture.guards import guards
from thunder.capture.numbers.marks import mark_dynamic
from thunder.capture.session import parameter_names
from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.proxies import Proxy
from thunder.core.pytree import tree_leaves
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.frontend.options import Options
from thunder.frontend.saving import describe_program
from thunder.frontend.specialization import Specialization
from thunder.runtime.tensor_check import TensorCheck
from thunder.saved.constants import Encoder
from thunder.saved.loading import EXPORT_FORMAT, signature_of, versions
from thunder.saved.references import Unsavable
from thunder.saved.tensor_checks import SavedTensorCheck

__all__ = ["ExportError", "Exported", "export", "save"]

DynamicShapes = Mapping[str, Any] | Sequence[Any] | None


class ExportError(ThunderError):
    """A model that no file can hold. The message names what it is."""


def export(model: Any, /, *args: Any, dynamic_shapes: DynamicShapes = None, **kwargs: Any) -> Exported:
    """Compile a model or a function for inference, as a file that runs without its source.

        thunder.export(model, x).save("model.thunder")
        loaded = thunder.load("model.thunder")

    The arguments are an example of the calls. `dynamic_shapes` names the dimensions whose sizes may change: for each
    argument, by position or by name, a list of dimensions, or a dict with dimensions as keys. `Exported.add` compiles
    the model for further arguments. A model in training mode is exported as it is; call `model.eval()` before.
    """
    exported = Exported(model)
    exported.add(*args, dynamic_shapes=dynamic_shapes, **kwargs)
    return exported


def save(exported: Any, path: str | os.PathLike[str]) -> None:
    """Write an exported model, or the programs of a jitted function's inference calls, to a file for `thunder.load`."""
    if not isinstance(exported, Exported):
        raise TypeError(f"thunder.save expects what thunder.export returns, not {type(exported).__name__}")
    exported.save(path)


class Exported:
    """A model that is compiled for one or more kinds of arguments."""

    def __init__(self, model: Any):
        self._model = getattr(jitted_of(model), "_fn", model)
        self.name = getattr(self._model, "__qualname__", type(self._model).__name__)
        self._entries: list[dict[str, Any]] = []
        self._encode = Encoder(None, {}, libraries_only=True)
        self._parameters: dict[int, str] = {}  # by the ids of the tensors
        self._tensors: dict[str, torch.Tensor] = {}
        self._names = {}
        if isinstance(self._model, torch.nn.Module):
            named = (*self._model.named_parameters(), *self._model.named_buffers())
            self._names = {id(x): name for name, x in named}

    def add(self, *args: Any, dynamic_shapes: DynamicShapes = None, **kwargs: Any) -> Exported:
        """Compile the model for further arguments."""
        args, kwargs = _marked(self._model, args, kwargs, dynamic_shapes)
        options = Options(executors=["torch"], sharp_edges="error", cuda_graphs="never", save=False)
        jitted: JitFunction[..., Any] = JitFunction(self._model, options)
        try:
            with torch.no_grad():
                jitted(*args, **kwargs)
                specialization: Any = jitted._stats.last
                self._entries.append(self._entry(specialization, args, kwargs))
        except Unsavable as error:
            raise ExportError(f"{self.name} cannot be exported: it refers to {error}") from None
        return self

    def save(self, path: str | os.PathLike[str], *, weights: str | os.PathLike[str] | None = None) -> None:
        """Write the programs and the parameters to a file, or the parameters to the file `weights` beside it."""
        from safetensors.torch import save_file  # imported here, because only files need it

        path = os.fspath(path)
        programs = json.dumps(
            {
                "name": self.name,
                "versions": versions(),
                "entries": self._entries,
                "parameters": {name: [str(x.device), list(x.stride())] for name, x in self._tensors.items()},
                "weights": None if weights is None else os.path.basename(os.fspath(weights)),
            }
        )
        metadata = {"format": EXPORT_FORMAT, "programs": programs, "signature": signature_of(programs)}
        parameters = _without_shared_memory(self._tensors)
        if weights is not None:
            beside = os.path.join(os.path.dirname(path), os.path.basename(os.fspath(weights)))
            save_file(parameters, beside)
            parameters = {}
        save_file({**parameters, **self._encode.tensors}, path, metadata=metadata)

    def _entry(self, specialization: Specialization, args: Any, kwargs: Any) -> dict[str, Any]:
        if specialization.prologue is None or specialization.path is not None:
            raise Unsavable("values of tensors that decide what it computes, or that no guard can check")
        accepted = specialization.prologue(*args, **kwargs)
        inputs, targets = (accepted, ()) if specialization.epilogue is None else accepted
        if targets:
            raise Unsavable("objects that it changes: return values instead of storing them")
        given = {id(x) for x in tree_leaves((args, kwargs))}
        prologue, positions = _prologue_of_arguments(specialization.prologue_traces[-1], args, kwargs, given)
        places: list[Any] = []
        for x, position in zip(inputs, positions):
            places.append(self._parameter(x) if position is None else position)
        programs = {
            "prologue": describe_program(prologue, self._encode, "prologue"),
            "computation": describe_program(specialization.traces[-1], self._encode),
        }
        if specialization.epilogue_traces:
            programs["epilogue"] = describe_program(specialization.epilogue_traces[-1], self._encode)
        return {"programs": programs, "inputs": places, "description": _described(args, kwargs)}

    def _parameter(self, x: Any) -> str:
        if not isinstance(x, torch.Tensor):
            raise Unsavable(f"an input of the class {type(x).__name__} that is no argument")
        name = self._parameters.get(id(x))
        if name is None:
            name = self._parameters[id(x)] = self._names.get(id(x), f"constant.{len(self._parameters)}")
            self._tensors[name] = x
        return name


def _without_shared_memory(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous tensors, and copies of those that share memory with an earlier one."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, x in tensors.items():
        x = x.detach().contiguous()
        shares = x.untyped_storage().data_ptr() in seen
        seen.add(x.untyped_storage().data_ptr())
        found[name] = x.clone() if shares else x
    return found


def _prologue_of_arguments(trace: Trace, args: Any, kwargs: Any, given: set[int]) -> tuple[Trace, list[int | None]]:
    """Return the part of a prologue that reads the arguments, and each input's index among its results, or None."""
    from_arguments = {p.name for p in trace.args}
    operations: list[BoundSymbol] = []
    result: Any = None
    for op in trace.bound_symbols:
        if op.sym is prims.python_return:
            result = op.args[0]
        elif op.sym is guards.check_tensors:
            check, tensors = op.args
            kept = [i for i, p in enumerate(tensors) if p.name in from_arguments]
            if kept:
                operations.append(op.replace(args=(_part_of(check, kept), tuple(tensors[i] for i in kept))))
        elif op.sym is guards.guard:
            names = _names_in(op.args[1])
            if names and names <= from_arguments:
                operations.append(op)
        elif op.sym in (guards.fetch, guards.unpack, guards.flatten_call, guards.flatten_call_in_order, guards.derive):
            if _names_in(op.args) <= from_arguments and _names_in(op.args):
                operations.append(op)
                from_arguments |= {p.name for p in op.flat_outs}
        elif _names_in(op.args) <= from_arguments and _names_in(op.args):
            operations.append(op)
    values = result[0] if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], tuple) else result
    kept_values = [p for p in values if p.name in from_arguments]
    index = {p.name: i for i, p in enumerate(kept_values)}
    with construct(trace, "Export") as out:
        out.bound_symbols[:] = operations
        out.bound_symbols.append(BoundSymbol(prims.python_return, (tuple(kept_values),), {}, None))
        out.output = tuple(kept_values)
    return out, [index.get(p.name) for p in values]


def _names_in(x: Any) -> set[str]:
    """Return the names of the values in the operands of an operation of a prologue."""
    if isinstance(x, Proxy):
        return {x.name}
    if isinstance(x, guards.Inline):
        return _names_in(x.parent)
    if isinstance(x, (tuple, list)):
        return {name for i in x for name in _names_in(i)}
    return {"the model"} if isinstance(x, torch.nn.Module) else set()


def _part_of(check: TensorCheck, kept: Sequence[int]) -> Any:
    """Return the check of some of the tensors. Dispatch keys are left out: they differ between versions of torch."""

    def some(values: Any) -> list[Any]:
        return [values[i] for i in kept]

    first: dict[int, int] = {}
    same = None
    if check.same is not None:
        same = tuple(first.setdefault(j, n) for n, j in enumerate(some(check.same)))
        same = same if len(set(same)) < len(same) else None
    return SavedTensorCheck(some(check.expected), some(check.names), some(check.dims), [None] * len(kept), same)


def _marked(model: Any, args: Any, kwargs: Any, shapes: DynamicShapes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with marks on the dimensions whose sizes may change. The caller's tensors have none."""
    if not shapes:
        return args, kwargs
    names = [*parameter_names(model), *(f"argument {i}" for i in range(len(args)))]
    by_name = dict(shapes) if isinstance(shapes, Mapping) else {names[i]: x for i, x in enumerate(shapes)}
    unknown = by_name.keys() - {*names[: len(args)], *kwargs}
    if unknown:
        raise ExportError(f"dynamic_shapes names {', '.join(sorted(unknown))}, which is no argument of the call")

    def marked(name: str, x: Any) -> Any:
        dims = by_name.get(name)
        if not dims:
            return x
        if not isinstance(x, torch.Tensor):
            raise ExportError(f"dynamic_shapes contains {name}, which is a {type(x).__name__} and no tensor")
        copy = x.detach().view_as(x)
        for dim in dims:
            mark_dynamic(copy, int(dim))
        return copy

    return tuple([marked(n, x) for n, x in zip(names, args)]), {n: marked(n, x) for n, x in kwargs.items()}


def _described(args: Any, kwargs: Any) -> str:
    """Describe the arguments of a program for messages."""
    found = [
        f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else f"{x!r:.40}"
        for x in tree_leaves((args, kwargs))
    ]
    return f"({', '.join(found)})"
