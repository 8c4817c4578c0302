# SPDX-License-Identifier: Apache-2.0
"""Spellings of arguments that torch's methods take besides the plain ones: sizes one by one, other keyword names.

`a.permute(1, 0)`, `a.permute((1, 0))` and `torch.permute(a, dims=(1, 0))` are one call, `ltorch.permute(a, (1, 0))`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.binder import Binder
from thunder.core.proxies import NumberProxy
from thunder.core.symbol import Symbol

_SINGLE = (int, NumberProxy)


class FlexibleBinder(Binder):
    """Takes the items of one parameter one by one as well, and other names for keywords."""

    def __init__(self, sym: Symbol, packed: str | None, least: int, names: dict[str, str]):
        super().__init__(sym.meta, sym.name, explicit=sym.bind.explicit)
        self.packed = None if packed is None else self.names.index(packed)
        self.least = least  # how many single items are packed
        self.other_names = names

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return super().__call__(*self._plain(args, kwargs))

    def accepts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return super().accepts(*self._plain(args, kwargs))

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call in its plain spelling."""
        if kwargs and self.other_names:
            kwargs = {self.other_names.get(k, k): v for k, v in kwargs.items()}
        at = self.packed
        if at is not None:
            single = len(args) - at
            if single > 1 or (single == self.least == 1 and isinstance(args[at], _SINGLE)):
                args = (*args[:at], tuple(args[at:]))
        return args, kwargs


def flexible(*, one_by_one: str | None = None, several: str | None = None, **names: str) -> Callable[[Symbol], Symbol]:
    """Let the arguments that `one_by_one` names be given one by one, too; stands above `@torchsymbol`.

    `several` is the same for a parameter that may also be one item: that stays as it is. `names` says which other
    keywords mean which parameter: `split_size="split_size_or_sections"`.
    """

    def declare(sym: Symbol) -> Symbol:
        sym.bind = FlexibleBinder(sym, one_by_one or several, 2 if several else 1, names)
        return sym

    return declare
