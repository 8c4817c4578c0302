# SPDX-License-Identifier: Apache-2.0
"""Printed text, text written to streams, log records and warnings: every call produces them, in the program's order."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

X = torch.ones(3)
LOG = logging.getLogger("thunder_test_output")
ADAPTER = logging.LoggerAdapter(LOG, {"user": 1})
STREAM = io.StringIO()
SAYS = print
COUNT = 0


class Holder:
    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.says: Any = print
        self.v = 1

    def __repr__(self) -> str:
        return f"Holder({self.v})"


HOLDER = Holder()


class Tee:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        self.texts.append(text)


TEE = Tee()


def counts(x: Any) -> Any:
    global COUNT
    COUNT += 1
    print("call", COUNT, x.sum().item(), x.shape, sep="-", end="!\n")
    return x * 2


def prints_tensors(x: Any) -> Any:
    y = x.clone()
    print(y)
    y.add_(1)
    print(y, "after", flush=True)
    return y


def writes(x: Any) -> Any:
    sys.stdout.write("a")
    print("b", end="")
    sys.stdout.writelines(["c", "\n"])
    sys.stdout.flush()
    return x * 2


def prints_to_a_stream(x: Any) -> Any:
    print("to a stream", x.mean().item(), file=STREAM)
    HOLDER.stream.write("w")
    return x * 2


def prints_to_its_own(x: Any) -> Any:
    own = io.StringIO()
    print("own", 2, file=own)
    with contextlib.redirect_stdout(own):
        print("redirected")
    return x * len(own.getvalue())


def prints_to_python(x: Any) -> Any:
    print("e", 2, file=TEE)  # type: ignore[call-overload]
    return x * 2


def prints_under_another_name(x: Any) -> Any:
    SAYS("another", x.sum())
    return x * 2


def prints_objects(x: Any) -> Any:
    print(HOLDER, [HOLDER], f"{HOLDER!r:>20}")
    return x * 2


def logs(x: Any) -> Any:
    LOG.info("shape %s, sum %.2f, object %r", x.shape, x.sum().item(), HOLDER)
    LOG.debug("not enabled")
    LOG.log(35, "tensor %s", x)
    ADAPTER.warning("adapted")
    return x * 2


def warns(x: Any) -> Any:
    warnings.warn("again", stacklevel=1)
    return x * 2


def warns_inside(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("recorded", stacklevel=1)
    return x * len(caught)


def catches_a_warning(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("raised", stacklevel=1)
        except UserWarning:
            return x * 3
    return x


CACHED = [
    prints_tensors, writes, prints_to_a_stream, prints_to_its_own, prints_to_python, prints_under_another_name,
    prints_objects, logs, warns, warns_inside, catches_a_warning,
]  # fmt: skip
EAGER: dict[str, Callable[[Any], Any]] = {
    "a formatted tensor": lambda x: (sys.stdout.write(f"{x}"), x * 2)[1],
    "a tensor in a list": lambda x: (print([x]), x * 2)[1],
    "a number in a format": lambda x: (print(f"sum {x.sum().item()}"), x * 2)[1],
    "print in an attribute": lambda x: (HOLDER.says("said"), x * 2)[1],
    "a stream is read": lambda x: (print("e", file=STREAM), x * len(STREAM.getvalue()))[1],
}


def outputs(fn: Callable[..., Any], calls: int = 3) -> list[Any]:
    """Call `fn` and return the results with everything that came out."""
    global COUNT
    COUNT = 0
    found = []
    records = io.StringIO()
    handler = logging.StreamHandler(records)
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s %(funcName)s %(lineno)d %(message)s"))
    LOG.handlers[:], LOG.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    for stream in (STREAM, HOLDER.stream):
        stream.seek(0)
        stream.truncate()
    TEE.texts.clear()
    for _ in range(calls):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = fn(X).tolist()
            except ValueError as error:
                result = str(error)
        issued = [(str(w.message), w.filename, w.lineno) for w in caught if w.filename == __file__]
        state = (STREAM.getvalue(), HOLDER.stream.getvalue(), [*TEE.texts], records.getvalue())
        found.append((result, out.getvalue(), [w for w in issued if "runs eagerly" not in w[0]], state))
    return found


@pytest.mark.parametrize("fn", CACHED)
def test_every_call_has_it(fn: Callable[..., Any]) -> None:
    """And none makes a trace uncacheable."""
    jitted = thunder.jit(fn)
    assert outputs(jitted) == outputs(fn)
    assert thunder.cache_hits(jitted) == 2


@pytest.mark.parametrize("name", EAGER)
def test_what_a_program_cannot_format(name: str) -> None:
    """Is printed once a call, by the program itself."""
    assert outputs(thunder.jit(EAGER[name])) == outputs(EAGER[name])


def test_numbers_that_change() -> None:
    """They become inputs, and the program prints their values."""
    jitted = thunder.jit(counts)
    assert outputs(jitted, 6) == outputs(counts, 6)
    assert thunder.cache_hits(jitted) == 3


def test_levels_are_guarded() -> None:
    """Those of a logger and of its parents."""

    def leveled(x: Any) -> Any:
        return x * 2 if LOG.isEnabledFor(logging.DEBUG) else x * LOG.getEffectiveLevel() * len(LOG.handlers)

    outputs(lambda x: x)
    jitted = thunder.jit(leveled)
    for level in (logging.INFO, logging.INFO, logging.DEBUG, logging.ERROR, logging.ERROR):
        LOG.setLevel(level)
        torch.testing.assert_close(jitted(X), leveled(X))
    assert thunder.cache_hits(jitted) == 2


def test_objects_are_printed_as_they_are() -> None:
    """After they changed, too."""
    jitted = thunder.jit(prints_objects)
    try:
        for HOLDER.v in (1, 1, 2):
            assert outputs(jitted, 1) == outputs(prints_objects, 1)
    finally:
        HOLDER.v = 1
    assert thunder.cache_hits(jitted) == 1


def test_an_error_after_output() -> None:
    """What was printed before it is printed once."""

    def raises(x: Any) -> Any:
        print("before")
        raise ValueError("no")

    assert outputs(thunder.jit(raises)) == outputs(raises)


def test_branches_do_not_print() -> None:
    """Only one branch of `torch.cond` runs: the call is eager."""

    def prints(x: Any) -> Any:
        print("taken")
        return x * 2

    def chooses(x: Any) -> Any:
        return torch.cond(x.sum() > 0, prints, torch.relu, (x,))

    assert thunder.explain(_called(chooses)).count("torch.cond prints") == 1


def _called(fn: Callable[..., Any]) -> Any:
    jitted = thunder.jit(fn)
    with contextlib.suppress(RuntimeError):
        jitted(X)
    return jitted


def test_attributes_of_the_class_of_a_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guarded attributes are those outside tracing, not the functions that replace them in a trace."""
    monkeypatch.setattr(logging.Logger, "factor", functools.lru_cache(lambda self: 2), raising=False)

    def reads(x: torch.Tensor) -> torch.Tensor:
        x = x * LOG.factor()  # type: ignore[attr-defined]
        return x * ("info" in vars(type(LOG))) if LOG.isEnabledFor(logging.ERROR) else x

    jitted = thunder.jit(reads)
    for _ in range(3):
        torch.testing.assert_close(jitted(X), reads(X))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)
    monkeypatch.setattr(logging.Logger, "factor", functools.lru_cache(lambda self: 3))
    torch.testing.assert_close(jitted(X), reads(X))


# -- texts and streams that the program itself uses -------------------------------------------------------------------
WEIGHT = torch.tensor([1.0])
MEASURED: dict[str, Callable[[Any], Any]] = {
    "f-string": lambda x: len(f"{x}"),
    "f-string with a format": lambda x: len(f"value: {x!s:>40}"),
    "str": lambda x: len(str(x)),
    "repr": lambda x: len(repr(x * 2)),
    "percent": lambda x: len("%s and %r" % (x, x)),  # noqa: UP031
    "format": lambda x: len(format(x)),
    "in a list": lambda x: len(str([x])),
    "of a global": lambda x: len(f"{WEIGHT}"),
    "of a global in a dict": lambda x: len(str({"w": WEIGHT})),
    "compared": lambda x: str(x) == "tensor([1.])",
    "part of another": lambda x: "e-07" in repr(WEIGHT),
}


@pytest.mark.parametrize("length", MEASURED.values(), ids=list(MEASURED))
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_texts_of_tensors(length: Callable[[Any], Any]) -> None:
    """A program that uses the text of a tensor gets the text of eager mode, at each call."""

    def program(x: Any) -> Any:
        return x * length(x)

    jitted = thunder.jit(program)
    for value in (1.0, 1.0, 1000.5, 1.25e-7):
        WEIGHT.fill_(value)
        x = torch.tensor([value])
        assert torch.equal(jitted(x), program(x))


def test_a_tensor_that_is_a_global_is_printed() -> None:
    """With the value that it has at each call."""

    def prints(x: Any) -> Any:
        print(WEIGHT, "and", x)
        LOG.info("%s", WEIGHT)
        return x + 1

    for fn in (prints, thunder.jit(prints)):
        found = []
        for value in (1.0, 2.0):
            WEIGHT.fill_(value)
            found.append(outputs(fn, calls=1)[0])
        assert "tensor([2.]) and" in found[1][1]
        assert found[1][3][3].endswith("tensor([2.])\n")


class Terminal(io.StringIO):
    """A stream with a method of its own."""

    def isatty(self) -> bool:
        return True


PRINTED = io.StringIO()
HANDLER = logging.StreamHandler()
INSPECTED: dict[str, Callable[[], Any]] = {
    "identity": lambda: sys.stdout is PRINTED,
    "equality": lambda: sys.stdout == PRINTED,
    "in a tuple": lambda: sys.stdout in (PRINTED,),
    "key": lambda: {PRINTED: 2}.get(sys.stdout, 3),
    "class": lambda: len(type(sys.stdout).__name__),
    "class by attribute": lambda: len(sys.stdout.__class__.__name__),
    "isinstance": lambda: isinstance(sys.stdout, Terminal),
    "text": lambda: len(repr(sys.stdout)),
    "method": lambda: sys.stdout.isatty(),
    "attribute": lambda: hasattr(sys.stdout, "getvalue"),
    "by getattr": lambda: getattr(sys, "stdout", None) is PRINTED,
    "attribute of a handler": lambda: HANDLER.stream is PRINTED,
    "class of a handler's": lambda: len(type(HANDLER.stream).__name__),
    "assigned": lambda: setattr(sys.stdout, "own", 3),
}


@pytest.mark.parametrize("inspected", INSPECTED.values(), ids=list(INSPECTED))
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_streams_that_a_program_inspects(inspected: Callable[[], Any]) -> None:
    """The stream that records output is not what the program sees of it."""

    def program(x: Any) -> Any:
        found = inspected()
        return x * 2 if found is None else x * found

    jitted = thunder.jit(program)
    for stream in (PRINTED, PRINTED, io.TextIOWrapper(io.BytesIO()), Terminal(), PRINTED):
        HANDLER.setStream(stream)
        with contextlib.redirect_stdout(stream):
            assert torch.equal(jitted(X), program(X))
            assert getattr(stream, "own", 3) == 3
    HANDLER.setStream(sys.stderr)


def test_attributes_of_streams() -> None:
    """What the program sets of a stream is there after the call."""

    def program(x: Any) -> Any:
        sys.stdout.own = 3  # type: ignore[attr-defined]
        return x

    with contextlib.redirect_stdout(io.StringIO()) as stream:
        thunder.jit(program)(X)
    assert stream.own == 3  # type: ignore[attr-defined]
