# SPDX-License-Identifier: Apache-2.0
"""Every operation of the NumPy language gives what NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thunder.core.devices import Device
from thunder.core.dtypes import dtype, to_torch_dtype
from thunder.core.pytree import tree_map
from thunder.core.samples import SampleInput
from thunder.core.symbol import Symbol
from thunder.numpy.base import all_npsymbols
from thunder.tests.make_tensor import TensorMaker

SYMBOLS = [sym for sym in all_npsymbols().values() if sym.module == "thunder.numpy"]
DTYPES = [torch.float32, torch.int32, torch.bool, torch.complex64]


def in_numpy(sym: Symbol, sample: SampleInput) -> Any:
    """NumPy's result."""

    def convert(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.numpy()
        return np.dtype(x.name) if isinstance(x, dtype) else x

    args, kwargs = tree_map(convert, (list(sample.args), sample.kwargs))
    kwargs.pop("device", None)
    return getattr(np, sym.name)(*args, **kwargs)


def in_thunder(sym: Symbol, sample: SampleInput) -> Any:
    """Ours, of torch's tensors."""
    return sym(*sample.args, **sample.kwargs)


@pytest.mark.parametrize("sym", SYMBOLS, ids=lambda sym: sym.name)
def test_against_numpy(sym: Symbol) -> None:
    """The samples, on a float, an integer, a truth value and a complex type."""
    assert sym.sample_generator is not None and sym.__doc__, f"lnp.{sym.name} has no samples or no docstring"
    torch.manual_seed(0)
    compared = 0
    for kind in DTYPES:
        for sample in sym.sample_generator(TensorMaker("cpu", kind)):
            try:
                with np.errstate(all="ignore"):
                    expected = np.asarray(in_numpy(sym, sample))
                    actual = in_thunder(sym, sample)
            except (TypeError, ValueError, NotImplementedError, RuntimeError):
                continue  # one of the two libraries has no such operation on this dtype
            compared += 1
            assert str(actual.dtype).removeprefix("torch.") == str(expected.dtype), f"{sym.name} of {sample}"
            np.testing.assert_allclose(
                actual.numpy(), expected, rtol=2e-6, atol=1e-6, err_msg=f"{sym.name} of {sample}"
            )
    assert compared >= 2


@pytest.mark.parametrize("sym", [sym for sym in SYMBOLS if sym.error_generator], ids=lambda sym: sym.name)
def test_errors(sym: Symbol) -> None:
    """Wrong arguments are named."""
    assert sym.error_generator is not None
    for sample, kind, pattern in sym.error_generator(TensorMaker("cpu", torch.float32)):
        with pytest.raises(kind, match=pattern):
            in_thunder(sym, sample)


def test_devices_and_dtypes_are_said_as_anywhere() -> None:
    """Thunder's own, torch's and names."""
    import thunder.numpy as lnp

    for device in ("cpu", torch.device("cpu"), Device("cpu")):
        made = lnp.full(3, 1, torch.int16, device=device)
        assert (made.dtype, made.device) == (torch.int16, torch.device("cpu"))
    assert lnp.zeros_like(made).dtype is to_torch_dtype(torch.int16)
