# SPDX-License-Identifier: Apache-2.0
"""Wrong calls of torch's functions raise what torch raises: each function with each of its arguments made wrong."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from outcomes import message_and_notes

import thunder
from surface.derived import samples_of
from surface.names import Entry, entries
from surface.reasons import reason_of
from thunder.capture.dispatch.torch_errors import Answer, torchs_answer
from thunder.core.errors import ThunderError
from thunder.core.symbol import OpTags
from thunder.tests import running
from thunder.tests.opinfos import SampleInput

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

# torch itself writes where it must not when some of these are called wrongly.
_CRASH = ("rnn", "lstm", "gru", "native_", "lobpcg", "lu_", "mkldnn")


def wrong_calls(sample: SampleInput) -> Iterator[tuple[str, Any]]:
    """The sample with one thing wrong at a time; what it is, and the call."""
    args, kwargs = sample.args, sample.kwargs
    yield "no arguments", ((), {})
    yield "too many", ((*args, *([object()] * 9)), kwargs)
    yield "an unknown keyword", (args, {**kwargs, "no_such_argument": 1})
    if "dim" in kwargs:
        yield "a dimension that is not there", (args, {**kwargs, "dim": 100})
    for i, x in enumerate(args):
        others: tuple[Any, ...] = ()
        if isinstance(x, torch.Tensor):
            shapes = [torch.ones(shape).to(x.dtype) for shape in ((7, 11, 13), (17,), ())]
            others = ("text", None, *shapes, x.to(torch.complex64), x.to(torch.bool), x.to(torch.int32))
        elif isinstance(x, int) and not isinstance(x, bool):
            others = (100, -100, "text", None, 2.5)
        elif isinstance(x, (tuple, list)) and x and all(isinstance(n, int) for n in x):
            others = (type(x)([100] * len(x)), type(x)([-100] * len(x)), type(x)([*x, *x, *x]))
        for other in others:
            what = f"{tuple(other.shape)} {other.dtype}" if isinstance(other, torch.Tensor) else repr(other)
            yield f"argument {i} is {what}", ((*args[:i], other, *args[i + 1 :]), kwargs)


def raised(call: Any, args: Any, kwargs: Any) -> Exception | None:
    given = running.copied(SampleInput(*args, **kwargs))
    try:
        call(given.args, given.kwargs)
    except Exception as error:
        return error
    return None


ALL = [e for e in entries() if not (e.is_property or e.is_in_place or e.namespace == "torch.Tensor")]
SOME = [e for e in ALL if reason_of(e.path) is None and not any(part in e.path for part in _CRASH)][5::14]


@pytest.mark.parametrize("entry", SOME, ids=lambda entry: entry.path)
def test_types_of_exceptions(entry: Entry) -> None:
    """Of one function in fourteen. What torch's own parser of arguments refuses never gets to thunder."""

    def call(args: Any, kwargs: Any) -> Any:
        return entry.call(*args, **kwargs)

    for what, (args, kwargs) in wrong_calls(samples_of(entry)[0]):
        theirs = raised(call, args, kwargs)
        if theirs is not None:
            ours = raised(thunder.jit(call), args, kwargs)
            assert isinstance(ours, type(theirs)), f"{what}: {ours!r} instead of {theirs!r}"
            told = f"at {__file__}" in message_and_notes(ours) or str(ours) == str(theirs)
            assert told, f"{what}: {ours}"


def test_the_message_is_torchs_where_the_type_was_another() -> None:
    """With the user's line as a note, and without a cause, which eager mode does not have."""
    with pytest.raises(IndexError, match="Dimension out of range") as found:
        thunder.jit(torch.addbmm)(torch.ones(2, 2), torch.ones(3), torch.ones(3, 2, 2))
    assert str(found.value) == "Dimension out of range (expected to be in range of [-1, 0], but got 1)"
    assert found.value.__cause__ is None
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(found.tb))


def test_what_stays_as_it_is() -> None:
    """Errors that are thunder's own, calls that torch takes, large tensors; and no random number is used up."""
    before = torch.get_rng_state()
    x = torch.ones(2)
    assert torchs_answer(torch.sin, (x,), {}, RuntimeError("no")) is Answer.ACCEPTS
    assert torchs_answer(torch.sin, ("x",), {}, ThunderError("no")) is Answer.UNKNOWN
    assert (
        torchs_answer(torch.add, (torch.ones(2, 3).expand(10**7, 2, 3), "x"), {}, RuntimeError("no")) is Answer.UNKNOWN
    )
    assert isinstance(torchs_answer(torch.add, (x, torch.ones(3)), {}, ValueError("no")), RuntimeError)
    assert torchs_answer(torch.rand, ((2, 2),), {}, ValueError("no")) is Answer.ACCEPTS
    assert torch.equal(torch.get_rng_state(), before)


def test_errors_about_values_are_no_answer() -> None:
    """The call is repeated with zeros, which some functions reject; the program may have other values."""
    x = torch.rand(2, 2)
    assert torchs_answer(torch.multinomial, (x, 1), {}, RuntimeError("no")) is Answer.ACCEPTS
    assert torchs_answer(torch.linalg.inv, (x,), {}, RuntimeError("no")) is Answer.ACCEPTS
    assert "at least 2 dimensions" in str(torchs_answer(torch.linalg.inv, (x[0],), {}, RuntimeError("no")))


# -- calls that thunder rejects and torch accepts ---------------------------------------------------------------------
def test_what_torch_accepts_is_opaque() -> None:
    """A call that an operation does not support is run by torch, with torch's gradient."""
    x, target = torch.tensor(0.5, requires_grad=True), torch.tensor(0)
    jitted = thunder.jit(torch.nn.functional.multi_margin_loss)
    torch.testing.assert_close(jitted(x, target), torch.nn.functional.multi_margin_loss(x, target))
    ops = running.all_levels(thunder.last_traces(jitted)[0].bound_symbols)
    assert any(OpTags.OPAQUE_OP in bsym.sym.tags for bsym in ops)


def test_a_rejection_that_was_answered_does_not_fail_the_trace() -> None:
    """thunder's own error is forgotten, so the program is compiled and cached."""
    jitted = thunder.jit(lambda x: torch.norm(x, "nuc") + 1)
    for _ in range(2):
        jitted(torch.ones(2, 2))
    assert thunder.cache_hits(jitted) == 1


ACCEPTED: dict[str, Any] = {
    "group_norm": lambda x: torch.nn.functional.group_norm(x, (x.sum() * 0 + 1).long()),
    "scalar_tensor": lambda x: torch.scalar_tensor(x.sum()),
    "sparse_coo_tensor": lambda x: torch.sparse_coo_tensor((x[:2] * 0).long(), x[0]),
    "sparse_csr_tensor": lambda x: torch.sparse_csr_tensor([0, 1, 2], [0, 1], x[0]),
    "a scalar that requires grad": lambda x: torch.add(x, x.sum().requires_grad_(), alpha=2).detach(),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_torch_accepts_is_no_error(name: str) -> None:
    """Also if the result is not strided."""
    f, x = ACCEPTED[name], torch.rand(2, 2)
    jitted = thunder.jit(f)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), f(x))


CUSTOM = torch.library.Library("without_fakes", "DEF")
for schema, function in {
    "twice(Tensor x) -> Tensor": lambda x: x * 2,
    "mode(Tensor? x, Tensor y, str mode='a') -> Tensor": lambda x, y, mode="a": y * 2 if x is None else x + y,
    "parts(Tensor[] xs) -> Tensor[]": lambda xs: [x + 1 for x in xs],
    "add_(Tensor(a!) x, Tensor y) -> Tensor(a!)": lambda x, y: x.add_(y),
    "flat(Tensor(a) x) -> Tensor(a)": lambda x: x.view(-1),
    "check(Tensor x) -> ()": lambda x: None,
    "is_positive(Tensor x) -> bool": lambda x: bool((x > 0).all()),
    "positive(Tensor x) -> Tensor": lambda x: x[x > 0.5].clone(),
    "make(int n) -> Tensor": torch.ones,
}.items():
    CUSTOM.define(schema)
    CUSTOM.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")

WITHOUT_FAKES: dict[str, Any] = {
    "a tensor": lambda x, ops: ops.twice(x) + 1,
    "an overload": lambda x, ops: ops.twice.default(x * 2),
    "no tensor": lambda x, ops: ops.mode(None, x, mode="b"),
    "a list": lambda x, ops: ops.parts([x, x * 2])[1] * 3,
    "in place": lambda x, ops: (ops.add_(x, x * 2) * 2, x + 1),
    "a view": lambda x, ops: ops.flat(x) * 2,
    "nothing": lambda x, ops: (ops.check(x), x * 2),
    "a number": lambda x, ops: x if ops.is_positive(x) else -x,
    "a shape that depends on values": lambda x, ops: ops.positive(x) * 2,
    "a factory": lambda x, ops: ops.make(2) + x,
}


@pytest.mark.parametrize("name", WITHOUT_FAKES)
def test_custom_operations_without_a_fake_kernel(name: str) -> None:
    """torch cannot say what they return: they run eagerly."""
    f, ops = WITHOUT_FAKES[name], torch.ops.without_fakes
    jitted = thunder.jit(lambda x: f(x, ops))
    for _ in range(3):
        expected, found = torch.full((2, 2), 0.75), torch.full((2, 2), 0.75)
        torch.testing.assert_close(jitted(found), f(expected, ops))
        torch.testing.assert_close(found, expected)


CONVERSIONS = {
    "bool": bool, "int": int, "float": float, "complex": complex, "index": lambda x: [1, 2][x],
    "__rsub__": lambda x: torch.Tensor.__rsub__(5.1, x), "__rdiv__": lambda x: torch.Tensor.__rdiv__(2, x),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_that_python_refuses(name: str) -> None:
    """Whatever the values are, a tensor of several elements is no number: torch's error, or NotImplemented."""
    outcomes = []
    for fn in (CONVERSIONS[name], thunder.jit(CONVERSIONS[name])):
        try:
            outcomes.append(fn(torch.ones(3)))
        except Exception as error:
            outcomes.append((type(error), str(error).partition("\n")[0]))
    assert outcomes[0] == outcomes[1]
