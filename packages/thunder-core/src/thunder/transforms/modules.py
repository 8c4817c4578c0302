# SPDX-License-Identifier: Apache-2.0
"""How transforms change modules: by a copy that shares tensors, and whose submodules can become *variants*.

A *variant* is a subclass that a transform creates from a user's class and a mixin. For example, `Linear` becomes
`Int8Linear`. Its instances remain instances of the user's class, run its `forward`, and can be pickled. State is saved
and loaded in the layout of the original class (`state_to_original`, `state_from_original`).

Contract of `transformed_module`: the user's module is unchanged. The copy shares all tensors that no transform
replaced. Tied tensors stay tied.
"""

from __future__ import annotations

import copy
import fnmatch
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from thunder.core.errors import ThunderError
from thunder.transforms.base import Transform

__all__ = ["Variant", "become", "chosen_modules", "replaced_tensors", "saved_tensors", "transformed_module"]


def transformed_module(module: torch.nn.Module, transforms: Sequence[Transform]) -> torch.nn.Module:
    """Return a copy of `module` that shares its tensors, after all `transforms` have changed the copy."""
    tensors = [*module.parameters(), *module.buffers()]
    try:
        out = copy.deepcopy(module, {id(t): t for t in tensors})
    except Exception as error:
        raise ThunderError(
            f"{transforms[0].name} changes a copy of the module, but this {type(module).__name__} cannot be copied: "
            f"{type(error).__name__}: {error}"
        ) from error
    for transform in transforms:
        out = transform.transform_module(out) or out
        if not isinstance(out, torch.nn.Module):
            raise TypeError(f"{transform.name}.transform_module returned {out!r:.80}, which is not a module")
    return out


def chosen_modules(
    module: torch.nn.Module,
    can: Callable[[torch.nn.Module], bool],
    names: Iterable[str] | None,
    *,
    option: str,
    what: str,
    skip: Iterable[str] = (),
) -> list[tuple[str, torch.nn.Module]]:
    """Return the submodules that a transform can change, selected by name or pattern.

    `can` is the predicate of such submodules. A pattern is e.g. `*.mlp.*`, or the last part of a name. An unknown name
    is an error that lists the candidates. A module without candidates is also an error.
    """
    found = [(name, m) for name, m in module.named_modules() if can(m)]
    if not found:
        raise ValueError(f"{option}: there is no {what} in this {type(module).__name__}")

    def fits(name: str, pattern: str) -> bool:
        return fnmatch.fnmatchcase(name, pattern) or name.rpartition(".")[2] == pattern

    skipped = list(skip)
    for pattern in (*(names or ()), *skipped):
        if not any(fits(name, pattern) for name, _ in found):
            have = ", ".join(name or "the module itself" for name, _ in found[:20])
            more = f" and {len(found) - 20} more" if len(found) > 20 else ""
            raise ValueError(f"{option}: no {what} is called {pattern!r}. The available names are: {have}{more}")
    chosen = [(n, m) for n, m in found if names is None or any(fits(n, p) for p in names)]
    return [(n, m) for n, m in chosen if not any(fits(n, p) for p in skipped)]


def replaced_tensors(module: torch.nn.Module, replace: dict[int, torch.Tensor]) -> None:
    """Replace parameters and buffers in all places that refer to them. `replace` maps the id of a tensor to another."""
    for m in module.modules():
        for table in (m._parameters, m._buffers):
            for name, tensor in table.items():
                if tensor is not None and id(tensor) in replace:
                    table[name] = replace[id(tensor)]  # type: ignore[assignment]


def saved_tensors(module: Any) -> dict[str, torch.Tensor]:
    """Return a submodule's own parameters and persistent buffers, by name."""
    found = {name: p for name, p in module._parameters.items() if p is not None}
    skipped = module._non_persistent_buffers_set
    found.update({name: b for name, b in module._buffers.items() if b is not None and name not in skipped})
    return found


class Variant:
    """Mixin of the classes that `become` creates. It defines how they are saved, loaded and pickled.

    `state_to_original` converts a submodule's own state to that of the original class. `state_from_original` is the
    reverse.
    """

    _original: type

    def state_to_original(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the original class would save, by name."""
        raise NotImplementedError

    def state_from_original(self, state: dict[str, torch.Tensor]) -> None:
        """Load tensors that the original class has saved. Optional tensors may be missing."""
        raise NotImplementedError

    def original_names(self) -> tuple[str, ...]:
        """Return the names that the original class uses for saved tensors."""
        return tuple(self.state_to_original())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, tensor in self.state_to_original().items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], unexpected: list[str],
        errors: list[str],
    ) -> None:  # fmt: skip
        names = self.original_names()
        found = {name: state_dict[prefix + name] for name in names if prefix + name in state_dict}
        if strict:
            missing += [prefix + name for name in names if name not in found]
            own = [key for key in state_dict if key.startswith(prefix) and "." not in key[len(prefix) :]]
            unexpected += [key for key in own if key[len(prefix) :] not in names]
        try:
            with torch.no_grad():
                self.state_from_original(found)
        except (RuntimeError, ValueError) as error:
            errors.append(f"while loading {prefix.rstrip('.') or 'the module'}: {error}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (_remake, (_described(type(self)),), self.__dict__)


def _described(cls: type) -> Any:
    """Return a description of a class that can be pickled: the class, or its mixin and the description of its base."""
    if not issubclass(cls, Variant):
        return cls
    mixin = next(base for base in cls.__bases__ if issubclass(base, Variant))
    return mixin, _described(cls._original)


def _class_of(description: Any) -> type:
    if isinstance(description, type):
        return description
    mixin, original = description
    return _variant(mixin, _class_of(original))


def _remake(description: Any) -> Any:
    cls: Any = _class_of(description)
    return cls.__new__(cls)


# The variants of each class. The last references are weak, because a variant refers to its original class.
_variants: weakref.WeakKeyDictionary[type, dict[type, weakref.ref[type]]] = weakref.WeakKeyDictionary()


def _variant(mixin: type, original: type) -> type:
    known = _variants.setdefault(original, {})
    found = known[mixin]() if mixin in known else None
    if found is None:
        found = _make_variant(mixin, original)
        known[mixin] = weakref.ref(found)
    return found


def _make_variant(mixin: type, original: type) -> type:
    prefix = getattr(mixin, "prefix", mixin.__name__)
    namespace = {"_original": original, "__module__": mixin.__module__, "__doc__": mixin.__doc__}
    return type(prefix + original.__name__, (mixin, original), namespace)


def become(module: torch.nn.Module, mixin: type) -> Any:
    """Change the class of `module` to a subclass with `mixin`, and return the module."""
    kind: Any = type(module)
    if getattr(kind, "__slots__", None):
        raise ThunderError(f"{kind.__name__} has __slots__, so it cannot have a variant")
    module.__class__ = _variant(mixin, kind)
    return module
