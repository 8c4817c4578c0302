# SPDX-License-Identifier: Apache-2.0
"""The operators that the conformance suite tests, derived from their declarations, in lists that users can extend.

    from thunder.tests.opinfos import OpInfo, SampleInput, make_tensor, shape_ops

    shape_ops.append(OpInfo(clang.unfold, sample_input_generator=…, error_input_generator=…, torch_reference=…))

Every operation of `thunder.torch` and every primitive that declares samples has an OpInfo here. It is available under
its name (`add_opinfo`, `prims_add_opinfo`) and in the list for its kind. Operations that are declared later in other
modules are also found.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.samples import SampleInput
from thunder.core.symbol import OpTags, Symbol
from thunder.extend import get_executor
from thunder.plugins import conformance_profile
from thunder.tests.make_tensor import TensorMaker, make_tensor
from thunder.tests.opinfo import DecorateInfo, Domain, OpInfo
from thunder.tests.running import torch_implementation

__all__ = [
    "DecorateInfo",
    "Domain",
    "OpInfo",
    "SampleInput",
    "all_opinfos",
    "elementwise_binary_generator",
    "elementwise_unary_generator",
    "make_tensor",
    "opinfo_of",
]

elementwise_unary_ops: list[OpInfo] = []
elementwise_binary_ops: list[OpInfo] = []
elementwise_ternary_ops: list[OpInfo] = []
shape_ops: list[OpInfo] = []
reduction_ops: list[OpInfo] = []
matmul_ops: list[OpInfo] = []
linalg_ops: list[OpInfo] = []
fft_ops: list[OpInfo] = []
nn_ops: list[OpInfo] = []
indexing_ops: list[OpInfo] = []
creation_ops: list[OpInfo] = []
random_ops: list[OpInfo] = []
other_ops: list[OpInfo] = []
# Operators of plugins, and operators without a separate list.
opinfos: list[OpInfo] = []

LISTS: dict[str, list[OpInfo]] = {
    name: value for name, value in list(globals().items()) if name.endswith("_ops") and isinstance(value, list)
}

# The list for a file of declarations, by a prefix of the file's name. Used if tags do not determine the list.
_LIST_OF_MODULE = (
    ("linalg", "linalg_ops"),
    ("fft", "fft_ops"),
    ("matmul", "matmul_ops"),
    ("creation", "creation_ops"),
    ("random", "random_ops"),
    ("dropout", "random_ops"),
    ("reduction", "reduction_ops"),
    ("shape", "shape_ops"),
    ("view", "shape_ops"),
    ("index", "indexing_ops"),
    ("gather", "indexing_ops"),
    ("scatter", "indexing_ops"),
    ("nn", "nn_ops"),
    ("activation", "nn_ops"),
    ("norm", "nn_ops"),
    ("loss", "nn_ops"),
    ("conv", "nn_ops"),
    ("pool", "nn_ops"),
    ("attention", "nn_ops"),
    ("embedding", "nn_ops"),
)
_LIST_OF_TAG = (
    (OpTags.RANDOM_OP, "random_ops"),
    (OpTags.MATMUL_OP, "matmul_ops"),
    (OpTags.REDUCTION_OP, "reduction_ops"),
    (OpTags.SHAPE_OP, "shape_ops"),
)

_derived: dict[Any, OpInfo] = {}


def _setitem(input: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    out = input.clone()
    out[key] = value
    return out


# Operations that are only statements in torch.
_REFERENCES: dict[str, Callable[..., Any]] = {"torch.setitem": _setitem}


# -- generators for contributors ---------------------------------------------------------------------------------------
def elementwise_unary_generator(
    op: OpInfo, device: Any, dtype: torch.dtype, requires_grad: bool = False, **kwargs: Any
) -> Iterator[SampleInput]:
    """Yield samples of a unary operator, with values in its domain: several shapes, 0-d, empty and strided tensors."""
    make = functools.partial(
        make_tensor, device=device, dtype=dtype, requires_grad=requires_grad, low=op.domain.low, high=op.domain.high
    )
    for shape in ((4, 4), (), (0,), (2, 0, 3), (8, 3, 5), (11,)):
        yield SampleInput(make(shape))
    yield SampleInput(make((5, 4), noncontiguous=True))
    yield SampleInput(make((5, 3)).mT)
    yield SampleInput(make((4, 1)).expand(4, 3))


def elementwise_binary_generator(
    op: OpInfo, device: Any, dtype: torch.dtype, requires_grad: bool = False, **kwargs: Any
) -> Iterator[SampleInput]:
    """Yield samples of a binary operator: equal shapes, then broadcasting, 0-d, empty and strided tensors."""
    make = functools.partial(
        make_tensor, device=device, dtype=dtype, requires_grad=requires_grad, low=op.domain.low, high=op.domain.high
    )
    shapes = (((4, 4), (4, 4)), ((4, 1), (4, 3)), ((), (2, 2)), ((2, 2), ()), ((0, 3), (1, 3)), ((2, 1, 3), (4, 1)))
    for a, b in shapes:
        yield SampleInput(make(a), make(b))
    yield SampleInput(make((5, 4), noncontiguous=True), make((5, 4)))
    yield SampleInput(make((5, 3)).mT, make((3, 5)))


def _elementwise_unary_torch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a unary function of torch so that it also accepts and returns Python numbers."""

    @functools.wraps(fn)
    def reference(x: Any) -> Any:
        return fn(x) if isinstance(x, torch.Tensor) else fn(torch.tensor(x)).item()

    return reference


# -- derivation --------------------------------------------------------------------------------------------------------
def _samples_of(sym: Symbol) -> Callable[..., Iterator[Any]]:
    def sample_input_generator(
        op: OpInfo, device: Any, dtype: Any, requires_grad: bool = False, **kwargs: Any
    ) -> Iterator[SampleInput]:
        assert sym.sample_generator is not None
        yield from sym.sample_generator(TensorMaker(device, dtype, requires_grad))

    return sample_input_generator


def _errors_of(sym: Symbol) -> Callable[..., Iterator[Any]]:
    def error_input_generator(op: OpInfo, device: Any, dtype: Any = torch.float32, **kwargs: Any) -> Iterator[Any]:
        assert sym.error_generator is not None
        yield from sym.error_generator(TensorMaker(device, dtype))

    return error_input_generator


def _torch_functions() -> dict[Symbol, Any]:
    """Return the first function of torch that each symbol implements."""
    found: dict[Symbol, Any] = {}
    for fn, sym in ltorch.torch_function_map().items():
        found.setdefault(sym, fn)
    return found


def _reference_of(sym: Symbol, functions: dict[Symbol, Any]) -> Callable[..., Any] | None:
    found = sym.reference or functions.get(sym) or _REFERENCES.get(sym.id)
    if found is None:
        return torch_implementation(sym)
    # A property of tensors is a descriptor, not a function.
    return found if callable(found) else found.__get__


def _module_of(sym: Symbol) -> str:
    return str(getattr(sym.meta, "__module__", "")).rpartition(".")[2]


def _list_of(sym: Symbol) -> str:
    for tag, name in _LIST_OF_TAG:
        if tag in sym.tags:
            return name
    if OpTags.ELEMENTWISE_OP in sym.tags:
        names = ("elementwise_unary_ops", "elementwise_binary_ops", "elementwise_ternary_ops")
        return names[max(1, min(sym.bind.required, 3)) - 1]
    module = _module_of(sym)
    return next((name for start, name in _LIST_OF_MODULE if module.startswith(start)), "other_ops")


def _derive(sym: Symbol, prefix: str, functions: dict[Symbol, Any]) -> None:
    info = OpInfo(
        sym,
        name=f"{prefix}{sym.name}",
        sample_input_generator=_samples_of(sym),
        error_input_generator=_errors_of(sym) if sym.error_generator is not None else None,
        torch_reference=_reference_of(sym, functions),
        family=f"{prefix}{_module_of(sym)}",
    )
    _derived[sym.id] = info
    LISTS[_list_of(sym)].append(info)


def _refresh() -> None:
    functions = _torch_functions()
    for table, prefix in ((ltorch.all_torchsymbols(), ""), (prims.all_prims(), "prims.")):
        for id, sym in table.items():
            if sym.sample_generator is not None and id not in _derived:
                _derive(sym, prefix, functions)


def all_opinfos() -> list[OpInfo]:
    """Return every OpInfo: all declared operations, and those appended to the lists. Each name occurs once."""
    _refresh()
    found: dict[str, OpInfo] = {}
    seen: set[OpInfo] = set()
    for info in (info for group in (*LISTS.values(), opinfos) for info in group):
        if info in seen:
            continue
        seen.add(info)
        plain, n = info.name, 1
        while info.name in found:  # an external operator may have the name of one of ours: `unfold` and `unfold.2`
            n += 1
            info.name = f"{plain}.{n}"
        found[info.name] = info
    return list(found.values())


def opinfo_of(name: str, *, executor: str | None = None) -> OpInfo:
    """Return the OpInfo of a name: an operation (`add`, `prims.add`), or an operator of an executor."""
    infos = all_opinfos()
    if executor is not None:
        profile = conformance_profile(get_executor(executor).name)
        infos = [*(profile.opinfos() if profile is not None and profile.opinfos is not None else ()), *infos]
    found = next((info for info in infos if info.name == name), None)
    if found is None:
        raise KeyError(f"there is no operator {name!r} with samples")
    return found


def __getattr__(name: str) -> OpInfo:
    """Compute attributes such as `add_opinfo` and `prims_add_opinfo`."""
    if name.endswith("_opinfo"):
        wanted = name.removesuffix("_opinfo")
        for candidate in (wanted, wanted.replace("prims_", "prims.", 1)):
            for info in all_opinfos():
                if info.name == candidate:
                    return info
        raise AttributeError(f"there is no operator {wanted!r} with samples, so {name} does not exist")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


importlib.import_module("thunder.executors.built_in")  # torch's implementations are references of primitives
_refresh()
