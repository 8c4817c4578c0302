# SPDX-License-Identifier: Apache-2.0
"""Claiming: who is asked, in which order, at which level, and what happens with what they answer."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording import traced

import thunder
import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import SourceLine, state, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Trace, construct
from thunder.core.transforms import get_grad, put_grad
from thunder.core.verify import verify
from thunder.execution.claim import claim, transform_for_execution
from thunder.executors.torchex import ex as TORCH
from thunder.extend import (
    Executor,
    FusionExecutor,
    OperatorExecutor,
    deregister_executor,
    get_always_executors,
    register_executor,
)
from thunder.passes.dce import dce


def ran(fn: Any, executors: Sequence[Executor], count: int = 2) -> tuple[list[str], Any]:
    """The names of the operations that run, and what they give on ones."""
    last = transform_for_execution(traced(fn, count), (*executors, *get_always_executors()))[-1]
    verify(last)
    values = [torch.full((2, 3), 1.0 + i) for i in range(count)]
    return [op.sym.name for op in last.bound_symbols[:-1]], last.python_callable()(*values)


def runner(name: str, **operators: tuple[Any, Any]) -> OperatorExecutor:
    """An executor that runs these symbols by these functions, under its own name and theirs."""
    executor = OperatorExecutor(name)
    for key, (sym, fn) in operators.items():
        op = executor.register_operator(f"{name}_{key}", like=sym.meta, fn=fn)
        executor.register_implementation(sym, op)
    return executor


# -- order and levels -------------------------------------------------------------------------------------------------
def test_the_first_that_can() -> None:
    """In the order of the list; torch ends it."""
    one, two = runner("one", mul=(ltorch.mul, operator.mul)), runner("two", mul=(ltorch.mul, operator.mul))
    assert ran(ltorch.mul, [one, two])[0] == ["one_mul"]
    assert ran(ltorch.mul, [two, one])[0] == ["two_mul"]
    assert ran(ltorch.mul, [])[0] == ["mul"]
    assert ran(ltorch.add, [one, two])[0] == ["add"]


def test_a_priority_for_one_operation_overrides_the_order() -> None:
    """For that operation alone."""
    one = runner("one", mul=(ltorch.mul, operator.mul), add=(ltorch.add, operator.add))
    two = runner("two", add=(ltorch.add, operator.add))
    op = two.register_operator("two_mul", like=ltorch.mul, fn=operator.mul)
    two.register_implementation(ltorch.mul, op, priority=10)
    names, _ = ran(lambda a, b: ltorch.add(ltorch.mul(a, b), b), [one, two])
    assert names == ["two_mul", "one_add"]


def test_top_down() -> None:
    """Who takes the whole gets it whole; who takes a part only gets it where nobody before takes the whole."""
    sym = Symbol("norm", lambda a, b: prims.sqrt(prims.add(prims.mul(a, a), prims.mul(b, b))), id="claim_test.norm")
    whole = runner("whole", norm=(sym, torch.hypot))
    part = runner("part", mul=(prims.mul, operator.mul))
    names, result = ran(sym, [whole, part])
    assert names == ["whole_norm"]
    names, again = ran(sym, [part, whole])
    assert torch.allclose(result, again)
    names, again = ran(sym, [part])
    assert names == ["part_mul", "part_mul", "add", "sqrt"]
    assert torch.allclose(result, again)


def test_an_executor_that_runs_every_part_has_the_whole() -> None:
    """It stands before one that would take it whole."""
    sym = Symbol("fma", lambda a, b: prims.add(prims.mul(a, b), b), id="claim_test.fma")
    parts = runner("parts", mul=(prims.mul, operator.mul), add=(prims.add, operator.add))
    whole = runner("whole", fma=(sym, lambda a, b: a * b + b))
    assert ran(sym, [parts, whole])[0] == ["parts_mul", "parts_add"]
    assert ran(sym, [whole, parts])[0] == ["whole_fma"]


def test_what_was_taken_shows_what_it_stands_for() -> None:
    """As its decomposition."""
    last = claim(traced(lambda a, b: ltorch.gelu(a) * b), get_always_executors())
    gelu = last.bound_symbols[0]
    assert gelu.sym.executor is TORCH
    assert [sub.sym for sub in gelu.subsymbols] == [ltorch.gelu]
    assert last.provenance.name == "Transform for execution"


# -- checkers ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answer", "takes"),
    [(True, True), (1, True), (False, False), (None, False), ("only on weekends", False), ("", False)],
)
def test_what_a_checker_answers(answer: Any, takes: bool) -> None:
    """Yes, no, or why not; a text is never a yes."""
    executor = runner("picky", mul=(ltorch.mul, operator.mul))
    executor.register_implementation(ltorch.mul, executor.opmap["picky_mul"], checker=lambda *args: answer)
    assert ran(ltorch.mul, [executor])[0] == ["picky_mul" if takes else "mul"]
    bsym = traced(ltorch.mul).bound_symbols[0]
    assert executor.can_execute(bsym) is takes
    expected = None if takes else answer if isinstance(answer, str) and answer else "its checker returned False"
    assert executor.rejection(bsym) == expected


def test_checkers_see_proxies_and_the_calls_own_arguments() -> None:
    """In the written form, keywords as keywords."""
    seen: list[Any] = []
    executor = OperatorExecutor("seeing")
    op = executor.register_operator("seeing_add", like=ltorch.add.meta, fn=torch.add)
    executor.register_implementation(
        ltorch.add, op, checker=lambda *args, **kwargs: bool(seen.append((args, kwargs))) or True
    )
    names, result = ran(lambda a, b: ltorch.add(a, other=b, alpha=3), [executor])
    assert names == ["seeing_add"]
    assert torch.equal(result, torch.full((2, 3), 7.0))
    (args, kwargs), *_ = seen
    assert [type(x) for x in args] == [TensorProxy, TensorProxy]
    assert kwargs == {"alpha": 3}


def test_an_error_in_a_checker_is_no_silent_no() -> None:
    """It reaches whoever compiles."""
    executor = runner("broken", mul=(ltorch.mul, operator.mul))
    executor.register_implementation(ltorch.mul, executor.opmap["broken_mul"], checker=lambda a, b: a.nonsense)
    with pytest.raises(AttributeError, match="nonsense"):
        ran(ltorch.mul, [executor])


# -- execution transforms ---------------------------------------------------------------------------------------------
def rewriting(fn: Any, sym: Any = ltorch.mul, **options: Any) -> OperatorExecutor:
    """An executor that rewrites `sym` with `fn`."""
    executor = OperatorExecutor("rewriting")
    executor.register_implementation(sym, execution_transform=fn, **options)
    return executor


def test_a_transform_writes_what_runs_instead() -> None:
    """Its operations are claimed in turn."""
    names, result = ran(ltorch.mul, [rewriting(lambda a, b: ltorch.exp(ltorch.add(ltorch.log(a), ltorch.log(b))))])
    assert names == ["log", "log", "add", "exp"]
    torch.testing.assert_close(result, torch.full((2, 3), 2.0))


def test_later_operations_read_the_transforms_result() -> None:
    """Under the name that the operation's result had."""
    executor = rewriting(ltorch.add)
    names, result = ran(lambda a, b: ltorch.neg(ltorch.mul(ltorch.mul(a, b), b)), [executor])
    assert names == ["add", "add", "neg"]
    assert torch.equal(result, torch.full((2, 3), -5.0))


def test_a_transform_that_returns_its_input() -> None:
    """Later uses read that one, the program's result too, however it is chained."""
    executor = rewriting(lambda a, b: a)
    names, result = ran(lambda a, b: ltorch.neg(ltorch.mul(a, b)), [executor])
    assert names == ["neg"]
    assert torch.equal(result, torch.full((2, 3), -1.0))
    names, result = ran(lambda a, b: (ltorch.mul(ltorch.mul(b, a), a), b), [executor])
    assert names == []
    assert torch.equal(result[0], torch.full((2, 3), 2.0))


def test_a_transform_with_several_results() -> None:
    """One value may stand for two of them, or an input for one."""
    sym = Symbol("pair", lambda a: (prims.sin(a), prims.cos(a)), id="claim_test.pair")

    def use(a: Any, b: Any) -> Any:
        s, c = sym(a)
        return prims.add(prims.mul(s, 10.0), c)

    for transform, expected in (
        (lambda a: (ltorch.neg(a), ltorch.exp(a)), -10 + torch.e),
        (lambda a: (ltorch.neg(a),) * 2, -11.0),
        (lambda a: (a, ltorch.neg(a)), 9.0),
        (lambda a: [a, a], 11.0),
    ):
        _, result = ran(use, [rewriting(transform, sym)])
        torch.testing.assert_close(result, torch.full((2, 3), expected))


def test_the_metadata_must_be_the_operations() -> None:
    """Another shape, dtype, device or number of values is an error that shows both."""
    bad = {
        r"returned a cpu f64\[2, 3\] where the operation gives a cpu f32\[2, 3\]": lambda a, b: ltorch.to(
            a, torch.float64
        ),
        r"returned a cpu f32\[3\] where": lambda a, b: ltorch.sum(a, 0),
        r"returned a meta f32\[2, 3\] where": lambda a, b: TensorProxy(like=a, device="meta"),
        "returned 2 values instead of 1": lambda a, b: (a, b),
    }
    for message, transform in bad.items():
        with pytest.raises(RuntimeError, match=f"the executor 'rewriting' for mul {message}") as caught:
            ran(ltorch.mul, [rewriting(transform)])
        assert "t0 = ltorch.mul(a, b)" in str(caught.value)


@pytest.mark.parametrize("result", [None, 1.5, "text"])
def test_a_result_that_is_no_tensor_is_an_error(result: Any) -> None:
    """Where the operation gives one."""
    with pytest.raises(RuntimeError, match="execution_transform of the executor 'rewriting' for mul returned"):
        ran(ltorch.mul, [rewriting(lambda a, b: result)])


def test_a_transform_may_call_what_it_transforms() -> None:
    """The inner call is not transformed again by it, but goes to the next that takes it."""
    executor = rewriting(lambda a, b: ltorch.neg(ltorch.mul(a, ltorch.neg(b))))
    assert ran(ltorch.mul, [executor])[0] == ["neg", "mul", "neg"]
    other = runner("other", mul=(ltorch.mul, operator.mul))
    assert ran(ltorch.mul, [executor, other])[0] == ["neg", "other_mul", "neg"]


def test_two_transforms_that_call_each_others_operation() -> None:
    """Neither is run inside of itself, so it ends."""
    executor = rewriting(lambda a, b: ltorch.sub(a, ltorch.neg(b)), ltorch.add)
    executor.register_implementation(ltorch.sub, execution_transform=lambda a, b: ltorch.add(a, ltorch.neg(b)))
    names, result = ran(ltorch.add, [executor])
    assert torch.equal(result, torch.full((2, 3), 3.0))
    assert len(names) < 8
    second = OperatorExecutor("second")
    second.register_implementation(ltorch.sub, execution_transform=lambda a, b: ltorch.add(a, ltorch.neg(b)))
    first = rewriting(lambda a, b: ltorch.sub(a, ltorch.neg(b)), ltorch.add)
    assert torch.equal(ran(ltorch.add, [first, second])[1], torch.full((2, 3), 3.0))


def test_the_users_line_goes_along() -> None:
    """What a transform writes stands where the user wrote the operation."""

    def f(a: Any, b: Any) -> Any:
        state.source = SourceLine("model.py", 4)
        try:
            return ltorch.mul(a, b)
        finally:
            state.source = None

    executor = rewriting(ltorch.add)
    last = claim(traced(f), (executor, *get_always_executors()))
    assert last.bound_symbols[0].source[:2] == ("model.py", 4)


# -- nobody -----------------------------------------------------------------------------------------------------------
def test_nobody_takes_it() -> None:
    """The error names the call, the part of it that nobody takes, who was asked, and the user's line."""
    mystery = Symbol("mystery", lambda a: TensorProxy(like=a), is_prim=True)
    with pytest.raises(RuntimeError, match=r"Could not find executor for bound symbol t0 = mystery\(a\)"):
        ran(lambda a, b: mystery(a), [])

    def f(a: Any, b: Any) -> Any:
        state.source = SourceLine("model.py", 4)
        try:
            return Symbol("outer", mystery)(a)
        finally:
            state.source = None

    with pytest.raises(RuntimeError) as caught:
        ran(f, [])
    message = str(caught.value)
    assert message.startswith("Could not find executor for bound symbol t0 = outer(a)")
    assert "mystery(a)" in message
    assert "torch, python" in message
    assert "model.py:4" in message


def test_what_hands_on_its_input_needs_nobody() -> None:
    """It runs by not running."""
    identity = Symbol("identity", lambda a: a)
    assert ran(lambda a, b: prims.neg(identity(identity(a))), [])[0] == ["neg"]


def test_operators_of_an_executor_are_run_by_it_alone() -> None:
    """Without it nobody can; with it, its own function runs."""
    executor = OperatorExecutor("own")
    op = executor.register_operator("own_op", meta=lambda a: TensorProxy(like=a), fn=lambda a: a + 41)
    assert ran(lambda a, b: op(a), [executor])[0] == ["own_op"]
    with pytest.raises(RuntimeError, match="Could not find executor for bound symbol"):
        ran(lambda a, b: op(a), [])


def test_one_that_is_described_by_others_runs_as_they_do_without_it() -> None:
    """`like=` is a decomposition."""
    executor = OperatorExecutor("own")
    op = executor.register_operator("own_op", like=lambda a: ltorch.exp(ltorch.neg(a)), fn=lambda a: (-a).exp())
    assert ran(lambda a, b: op(a), [executor])[0] == ["own_op"]
    assert ran(lambda a, b: op(a), [])[0] == ["neg", "exp"]


# -- fusion -----------------------------------------------------------------------------------------------------------
class RunFuser(FusionExecutor):
    """A small fuser: runs of operations that it supports, one after the other, become one that torch runs."""

    def fusion_pass(self, trace: Trace) -> Trace:
        """Gathers runs; those of one operation are left alone."""
        with construct(trace, f"Fusion by {self.name}") as out:
            run: list[BoundSymbol] = []
            for i, bsym in enumerate(trace.bound_symbols):
                if self.can_fuse(bsym):
                    run.append(bsym)
                    continue
                self._flush(out, run, trace.bound_symbols[i:])
                run = []
                out.bound_symbols.append(bsym)
        return out

    def _flush(self, out: Trace, run: list[BoundSymbol], after: list[BoundSymbol]) -> None:
        if len(run) < 2 or not self.get_fuel():
            out.bound_symbols += run
            return
        made = {p.name: p for b in run for p in b.flat_outs}
        inputs = list({p.name: p for b in run for p in b.flat_args if p.name not in made}.values())
        used = {name for b in after for name in b.arg_names}
        outputs = tuple(p for name, p in made.items() if name in used)
        region = Trace("region", args=inputs)
        region.bound_symbols[:] = run
        with tracectx(region):
            prims.python_return(outputs)
        program = claim(region, get_always_executors()).python_callable()
        name = f"fusion_{len([b for b in out.bound_symbols if b.sym.is_fusion])}"
        out.bound_symbols.append(
            self.register_temporary_operation(name, program, inputs=inputs, outputs=outputs, bsyms=run)
        )


def fuser() -> RunFuser:
    """One that takes elementwise operations."""
    executor = RunFuser("runs")
    for sym in (prims.add, prims.mul, prims.sin, prims.exp, prims.neg):
        executor.register_supported(sym)
    return executor


def test_a_fuser_takes_what_it_supports_and_leaves_the_rest() -> None:
    """Composites by their parts; what it leaves goes to the others afterwards."""

    def f(a: Any, b: Any) -> Any:
        c = ltorch.add(ltorch.sin(a), ltorch.mul(b, 2))
        d = ltorch.sum(c)
        return ltorch.neg(ltorch.exp(d)), c

    names, result = ran(f, [fuser()])
    assert names == ["fusion_0", "sum", "fusion_1"]
    a, b = torch.ones(2, 3), torch.full((2, 3), 2.0)
    c = a.sin() + b * 2
    torch.testing.assert_close(result, (-c.sum().exp(), c))


def test_a_single_operation_is_left_to_the_others() -> None:
    """And claimed by them."""
    names, _ = ran(lambda a, b: ltorch.sum(ltorch.sin(a)), [fuser()])
    assert names == ["sin", "sum"]
    last = transform_for_execution(traced(lambda a, b: ltorch.sum(ltorch.sin(a))), (fuser(), *get_always_executors()))
    assert all(op.sym.executor is TORCH for op in last[-1].bound_symbols[:-1])
    assert [t.provenance.name for t in last] == [
        "Transform for execution",
        "Fusion by runs",
        "Claim what was not fused",
    ]


def test_why_a_fuser_does_not_take_something() -> None:
    """The part that it does not support is named."""
    executor = fuser()
    executor.register_supported(prims.sin, lambda a: "only angles" if a.ndim == 2 else True)
    bsyms = traced(lambda a, b: ltorch.add(ltorch.sin(a), ltorch.cos(b))).bound_symbols
    assert executor.fuse_rejection(bsyms[0]) == "sin: only angles"
    assert executor.fuse_rejection(bsyms[1]) == "cos: does not support it"
    assert executor.fuse_rejection(bsyms[2]) is None
    assert executor.can_fuse(bsyms[2])


def test_what_others_run_is_not_fused() -> None:
    """Neither what an executor took that was asked first nor another one's fusions, whatever they stand for."""
    first = OperatorExecutor("first")
    twice = first.register_operator("twice", like=ltorch.mul, fn=lambda a, b: a * b)
    first.register_implementation(ltorch.mul, twice)
    second = RunFuser("others")
    for sym in (prims.add, prims.mul, prims.sin, prims.exp, prims.neg, prims.cos):
        second.register_supported(sym)

    def f(a: Any, b: Any) -> Any:
        c = ltorch.exp(ltorch.sin(a))
        d = ltorch.add(ltorch.cos(c), b)
        return ltorch.neg(ltorch.exp(ltorch.mul(d, 2)))

    names, result = ran(f, [first, fuser(), second])
    assert names == ["fusion_0", "fusion_1", "twice", "fusion_1"]
    a, b = torch.ones(2, 3), torch.full((2, 3), 2.0)
    torch.testing.assert_close(result, -((a.sin().exp().cos() + b) * 2).exp())


def test_fuel() -> None:
    """For bisecting: so many fusions and no more."""
    executor = fuser()

    def f(a: Any, b: Any) -> Any:
        return ltorch.exp(ltorch.neg(ltorch.sum(ltorch.exp(ltorch.neg(a)))))

    executor.set_fuel(1)
    assert ran(f, [executor])[0] == ["fusion_0", "sum", "neg", "exp"]
    assert not executor.get_fuel()
    executor.set_fuel(None)
    assert ran(f, [executor])[0] == ["fusion_0", "sum", "fusion_1"]


def test_the_bare_class_has_no_pass() -> None:
    """The error says what to write."""
    executor = FusionExecutor("bare")
    with pytest.raises(RuntimeError, match="bare has no fusion_pass: implement it in FusionExecutor"):
        ran(ltorch.add, [executor])


def test_a_fusion_pass_that_is_wrong() -> None:
    """Whose it is is said, of what it raises and of what it forgets to return."""

    class Wrong(FusionExecutor):
        def fusion_pass(self, trace: Trace) -> Any:
            if self.name == "raising":
                raise KeyError("region")

    with pytest.raises(
        RuntimeError, match="the fusion_pass of the executor 'forgetful' returned None instead of a trace"
    ):
        ran(ltorch.add, [Wrong("forgetful")])
    with pytest.raises(KeyError, match=r"region.*in the fusion_pass of the executor 'raising'"):
        ran(ltorch.add, [Wrong("raising")])


ELEMENTWISE = st.lists(
    st.tuples(st.sampled_from(["add", "mul", "sin", "neg", "sum", "matmul"]), st.integers(0, 99), st.integers(0, 99)),
    min_size=1,
    max_size=10,
)


@given(ELEMENTWISE, st.booleans())
def test_fused_programs_compute_the_same(steps: Any, grad: bool) -> None:
    """Random ones, through `thunder.jit`, with and without gradients."""

    def f(a: Any, b: Any) -> Any:
        values = [a, b]
        for name, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            if name in ("add", "mul"):
                values.append(getattr(torch, name)(x, y))
            elif name == "sum":
                values.append(x.sum() * 0.1 + y)
            elif name == "matmul":
                values.append(x @ y * 0.1)
            else:
                values.append(getattr(torch, name)(x))
        return values[-1], sum(values)

    generator = torch.Generator().manual_seed(1)
    leaves = [torch.rand(3, 3, dtype=torch.float64, generator=generator).requires_grad_(grad) for _ in range(2)]
    jitted = thunder.jit(f, executors=[fuser()])
    found, expected = jitted(*leaves), f(*leaves)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    if grad:
        got = torch.autograd.grad(found[1].sum(), leaves)
        torch.testing.assert_close(got, torch.autograd.grad(expected[1].sum(), leaves), rtol=1e-10, atol=1e-10)


# -- random programs --------------------------------------------------------------------------------------------------
@given(
    ELEMENTWISE, st.sets(st.sampled_from(["add", "mul", "sin", "neg"])), st.sets(st.sampled_from(["add", "mul", "sin"]))
)
def test_whoever_runs_it_the_result_is_the_same(steps: Any, first: set[str], second: set[str]) -> None:
    """Executors that take different operations, at different levels."""
    fns = {"add": torch.add, "mul": torch.mul, "sin": torch.sin, "neg": torch.neg}
    one = runner("one", **{n: (getattr(prims, n), fns[n]) for n in sorted(first)})
    two = runner("two", **{n: (getattr(ltorch, n), fns[n]) for n in sorted(second)})

    def f(a: Any, b: Any) -> Any:
        values = [a, b]
        for name, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(getattr(ltorch, name)(x, y) if name in ("add", "mul", "matmul") else getattr(ltorch, name)(x))
            if name == "sum":
                values[-1] = ltorch.add(values[-1], y)
        return values[-1]

    trace = traced(f, shape=(3, 3))
    a, b = torch.rand(3, 3), torch.rand(3, 3)
    plain = dce(claim(trace, get_always_executors())).python_callable()(a, b)
    for executors in ([one], [two], [one, two], [two, one]):
        last = claim(trace, (*executors, *get_always_executors()))
        verify(last)
        torch.testing.assert_close(last.python_callable()(a, b), plain)
        for op in last.bound_symbols[:-1]:
            assert op.sym.executor is not None
            assert OpTags.GRAD_OP not in op.sym.tags


def test_what_pays() -> None:
    """An executor that nobody named takes what it says pays; one that was named takes all that its checker allows."""
    executor = OperatorExecutor("thrifty", version="0.1")
    double = executor.register_operator("thrifty_exp", like=lambda a: ltorch.exp(a), fn=torch.exp)

    def gradient(a: Any) -> Any:
        result = double(a)
        put_grad(a, get_grad(result) * result)
        return result

    executor.register_implementation(
        ltorch.exp,
        double,
        checker=lambda a: a.ndim == 1,
        grad_transform=gradient,
        profitable=lambda a: a.shape[0] > 4 or "torch is as fast on few elements",
    )
    register_executor(executor, default=True, priority=5)
    try:
        few, many = torch.randn(3, requires_grad=True), torch.randn(7, requires_grad=True)
        for named, x, taken in ((False, few, False), (False, many, True), (True, few, True)):
            f = thunder.jit(lambda x: torch.exp(x), executors=[executor] if named else None)
            f(x).backward(torch.ones_like(x))
            assert ("thrifty_exp(" in str(thunder.last_traces(f)[-1])) is taken
            torch.testing.assert_close(x.grad, x.exp())
            x.grad = None
        report = thunder.examine(lambda x: torch.exp(x), few)
        assert "torch is as fast on few elements" in str(report)
    finally:
        deregister_executor(executor.name)


def test_what_hangs_on_arguments_is_asked_of_each_call() -> None:
    """Also where the executor took an operation the first time."""
    asked = []

    def is_first(a: Any, b: Any) -> bool:
        asked.append(b.name)
        return len(asked) % 2 == 1

    executor = OperatorExecutor("test_asked")
    op = executor.register_operator("my_add", like=prims.add.meta, fn=torch.add)
    executor.register_implementation(prims.add, op, checker=is_first)
    names, _ = ran(lambda a, b: prims.add(prims.add(prims.add(a, b), b), b), [executor])
    assert names == ["my_add", "add", "my_add"] and len(asked) >= 3

    every = OperatorExecutor("test_every")
    op = every.register_operator("all_adds", like=prims.add.meta, fn=torch.add)
    every.register_implementation(prims.add, op)
    assert ran(lambda a, b: prims.add(prims.add(a, b), b), [every])[0] == ["all_adds", "all_adds"]
    assert ran(lambda a, b: prims.add(prims.add(a, b), b), [executor, every])[0][1] in ("all_adds", "my_add")


def test_numbers_first_go_to_python_and_tensors_first_to_torch() -> None:
    """The same operation, in one program."""
    names, out = ran(
        lambda a: prims.add(prims.where(prims.lt(1.0, a), a, a), prims.where(prims.lt(a, 1.0), a, a)), [], 1
    )
    assert out.shape == (2, 3) and names.count("lt") == 2
    modules = transform_for_execution(
        traced(lambda a: (prims.lt(2.0, a), prims.lt(a, 2.0), prims.lt(3.0, a)), 1), get_always_executors()
    )[-1]
    assert [op.sym.module for op in modules.bound_symbols[:3]] == ["operator", "torch", "operator"]
