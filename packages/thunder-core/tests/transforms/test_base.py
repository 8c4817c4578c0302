# SPDX-License-Identifier: Apache-2.0
"""Transforms: each hook sees its stage, in order; what is no transform is refused with a way out."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.errors import ThunderError, UnsupportedError
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder.core.transforms import grad
from thunder.transforms.base import PHASES, FunctionTransform, PassContext, Transform, as_transforms


class Watching(thunder.Transform):
    """Notes what it is called with, and changes nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def _note(self, trace: Trace, context: PassContext) -> Trace:
        self.seen.append((context.phase, trace.name))
        assert context.executors[-1].name == "python"
        return trace

    transform_computation = transform_execution = transform_claimed = _note
    transform_prologue = transform_epilogue = _note

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Noted too."""
        self.seen.append(("tracing", ""))
        yield
        self.seen.append(("traced", ""))


def test_stages() -> None:
    """In their order, forward and backward, once a program."""
    watching = Watching()
    f = thunder.jit(lambda a: torch.sin(a), transforms=[watching])
    a = torch.randn(3, requires_grad=True)
    for _ in range(2):
        f(a).sum().backward()
    phases = [phase for phase, _ in watching.seen]
    assert phases[:3] == ["tracing", "traced", "before_grad"]
    assert sorted(phases[3:]) == ["after_execution"] * 2 + ["before_execution"] * 2 + ["prologue"]
    assert {name for phase, name in watching.seen if phase == "before_execution"} == {"computation", "backward"}


def test_epilogue_stage() -> None:
    """Where there is an epilogue."""
    watching, kept = Watching(), []
    f = thunder.jit(lambda a: kept.append(1) or a + 1, transforms=[watching])
    f(torch.ones(2))
    assert watching.seen[-2:] == [("prologue", "prologue"), ("epilogue", "epilogue")]


class Negated(Transform):
    """Returns minus what the program returns."""

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        with construct(trace, "Negated") as out:
            out.bound_symbols[:] = trace.bound_symbols[:-1]
            with tracectx(out):
                out.output = prims.neg(trace.bound_symbols[-1].args[0])
                prims.python_return(out.output)
        return out


def test_what_it_returns_is_compiled() -> None:
    """And differentiated, and one after the other."""
    a = torch.randn(3, requires_grad=True)
    f = thunder.jit(lambda a: a * 3, transforms=[Negated()])
    torch.testing.assert_close(f(a), a * -3)
    f(a).sum().backward()
    torch.testing.assert_close(a.grad, torch.full((3,), -3.0))
    assert "Negated" in [t.provenance.name for t in thunder.last_traces(f) if t.provenance]
    twice = thunder.jit(lambda a: a * 3, transforms=[Negated(), Negated()])
    torch.testing.assert_close(twice(a), a * 3)


class Scaled(Transform):
    """Gives the program other inputs than the call's."""

    def transform_prologue(self, trace: Trace, context: PassContext) -> Trace:
        double = context.executors[-1].register_operator(
            "double_input_for_test", meta=lambda x: prims_like(x), fn=lambda x: x * 2
        )
        with construct(trace, "Scaled") as out:
            *body, last = trace.bound_symbols
            given = last.args[0][0]
            new = prims_like(given)
            new.name = out.make_name("scaled")
            out.bound_symbols[:] = [
                *body,
                BoundSymbol(double, (given,), {}, new),
                last.replace(args=((new, *last.args[0][1:]),)),
            ]
        return out


def prims_like(x: Any) -> Any:
    """Another value of the same kind."""
    return x.replace_name(x.name)


def test_prologue_says_what_the_inputs_are() -> None:
    """At the first call as at later ones."""
    f = thunder.jit(lambda a: a + 1, transforms=[Scaled()])
    for _ in range(2):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 3.0))
    assert thunder.cache_misses(f) == 1
    assert len(thunder.last_prologue_traces(f)) == 2


def test_prologue_of_a_program_for_one_call() -> None:
    """There is none to change, which is said."""

    f = thunder.jit(lambda a: (a * 2, bytearray(2)), transforms=[Scaled()])
    with pytest.raises(ThunderError, match="a transform changes the prologue, but this program has no prologue"):
        f(torch.ones(2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cse", r"requires a list of transforms, not 'cse': write \['cse'\]"),
        (Negated(), r"requires a list of transforms, not <Negated>"),
        (3, "requires a list of transforms, not 3"),
        ([Negated], r"transforms are objects: write Negated\(…\) instead of Negated"),
        (["cse"], "'cse' is not a transform: pass instances of subclasses of thunder.Transform"),
        ([None], "None is not a transform"),
    ],
)
def test_what_is_no_transform(given: Any, message: str) -> None:
    """It is refused when it is given."""
    with pytest.raises(TypeError, match=message):
        thunder.jit(lambda a: a, transforms=given)


def test_misspelt_hooks() -> None:
    """They are refused when the class is written; helpers of other names are nobody's business."""
    with pytest.raises(
        TypeError, match=r"Mine\.transform_computations is not a hook\. Did you mean transform_computation\?"
    ):

        class Mine(Transform):
            """Nearly."""

            def transform_computations(self, trace: Trace, context: PassContext) -> Trace:
                return trace

    class Helped(Transform):
        """With a method of its own."""

        def bound(self, trace: Trace) -> Trace:
            return trace

    assert not Helped().is_needed


def test_functions() -> None:
    """A function (trace, executors) -> trace is one too."""
    (found,) = as_transforms([lambda trace, executors: trace])
    assert isinstance(found, FunctionTransform)
    assert [phase for phase in PHASES if found.has(phase)] == ["before_grad"]


def test_errors_name_the_transform() -> None:
    """One that returns nothing, one that raises."""

    class Nothing(Transform):
        """Forgets to return."""

        def transform_execution(self, trace: Trace, context: PassContext) -> Any:
            return None

    with pytest.raises(ThunderError, match=r"Nothing\.transform_execution returned None instead of a trace"):
        thunder.jit(lambda a: a + 1, transforms=[Nothing()])(torch.ones(2))

    class Broken(Transform):
        """Raises."""

        def transform_claimed(self, trace: Trace, context: PassContext) -> Any:
            raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError) as caught:
        thunder.jit(lambda a: a + 1, transforms=[Broken()])(torch.ones(2))
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__[0] == "raised by the transform Broken.transform_claimed"


def test_inside_another_traced_function() -> None:
    """A transform of programs is applied to that part alone; one that changes no results is left out."""
    inner = thunder.jit(lambda a, k: (a.sin() * k, "name"), transforms=[Negated1()])
    outer = thunder.jit(lambda a, k: inner(a, k)[0] + a.sin())
    a, k = torch.randn(3, requires_grad=True), torch.randn(3)
    torch.testing.assert_close(outer(a, k), a.sin() - a.sin() * k)
    outer(a, k).sum().backward()
    torch.testing.assert_close(a.grad, (a.cos() - a.cos() * k).detach())
    assert thunder.jit(lambda a, k: inner(a, k)[1])(a, k) == "name"
    seen: list[Any] = []
    watched = thunder.jit(lambda a: a + 1, transforms=[thunder.transforms.debug(lambda op, values: seen.append(op))])
    assert torch.equal(thunder.jit(lambda a: watched(a) * 2)(torch.ones(2)), torch.full((2,), 4.0))
    assert not seen


class Negated1(Transform):
    """Negates the first result."""

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        with construct(trace, "Negated") as out, tracectx(out):
            *body, last = trace.bound_symbols
            out.bound_symbols[:] = body
            first, *rest = last.args[0]
            out.output = (prims.neg(first), *rest)
            prims.python_return(out.output)
        return out


def test_nested_with_what_it_reaches() -> None:
    """Closures and modules' parameters, calls in a row, a pattern under grad."""
    weight = torch.randn(3, requires_grad=True)

    @thunder.pattern
    def pattern(a: Any, k: Any) -> Any:
        return (a * k).sin()

    @pattern.replacement
    def _(a: Any, k: Any) -> Any:
        return torch.sin(k * a) * 1

    inner = thunder.jit(lambda a: (a * weight).sin().sum(), transforms=[pattern])
    a = torch.randn(3)
    outer = thunder.jit(lambda a: inner(a) * inner(a + 1))
    expected = (a * weight).sin().sum() * ((a + 1) * weight).sin().sum()
    torch.testing.assert_close(outer(a), expected)
    outer(a).backward()
    (gradient,) = torch.autograd.grad(expected, weight)
    torch.testing.assert_close(weight.grad, gradient)
    torch.testing.assert_close(thunder.grad(inner)(a), weight.detach() * (a * weight.detach()).cos())
    assert "ltorch.mul(t" in str(thunder.last_traces(outer)[0])


def test_nested_gradients() -> None:
    """A list of gradients, as outside; and a structure that a transform keeps."""
    gradients = grad(thunder.jit(lambda a: (a * a).sum()))
    a = torch.randn(3)
    found = thunder.jit(lambda a: gradients(a))(a)
    assert isinstance(found, list)
    torch.testing.assert_close(found, [2 * a])
    torch.testing.assert_close(thunder.jit(lambda a: gradients(a)[0].sin())(a), (2 * a).sin())
    same = thunder.jit(lambda a: {"x": a + 1, "rest": [a * 2, 3]}, transforms=[lambda trace, executors: trace])
    torch.testing.assert_close(thunder.jit(lambda a: same(a * 1))(a), {"x": a + 1, "rest": [a * 2, 3]})


def test_nested_limits() -> None:
    """Writes, tensors that are kept, hooks that a part has not."""
    kept: list[Any] = []
    writes = thunder.jit(lambda a: (a.add_(1),), transforms=[Negated1()])
    keeps = thunder.jit(lambda a: (kept.append(a + 1) or a * 2,), transforms=[Negated1()])
    with pytest.raises(UnsupportedError, match=r"and writes to memory\. Return the new value instead"):
        thunder.jit(lambda a: writes(a.clone())[0], sharp_edges="error")(torch.ones(2))
    with pytest.raises(UnsupportedError, match="and keeps a tensor that it created"):
        thunder.jit(lambda a: keeps(a)[0], sharp_edges="error")(torch.ones(2))
    kept.clear()
    late = thunder.jit(lambda a: a + 1, transforms=[Scaled()])
    with pytest.raises(UnsupportedError, match="has the transform Scaled, which changes whole programs"):
        thunder.jit(lambda a: late(a) * 2, sharp_edges="error")(torch.ones(2))
    with pytest.warns(thunder.FallbackWarning, match="has the transform Scaled, which changes whole programs"):
        result = thunder.jit(lambda a: late(a) * 2)(torch.ones(2))
    torch.testing.assert_close(result, late(torch.ones(2)) * 2)


class Finalized:
    """An unreachable cycle whose finalizer calls a C function that a program may not call."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.stat(".")


def test_finalizers_of_other_objects_are_no_part_of_the_program() -> None:
    kept: list[Any] = []
    keeps = thunder.jit(lambda a: (kept.append(a + 1) or a * 2,), transforms=[Negated1()])
    finalized = Finalized()
    gc.collect()  # an old object, which only a full collection finds
    del finalized
    with pytest.raises(UnsupportedError, match="and keeps a tensor that it created"):
        thunder.jit(lambda a: keeps(a)[0], sharp_edges="error")(torch.ones(2))
    kept.clear()


def test_jitted_again() -> None:
    """With other options it computes what it did, and further transforms come after its own."""
    f = thunder.jit(lambda a: a * 3, transforms=[Negated()])
    assert torch.equal(thunder.jit(f, executors=["torch"])(torch.ones(2)), torch.full((2,), -3.0))
    assert torch.equal(thunder.jit(f, transforms=[Negated()])(torch.ones(2)), torch.full((2,), 3.0))
    gradient = grad(thunder.jit(lambda a: (a * a).sum()))
    assert torch.equal(thunder.jit(gradient, executors=["torch"])(torch.ones(2))[0], torch.full((2,), 2.0))
    model = torch.nn.Linear(2, 2)
    quantized = thunder.jit(model, transforms=[thunder.transforms.QuantizationTransform()])
    again = thunder.jit(quantized, transforms=[thunder.transforms.autocast()])
    assert again.weight_int8 is quantized.weight_int8
    assert again(torch.ones(1, 2)).dtype is torch.bfloat16


def test_never_eagerly() -> None:
    """A function that is transformed is compiled however often: eagerly it would be another function."""
    f = thunder.jit(lambda a, k: a * len(k), transforms=[Negated()])
    for n in range(1, 20):
        assert torch.equal(f(torch.ones(1), "x" * n), torch.tensor([-float(n)]))


def test_modules_only() -> None:
    """A transform of modules says so when it is given a function."""
    with pytest.raises(TypeError, match=r"LoRATransform changes modules, but .* is not a module"):
        thunder.jit(lambda a: a, transforms=[thunder.transforms.LoRATransform()])
    with pytest.raises(AttributeError, match=r"has no attribute 'Quantize'; it has .*QuantizationTransform"):
        thunder.transforms.Quantize  # noqa: B018


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("ConstantFoldingTransform", {"max_bytes": -1}, "max_bytes is a number of bytes, at least 0, not -1"),
    ("ConstantFoldingTransform", {"max_bytes": 1e6}, "max_bytes is a number of bytes, at least 0, not 1000000.0"),
    ("ConstantFoldingTransform", {"max_bytes": None}, "max_bytes is a number of bytes, at least 0, not None"),
    ("CUDAGraphTransform", {"min_operations": 0}, "min_operations is a whole number, at least 1, not 0"),
    ("CUDAGraphTransform", {"min_operations": "2"}, "min_operations is a whole number, at least 1, not '2'"),
    ("CUDAGraphTransform", {"min_operations": 2.5}, "min_operations is a whole number, at least 1, not 2.5"),
    ("LoRATransform", {"rank": True}, "rank is a positive integer, not True"),
    ("LoRATransform", {"rank": "8"}, "rank is a positive integer, not '8'"),
    ("LoRATransform", {"alpha": "16"}, "alpha is a finite number, not '16'"),
    ("LoRATransform", {"alpha": float("nan")}, "alpha is a finite number, not nan"),
    ("LoRATransform", {"dropout": "0.1"}, "dropout is at least 0 and less than 1, not '0.1'"),
    ("LoRATransform", {"dropout": -0.1}, "dropout is at least 0 and less than 1, not -0.1"),
    ("LoRATransform", {"modules": "q_proj"}, "modules is a list of names or patterns of modules, not 'q_proj'"),
    ("LoRATransform", {"modules": [torch.nn.Linear]}, "modules is a list of names or patterns of modules"),
    ("QuantizationTransform", {"kind": ["int8"]}, r"kind is one of int8, float8, nf4, not \['int8'\]"),
    ("QuantizationTransform", {"kind": torch.int8}, "kind is one of int8, float8, nf4, not torch.int8"),
    ("QuantizationTransform", {"modules": "head"}, "modules is a list of names or patterns of modules, not 'head'"),
    ("QuantizationTransform", {"skip": "head"}, "skip is a list of names or patterns of modules, not 'head'"),
    ("QuantizationTransform", {"skip": None}, "skip is a list of names or patterns of modules, not None"),
    ("MaterializationTransform", {"state_dict": "model.pt"}, "state_dict is a mapping from names to tensors"),
    ("MaterializationTransform", {"initialize": True}, "initialize is a function of a submodule, not True"),
    ("ProfileTransform", {"nvtx": "yes"}, "nvtx is True, False or None, not 'yes'"),
    ("autocast", {"dtype": "bfloat16"}, "autocast requires torch.bfloat16 or torch.float16, not 'bfloat16'"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_OPTIONS, ids=[f"{n} {o}" for n, o, _ in BAD_OPTIONS])
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    """What an option cannot be is an error when it is given, which says what it can be."""
    with pytest.raises(ValueError, match=message):
        getattr(thunder.transforms, name)(**options)


@pytest.mark.parametrize(
    "name",
    [
        "ConstantFoldingTransform", "CUDAGraphTransform", "LoRATransform", "MaterializationTransform",
        "ProfileTransform", "QuantizationTransform", "autocast", "debug",
    ],
)  # fmt: skip
def test_unknown_options(name: str) -> None:
    """They are errors that name them."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'optoin'"):
        getattr(thunder.transforms, name)(optoin=1)


def test_what_is_no_function() -> None:
    """Where a transform takes one."""
    with pytest.raises(TypeError, match=r"debug\(only=…\) requires a function"):
        thunder.transforms.debug(print, only=["log"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"thunder\.pattern\(after_grad=…\) requires True or False, not 'yes'"):
        thunder.pattern(after_grad="yes")(torch.sin)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the replacement of a pattern must be a function, not 3"):
        thunder.pattern(lambda a: a.sin()).replacement(3)
