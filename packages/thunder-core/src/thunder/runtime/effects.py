# SPDX-License-Identifier: Apache-2.0
"""The functions that epilogues call to assign to objects of user code, and to construct the objects of a result."""

from __future__ import annotations

import collections
import types
from typing import Any

import torch

from thunder.runtime.arrays import array_of, new_array, number_of
from thunder.runtime.autograd.leaf_gradients import with_freed_graph
from thunder.runtime.containers import base_of, dict_type
from thunder.runtime.torch_private import increment_versions

__all__ = ["ASSIGNMENTS", "CONSTRUCTORS", "count_write", "fill_object"]


def set_item(target: Any, key: Any, value: Any) -> None:
    """Assign an item, without running a subclass's code."""
    base = dict_type(target) if isinstance(target, dict) else base_of(target)
    base.__setitem__(target, key, value)


def delete_item(target: Any, key: Any) -> None:
    """Delete an item if it exists."""
    base = dict_type(target)
    if base.__contains__(target, key):
        base.__delitem__(target, key)


def extend(target: Any, items: Any) -> None:
    """Append items to a list or deque."""
    base_of(target).extend(target, items)


def replace_items(target: Any, items: Any) -> None:
    """Replace the items of a list, deque, set or dict."""
    base = base_of(target)
    base.clear(target)
    if isinstance(target, dict):
        for key, value in items.items():
            base.__setitem__(target, key, value)
        return
    (base.update if base is set else base.extend)(target, items)


def set_attribute(target: Any, name: str, value: Any) -> None:
    """Set a slot, or an attribute of a class."""
    (type if isinstance(target, type) else object).__setattr__(target, name, value)


def delete_attribute(target: Any, name: str) -> None:
    """Delete the value of a slot, or an attribute of a class."""
    (type if isinstance(target, type) else object).__delattr__(target, name)


def set_cell(cell: Any, value: Any) -> None:
    """Assign the variable of a closure."""
    cell.cell_contents = value


def set_variable(variable: Any, value: Any) -> None:
    """Set a context variable."""
    variable.set(value)


def fill_object(obj: Any, values: dict[str, Any], slots: dict[str, Any], items: Any) -> None:
    """Set the attributes and slots of a new object and, if it is a container, its items."""
    if values:
        object.__getattribute__(obj, "__dict__").update(values)
    for name, value in slots.items():
        object.__setattr__(obj, name, value)
    if items is not None:
        base = base_of(obj)
        for item in items:
            if base in (dict, collections.OrderedDict):
                base.__setitem__(obj, *item)
            else:
                (base.add if base is set else base.append)(obj, item)


def new_plain(cls: Any, value: Any) -> Any:
    """Create an instance of a subclass of int, float, complex, str or bytes."""
    return type(value).__new__(cls, value)


def new_object(cls: Any) -> Any:
    return cls.__new__(cls) if cls.__new__ in (object.__new__, dict.__new__) else object.__new__(cls)


def new_container(cls: type) -> Any:
    bases: tuple[Any, ...] = (collections.OrderedDict, dict, list, set)
    for base in bases:
        if issubclass(cls, base):
            return base.__new__(cls)
    return object.__new__(cls)


def new_defaultdict(cls: type, default_factory: Any) -> Any:
    made = collections.defaultdict.__new__(cls)
    made.default_factory = default_factory
    return made


def new_deque(cls: type, maxlen: int | None) -> Any:
    made = collections.deque.__new__(cls)
    collections.deque.__init__(made, (), maxlen)
    return made


def new_mask(cls: Any, variant: Any, rows: int, columns: int) -> Any:
    return _checked(cls, torch.Tensor)(variant, rows, columns)


def _checked(cls: Any, base: type) -> Any:
    """Return a class that inherits from `base`: a program cannot call just any class that it names."""
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise TypeError(f"{cls!r} is no subclass of {base.__name__}")
    return cls


def as_subclass(cls: type, tensor: torch.Tensor) -> Any:
    """Return a tensor with a class that inherits from `torch.Tensor`, as an alias."""
    if type(tensor) is cls:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(cls)  # type: ignore[type-var]


def new_tuple(cls: type, items: Any) -> Any:
    if cls is torch.Size:
        return cls(items)
    _checked(cls, tuple)
    return tuple.__new__(cls, items) if hasattr(cls, "_fields") or not hasattr(cls, "n_fields") else cls(items)


def new_slice(cls: type, start: Any, stop: Any, step: Any) -> Any:
    return _checked(cls, slice)(start, stop, step)


def count_write(tensor: Any) -> None:
    """Let autograd see a write to a DTensor, whose local tensor was written."""
    increment_versions([tensor])


ASSIGNMENTS = (
    set_item,
    delete_item,
    extend,
    replace_items,
    set_attribute,
    delete_attribute,
    set_cell,
    set_variable,
)


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
              torch._ops.OpOverload, torch._ops.OpOverloadPacket)  # fmt: skip


def _is_getter(function: Any) -> bool:
    """Check whether a function reads a property of tensors, e.g. `torch.Tensor.T.__get__`."""
    of = getattr(function, "__self__", None)
    return (
        type(function) is types.MethodWrapperType
        and function.__name__ == "__get__"
        and type(of) is types.GetSetDescriptorType
        and issubclass(torch.Tensor, of.__objclass__)
    )


def repeat_view(
    function: Any, base: Any, args: tuple[Any, ...], kwargs: dict[str, Any], part: int | None = None
) -> Any:
    """Return a view of a result, one `part` of it if the function returns several views (e.g. `unbind`).

    Unlike a view that the program returns itself, user code may write to it.
    """
    if not isinstance(function, _FUNCTIONS) and not _is_getter(function):  # e.g. a class
        raise TypeError(f"{function!r} is no operation on tensors")
    found = function(base, *args, **kwargs)
    return found if part is None else found[part]


CONSTRUCTORS = (
    with_freed_graph,
    as_subclass,
    repeat_view,
    new_object,
    new_container,
    new_defaultdict,
    new_deque,
    new_mask,
    new_plain,
    new_tuple,
    new_slice,
    array_of,
    number_of,
    new_array,
)
