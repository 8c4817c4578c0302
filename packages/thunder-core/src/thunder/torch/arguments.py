# SPDX-License-Identifier: Apache-2.0
"""Argument spellings that torch's methods accept in addition to the plain ones: unpacked sizes and other keyword names.

`a.permute(1, 0)`, `a.permute((1, 0))` and `torch.permute(a, dims=(1, 0))` all become `ltorch.permute(a, (1, 0))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.binder import Binder
from thunder.core.proxies import NumberProxy
from thunder.core.symbol import Symbol

_SINGLE = (int, NumberProxy)


class FlexibleBinder(Binder):
    """A binder that also accepts the items of one parameter unpacked, and other keyword names."""

    def __init__(self, sym: Symbol, packed: str | None, least: int, names: dict[str, str]):
        super().__init__(sym.meta, sym.name, explicit=sym.bind.explicit)
        self.packed = None if packed is None else self.names.index(packed)
        self.least = least  # the minimal number of unpacked items
        self.other_names = names

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return super().__call__(*self._plain(args, kwargs))

    def accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return super().accepts(*self._plain(args, kwargs))

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in their plain spelling."""
        if kwargs and self.other_names:
            kwargs = {self.other_names.get(k, k): v for k, v in kwargs.items()}
        at = self.packed
        if at is not None:
            single = len(args) - at
            if single > 1 or (single == self.least == 1 and isinstance(args[at], _SINGLE)):
                args = (*args[:at], tuple(args[at:]))
        return args, kwargs


def flexible(*, one_by_one: str | None = None, several: str | None = None, **names: str) -> Callable[[Symbol], Symbol]:
    """Accept the items of the parameter `one_by_one` unpacked too. Apply this decorator above `@torchsymbol`.

    `several` is the same for a parameter that may also be a single item, which is not packed. `names` maps other
    keywords to parameter names, e.g. `split_size="split_size_or_sections"`.
    """

    def declare(sym: Symbol) -> Symbol:
        sym.bind = FlexibleBinder(sym, one_by_one or several, 2 if several else 1, names)
        return sym

    return declare
