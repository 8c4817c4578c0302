# SPDX-License-Identifier: Apache-2.0
"""dtypes: one for each of torch's, known both ways, compared by identity, weak ones for Python's numbers."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch

from thunder.core import dtypes

# Types of storage or of quantization: no operation of torch computes in them.
WITHOUT_OPERATIONS = ("bits", "qint", "quint")


def torch_dtypes() -> list[torch.dtype]:
    """Every dtype of this torch that plain tensors compute in; `int1` … `uint7` have no operations either."""
    found = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    names = {str(d).removeprefix("torch.") for d in found}
    sub_byte = {f"{kind}{n}" for kind in ("int", "uint") for n in range(1, 8)}
    kept = sorted(n for n in names if not n.startswith(WITHOUT_OPERATIONS) and n not in sub_byte)
    return [getattr(torch, n) for n in kept]


TORCH = torch_dtypes()


@pytest.mark.parametrize("torch_dtype", TORCH, ids=str)
def test_each_of_torchs_has_one(torch_dtype: torch.dtype) -> None:
    """There and back again, the same object each time, with torch's facts about it."""
    ours = dtypes.to_dtype(torch_dtype)
    assert ours is dtypes.to_dtype(torch_dtype)
    assert dtypes.to_torch_dtype(ours) is torch_dtype
    assert dtypes.to_torch_dtype(torch_dtype) is torch_dtype
    assert str(torch_dtype) == f"torch.{ours}"
    assert ours.bytes == ours.itemsize == torch_dtype.itemsize
    assert (ours.is_floating_point, ours.is_complex) == (torch_dtype.is_floating_point, torch_dtype.is_complex)
    if torch_dtype is not torch.float4_e2m1fn_x2:  # torch's own answer for it is an error
        assert ours.is_signed is torch_dtype.is_signed


def test_every_one_of_ours_is_torchs() -> None:
    """No dtype exists here that torch has not, but those of newer versions, and none twice."""
    known = [d for d in dtypes.all_dtypes if hasattr(torch, d.name)]
    assert {dtypes.to_torch_dtype(d) for d in known} == set(TORCH)
    assert {d.name for d in dtypes.all_dtypes if d not in known} <= {"bcomplex32"}
    assert len({d.short for d in dtypes.all_dtypes}) == len(dtypes.all_dtypes)


@pytest.mark.parametrize("torch_dtype", TORCH, ids=str)
def test_equal_to_torchs_of_the_same_name_and_to_no_other(torch_dtype: torch.dtype) -> None:
    """Checkers compare with either kind, from either side."""
    ours = dtypes.to_dtype(torch_dtype)
    for other in TORCH:
        assert (ours == other) is (other is torch_dtype)
        assert (other == ours) is (other is torch_dtype)
        assert (ours != other) is (other is not torch_dtype)
    assert ours in (torch_dtype,)
    assert ours != str(torch_dtype)
    assert ours != torch_dtype.itemsize


@pytest.mark.parametrize("d", [*dtypes.all_dtypes, *dtypes.weak_dtypes.values()], ids=repr)
def test_interned_through_pickle_and_copy(d: dtypes.dtype) -> None:
    """A copy is the same object, weak ones included."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(d, protocol)) is d
    assert copy.copy(d) is d
    assert copy.deepcopy([d])[0] is d
    assert len({d, copy.deepcopy(d)}) == 1


@pytest.mark.parametrize(
    ("kind", "expected"), [(bool, "bool"), (int, "int64"), (float, "float64"), (complex, "complex128")]
)
def test_pythons_types(kind: type, expected: str) -> None:
    """`dtype=float` is torch's float64; a number itself stands for a weak type of its category."""
    assert dtypes.to_dtype(kind) is dtypes.to_dtype(getattr(torch, expected))
    weak = dtypes.to_dtype(kind(1))
    assert weak.is_weak
    assert dtypes.category(weak) == dtypes.category(kind)
    assert dtypes.dtype_to_numbertype(weak) is kind
    assert isinstance(dtypes.to_torch_dtype(weak), torch.dtype)
    strong = dtypes.to_dtype(dtypes.to_torch_dtype(weak))
    assert weak != strong
    assert not strong.is_weak


def test_aliases_are_torchs() -> None:
    """`dtypes.half` is float16, as `torch.half` is."""
    for alias in ("half", "float", "double", "short", "int", "long", "cfloat", "cdouble", "chalf", "bool"):
        assert dtypes.to_torch_dtype(getattr(dtypes, alias)) is getattr(torch, alias)


def test_what_has_a_dtype_and_what_is_none() -> None:
    """Tensors and the like answer with theirs; None stays None."""
    assert dtypes.to_dtype(torch.zeros(2, dtype=torch.bfloat16)) is dtypes.bfloat16
    assert dtypes.to_dtype(None) is None
    assert dtypes.to_torch_dtype(None) is None
    assert dtypes.to_dtype(dtypes.float32) is dtypes.float32


@pytest.mark.parametrize("wrong", ["float32", object(), [torch.float32], str])
def test_what_is_no_dtype(wrong: object) -> None:
    """The error says what would have been one."""
    with pytest.raises(ValueError, match=r"is not a dtype: use a torch\.dtype"):
        dtypes.to_dtype(wrong)
    with pytest.raises(ValueError, match="is not a dtype"):
        dtypes.to_torch_dtype(wrong)


def test_a_dtype_of_torch_that_nothing_computes_in() -> None:
    """It is named as what it is."""
    with pytest.raises(ValueError, match=r"torch\.quint8 .*without operations"):
        dtypes.to_dtype(torch.quint8)


def test_a_name_that_is_no_type() -> None:
    """The error lists what there is."""
    with pytest.raises(AttributeError, match=r"no type named 'float7'.*bfloat16"):
        dtypes.float7  # noqa: B018


def test_questions() -> None:
    """Each category answers its questions, for types and for Python's number types alike."""
    table = {
        dtypes.is_boolean_dtype: {"bool"},
        dtypes.is_exact_dtype: {"bool", "uint8", "int64", "uint64"},
        dtypes.is_nonboolean_integer_dtype: {"uint8", "int64", "uint64"},
        dtypes.is_float_dtype: {"float8_e5m2", "bfloat16", "float64"},
        dtypes.is_complex_dtype: {"complex64"},
        dtypes.is_inexact_dtype: {"float8_e5m2", "bfloat16", "float64", "complex64"},
        dtypes.is_unsigned_dtype: {"uint8", "uint64"},
        dtypes.is_low_precision_dtype: {"float8_e5m2", "bfloat16"},
    }
    named = ("bool", "uint8", "int64", "uint64", "float8_e5m2", "bfloat16", "float64", "complex64")
    for question, yes in table.items():
        found = {n for n in named if question(dtypes.to_dtype(getattr(torch, n)))}
        assert found == yes, question.__name__
    assert dtypes.is_boolean_dtype(bool)
    assert dtypes.is_exact_dtype(int)
    assert not dtypes.is_exact_dtype(float)
    assert dtypes.is_inexact_dtype(complex)


@pytest.mark.parametrize("torch_dtype", [d for d in TORCH if d.is_complex], ids=str)
def test_real_and_complex_partners(torch_dtype: torch.dtype) -> None:
    """The parts of a complex number have torch's type, and lead back to it."""
    ours = dtypes.to_dtype(torch_dtype)
    real = dtypes.corresponding_real_dtype(ours)
    assert dtypes.to_torch_dtype(real) is torch_dtype.to_real()
    assert dtypes.corresponding_complex_dtype(real) is ours
    assert dtypes.corresponding_real_dtype(real) is real
    assert dtypes.corresponding_complex_dtype(ours) is ours
    assert dtypes.to_torch_dtype(dtypes.corresponding_complex_dtype(dtypes.bfloat16)) is torch.bfloat16.to_complex()


def test_importing_dtypes_does_not_import_torch() -> None:
    """The facade's promise begins at the lowest floor."""
    code = "import sys, thunder.core.dtypes, thunder.core.devices; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
