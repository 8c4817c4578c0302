# SPDX-License-Identifier: Apache-2.0
"""The list of what saved programs may call is that of the registries, and contains nothing that reads or runs."""

from __future__ import annotations

import torch

import saved_operators
from thunder.saved.operators import OPERATORS, SYMBOLS

NEVER = ("torch.load", "torch.save", "torch.from_file", "torch.ops.load_library", "torch.compile", "torch.hub.load",
         "torch.set_default_device", "torch.use_deterministic_algorithms", "torch.jit.load", "Tensor.apply_",
         "Tensor.register_hook", "Tensor.set_", "Tensor.share_memory_", "Tensor.numpy", "Tensor.backward",
         "operator.attrgetter", "operator.methodcaller", "torch._from_blob", "torch.classes.load_library",
         "torch.utils.data.DataLoader", "torch.multiprocessing.spawn")  # fmt: skip


def test_list_is_that_of_the_registries() -> None:
    """The committed list has all operators of this version of torch. It may have those of other versions, too."""
    assert saved_operators.operators() <= OPERATORS
    assert saved_operators.symbols() <= SYMBOLS
    if torch.__version__.startswith("2.13"):  # the version from which it was made
        assert saved_operators.operators() | saved_operators.OF_OTHER_VERSIONS == OPERATORS


def test_what_is_never_in_the_list() -> None:
    """Functions that read files, run code or change settings."""
    assert OPERATORS.isdisjoint(NEVER)
    dunder = [name for name in OPERATORS if name.rpartition(".")[2].startswith("__")]
    assert not {n for n in dunder if "reduce" in n or "class" in n or "dict" in n or "setstate" in n}, dunder
