# SPDX-License-Identifier: Apache-2.0
"""Every operation is declared completely: purpose, samples, a gradient or the mark that it has none, torch's names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.symbol import OpTags, Symbol
from thunder.tests.opinfos import all_opinfos

# torch's remarks on deprecated and experimental functions are not about declarations.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# Operations that make a program out of the others, exist only in the making of gradients, or convert DTensors, which
# need process groups (`tests/capture/dispatch/test_dtensors.py`): nothing to sample.
_FRAME = {OpTags.UNPACK_OP, OpTags.CHECK_OP, OpTags.GRAD_OP}
_FRAME_NAMES = {"python_return", "hand_over", "python_del", "comment", "missing_gradient", "dtensor_of", "local_of"}


def symbols() -> list[Any]:
    """Both languages, the frame of programs left out; only what thunder declares itself."""
    found = []
    for language, table in (("ltorch", ltorch.all_torchsymbols()), ("prims", prims.all_prims())):
        for sym in table.values():
            if sym.module is None or not _FRAME.isdisjoint(sym.tags) or sym.name in _FRAME_NAMES:
                continue
            found.append(pytest.param(sym, id=f"{language}.{sym.name}"))
    return found


SYMBOLS = symbols()


def test_there_are_operations() -> None:
    """The tables are where this file thinks they are."""
    assert len(SYMBOLS) > 100


@pytest.mark.parametrize("sym", SYMBOLS)
def test_it_says_what_it_is_for(sym: Symbol) -> None:
    """A docstring, which the page of operations shows."""
    assert (sym.__doc__ or "").strip(), f"{sym.name} has no docstring"


@pytest.mark.parametrize("sym", SYMBOLS)
def test_it_has_samples(sym: Symbol) -> None:
    """Without samples nothing tests it."""
    assert sym.sample_generator is not None, f"{sym.name} has no samples: @{sym.name}.samples"


@pytest.mark.parametrize("sym", SYMBOLS)
def test_it_has_a_gradient(sym: Symbol) -> None:
    """A rule, a decomposition whose parts have one, or the explicit mark that no gradient flows through it."""
    has_rule = sym.grad_rule is not None or sym.vjp_rule is not None
    if sym.is_prim:
        assert has_rule or not sym.differentiable, (
            f"the primitive {sym.name} has no gradient: give it a rule (@{sym.name}.vjp, @{sym.name}.grad) or the tag "
            "NON_DIFFERENTIABLE"
        )
    assert not (has_rule and not sym.differentiable), f"{sym.name} has a gradient rule and the mark that it has none"


@pytest.mark.parametrize("sym", [param for param in SYMBOLS if param.values[0].torch_names])
def test_torchs_names_resolve(sym: Symbol) -> None:
    """The function of torch that a primitive names exists."""
    for name in sym.torch_names:
        found: Any = torch
        for part in name.removeprefix("torch.").split("."):
            found = getattr(found, part, None)
        assert found is not None, f"{sym.name} names {name}, which torch {torch.__version__} does not have"


def test_torchs_functions_are_functions() -> None:
    """What the map of the torch language stands on can be called or is a property of tensors."""
    for fn, sym in ltorch.torch_function_map().items():
        assert callable(fn) or hasattr(fn, "__get__"), f"{sym.name} stands for {fn!r}"


def test_names_in_the_module() -> None:
    """Traces print `ltorch.name` and `prims.name`: these have to be the operations."""
    modules = {"thunder.torch": ltorch, "thunder.core.prims": prims}
    for param in SYMBOLS:
        sym = param.values[0]
        if sym.module in modules:
            assert getattr(modules[sym.module], sym.name, None) is sym, f"{sym.module}.{sym.name} is something else"


@pytest.mark.parametrize("info", [pytest.param(info, id=info.name) for info in all_opinfos()])
def test_it_exists_for_a_dtype(info: Any) -> None:
    """Some dtype must be taken by torch and by the meta function, or the suite would pass over it in silence."""
    dtypes = (torch.float32, torch.int64, torch.complex64, torch.bool, torch.uint8, torch.float64)
    assert any(info.exists_for("cpu", dtype) for dtype in dtypes), f"every sample of {info.name} is refused"
    plainest = info.first_sample()
    assert plainest is not None
