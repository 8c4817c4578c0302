# SPDX-License-Identifier: Apache-2.0
"""Executors, which run the operations of a trace.

An `OperatorExecutor` can define operators (`register_operator`). It declares which existing operations it implements
(`register_implementation`). An implementation is an operator with the same arguments, an `execution_transform` that
rewrites the call, or a `grad_transform` with another gradient rule. A `FusionExecutor` also rewrites whole traces.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core.errors import ThunderError, name_source
from thunder.core.langctx import langctx
from thunder.core.state import count_registration, registrations
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Trace
from thunder.extend.memory import NewResults, ResultMemory
from thunder.extend.operations import id_of

__all__ = ["Executor", "FusionExecutor", "Implementation", "OperatorExecutor", "implementations_epoch"]


def implementations_epoch() -> int:
    """Return the number of registrations of implementations so far.

    If it changes, a program may be compiled differently.
    """
    return registrations[0]


def _changed() -> None:
    count_registration()


@dataclass(frozen=True)
class Implementation:
    """One executor's implementation of an operation."""

    op: Symbol | None = None
    checker: Callable[..., bool | str] | None = None
    execution_transform: Callable[..., Any] | None = None
    grad_transform: Callable[..., Any] | None = None
    priority: int | None = None
    profitable: Callable[..., bool | str] | None = None
    measured: bool | Callable[..., Any] | None = None  # None: claimed by the rules alone

    @property
    def executable(self) -> bool:
        """Whether the executor runs the operation itself. False if it has only a gradient rule."""
        return self.op is not None or self.execution_transform is not None


class Executor:
    """The base class of executors: a name, a version, operators, and implementations by the id of the operation."""

    # Whether the executor ends every list and runs the operations that no other executor claims. Its gradient rules
    # have lower precedence than registered rules.
    is_fallback = False
    # Finds an executor by name when unpickling. The registry sets this, because this module cannot import the registry.
    find: ClassVar[Any]
    # What is known of the memory of results.
    memory: ResultMemory = ResultMemory()

    def __init__(self, name: str, *, version: str | None = None, memory: ResultMemory | None = None):
        self.name = name
        self.version = version
        if memory is not None:
            self.memory = memory
        self.priority = 0
        self.plugin: str | None = None  # the name of the plugin that registered it
        self.implmap: dict[Any, Implementation] = {}
        self.opmap: dict[str, Symbol] = {}
        self._lookasides: dict[Callable[..., Any], Symbol] = {}

    def __reduce__(self) -> Any:
        return (type(self).find, (self.name,))

    def __repr__(self) -> str:
        return f"thunder.extend.{type(self).__name__}('{self.name}')"

    # -- registration -------------------------------------------------------------------------------------------------
    def register_operator(
        self,
        name: str,
        *,
        like: Callable[..., Any] | None = None,
        meta: Callable[..., Any] | None = None,
        fn: Callable[..., Any] | None = None,
        module: Any = None,
        tags: Sequence[OpTags] = (),
        replaces: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        bind_postprocess: Callable[[BoundSymbol], None] | None = None,
        workspace: Callable[..., int] | None = None,
        kernel: bool | None = None,
        capturable: bool | str | Callable[..., bool | str] = True,
        out: Callable[..., Any] | None = None,
    ) -> Symbol:
        """Create an operator that this executor runs and return its symbol.

        Pass either `meta` or `like`. `meta` makes output proxies from input proxies. `like` expresses the operator in
        existing operations, and the decomposition and the gradient follow from it. `fn` runs the operator on real
        tensors. With `module`, `fn` is the attribute `name` of that module, and traces import it from there. `replaces`
        lists functions of torch: programs traced with this executor call the operator instead. `workspace` computes
        from the operator's arguments how many bytes it allocates while it runs, without its results
        (`thunder.examine.memory`).

        Traces print a `kernel` on a separate line. `trace.python(kernels=True)` also shows the operations that it
        decomposes into or replaces. By default, operators with `meta` and all operators of installed plugins are
        kernels.

        `capturable` says whether a call can be part of a CUDA graph: True, False, the reason why not, or a function of
        the arguments that returns one of these. A call can if `fn` launches the same kernels for all values of its
        tensors, in torch's current stream, and does not wait for the GPU. `out` runs the operator with the argument
        `out=`, a contiguous tensor to which it writes what `fn` would return, to the bit, and returns it. `fn` must
        then return one new contiguous tensor. Programs that update their inputs need less memory by it. With the tag
        `ELEMENTWISE_OP`, `out` may also be one of the other arguments.
        """
        if (like is None) == (meta is None):
            raise ValueError(
                f"register_operator({name!r}) needs either like= (a function of existing operations) or meta= (a "
                f"function that makes the output proxies), but got {'both' if like is not None else 'neither'}"
            )
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"the operator name {name!r} is not a Python identifier, but traces call it by its name")
        module_name = getattr(module, "__name__", module)
        if fn is None and module is not None:
            fn = getattr(module, name) if not isinstance(module, str) else None
        description = meta if meta is not None else like
        if not callable(description):
            raise TypeError(f"register_operator({name!r}) expects functions as like= and meta=, not {description!r}")
        sym = Symbol(
            name,
            langctx("torch")(description),
            id=f"{self.name}.{name}",
            module=module_name,
            is_prim=meta is not None,
            tags=tags,
            executor=self,
            fn=fn,
            bind_postprocess=bind_postprocess,
        )
        sym.workspace, sym.capturable = workspace, capturable
        sym.is_kernel = meta is not None if kernel is None else kernel
        self.opmap[name] = sym
        if out is not None:
            sym.writer = self._writer(sym, out)
        for target in (replaces,) if callable(replaces) else tuple(replaces or ()):
            self._lookasides[_overridable(target)] = sym
        _changed()
        return sym

    def _writer(self, sym: Symbol, out: Callable[..., Any]) -> Symbol:
        """Return the operator that writes the result of `sym` to its argument `out`."""
        if not isinstance(self.memory, NewResults):
            raise ValueError(
                f"register_operator({sym.name!r}, out=…) needs an executor whose operations return new tensors: pass "
                f"memory=NewResults() to {type(self).__name__}"
            )

        def meta(*args: Any, out: Any, **kwargs: Any) -> Any:
            return out

        tags = (*sym.tags, OpTags.IN_PLACE_OP)
        writer = Symbol(
            f"{sym.name}_out", meta, id=f"{self.name}.{sym.name}_out", is_prim=True, tags=tags, executor=self, fn=out
        )
        writer.workspace, writer.capturable, writer.is_kernel = sym.workspace, sym.capturable, True
        return writer

    def register_implementation(
        self,
        sym_or_id: Symbol | Any,
        op: Symbol | None = None,
        *,
        checker: Callable[..., bool | str] | None = None,
        execution_transform: Callable[..., Any] | None = None,
        grad_transform: Callable[..., Any] | None = None,
        priority: int | None = None,
        profitable: Callable[..., bool | str] | None = None,
        measured: bool | Callable[..., Any] = False,
    ) -> None:
        """Declare how this executor runs an existing operation. A second registration replaces the first.

        The operation is given as its symbol (`ltorch.mul`), as torch's function (`torch.mul`) or as its id. `op` is an
        operator with the same arguments. Instead of `op`, an `execution_transform` is called with the arguments and
        returns the replacement of the result. `checker` receives the arguments as proxies. It returns True, False, or a
        text with the reason. `grad_transform` is the gradient rule if this executor claims the operation. `priority`
        overrides the executor's priority for this operation. `profitable` is a second checker. It is called after the
        first if the user named no executor, and accepts only calls that this executor runs faster than others.

        With `measured`, the user's option of this name lets measurements decide: all executors that support a call are
        timed once per shape class and machine, and the fastest claims it. `measured` is True, or a function of the
        arguments that returns the shape class, or None for calls that the rules decide. True stands for
        `thunder.toolkit.measuring.shape_class_of`.
        """
        if op is not None and execution_transform is not None:
            raise ValueError("register_implementation needs either an operator or an execution_transform, not both")
        if op is None and execution_transform is None and grad_transform is None:
            raise ValueError("register_implementation needs an operator, an execution_transform or a grad_transform")
        functions = {"checker": checker, "grad_transform": grad_transform, "profitable": profitable}
        if not isinstance(measured, bool):
            functions["measured"] = measured
        for what, given in {**functions, "execution_transform": execution_transform}.items():
            if given is not None and not callable(given):
                raise TypeError(f"{what} must be a function, but register_implementation got {given!r}")
        if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
            raise TypeError(f"priority must be an integer, but register_implementation got {priority!r}")
        self.implmap[id_of(sym_or_id)] = Implementation(
            op, checker, execution_transform, grad_transform, priority, profitable, measured or None
        )
        _changed()

    # -- queries ------------------------------------------------------------------------------------------------------
    def implementation(self, bsym: BoundSymbol) -> Implementation | None:
        """Return the executor's implementation of an operation, without calling the checker."""
        found = self.implmap.get(bsym.sym.id)
        own = bsym.sym.executor is self and bsym.sym.fn is not None
        if own and (found is None or not found.executable):  # a gradient rule alone cannot be executed
            return Implementation(op=bsym.sym)
        return found

    def unconditional(self, sym: Symbol) -> Implementation | None:
        """Return the implementation that runs every call of an operation, for any arguments.

        A subclass must override this if it overrides methods that depend on the call.
        """
        found = self.implmap.get(sym.id)
        if found is not None and found.executable:
            return found if found.checker is None and found.profitable is None else None
        return Implementation(op=sym) if sym.executor is self and sym.fn is not None else None

    def ignores(self, sym: Symbol) -> bool:
        """Check whether the executor runs no call of an operation, neither whole nor by all of its parts.

        The default answer is always right. Programs compile faster if executors of few operations know better.
        """
        return False

    def rejection(self, bsym: BoundSymbol, *, named: bool = True) -> str | None:
        """Return why the executor does not run an operation; None if it does. `named`: the user named this executor."""
        found = self.implementation(bsym)
        if found is None or not found.executable:
            return "has no implementation of this operation"
        return self._checked(found, bsym, named)

    def _checked(self, found: Implementation, bsym: BoundSymbol, named: bool) -> str | None:
        for checker in (found.checker, None if named else found.profitable):
            answer = True if checker is None else self._asked(checker, bsym)
            if isinstance(answer, str) or not answer:
                return answer or "its checker returned False"
        return None

    def _asked(self, checker: Callable[..., bool | str], bsym: BoundSymbol) -> bool | str:
        try:
            return checker(*bsym.args, **bsym.kwargs)
        except Exception as error:
            name_source(error, f"the checker of the executor {self.name!r} for {bsym.sym.name}{_at(bsym)}", self)
            raise

    def can_execute(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        """Check whether the executor runs an operation."""
        return self.rejection(bsym, named=named) is None

    def takes(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        """Check whether the executor has an operator, a transform or a gradient rule for an operation."""
        return self.can_execute(bsym, named=named)

    def arguments(self, bsym: BoundSymbol) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the operator that implements an operation."""
        return bsym.args, bsym.kwargs

    def grad_rule(self, bsym: BoundSymbol, *, named: bool = True) -> Callable[..., Any] | None:
        """Return the executor's gradient rule for an operation, if its checker accepts the operation."""
        found = self.implmap.get(bsym.sym.id)
        if found is None or found.grad_transform is None or self._checked(found, bsym, named) is not None:
            return None
        return found.grad_transform

    def lookaside(self, fn: Callable[..., Any]) -> Symbol | None:
        """Return the operator that replaces `fn` in traced programs."""
        return self._lookasides.get(fn)


def _at(bsym: BoundSymbol) -> str:
    return f", which is called at {bsym.source}" if bsym.source else ""


def _overridable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Check whether calls of `fn` can be intercepted while tracing."""
    # The import is local because plugin hooks use this module before torch is imported.
    from torch.overrides import resolve_name

    if resolve_name(fn) is None:
        raise TypeError(
            f"replaces= needs functions of torch whose calls can be intercepted while tracing, but {fn!r} is not "
            "such a function: call the operator instead"
        )
    return fn


class OperatorExecutor(Executor):
    """An executor that runs operations one by one."""


class FusionExecutor(Executor):
    """An executor that replaces regions of a trace. Subclass this and implement `fusion_pass`."""

    def __init__(self, name: str, *, version: str | None = None):
        super().__init__(name, version=version)
        self._fuel: int | None = None
        self._supported: dict[Any, Callable[..., bool | str] | None] = {}

    def fusion_pass(self, trace: Trace) -> Trace:
        """Return a trace in which the executor's operators replace the regions that it runs."""
        raise ThunderError(f"the fusion executor {self.name} has no fusion_pass: implement it in {type(self).__name__}")

    def register_supported(
        self,
        sym_or_id: Symbol | Any,
        checker: Callable[..., bool | str] | None = None,
        *,
        execution_transform: Callable[..., Any] | None = None,
        grad_transform: Callable[..., Any] | None = None,
    ) -> None:
        """Declare that the executor can include an operation in fusions."""
        id = id_of(sym_or_id)
        self._supported[id] = checker
        if execution_transform is not None or grad_transform is not None:
            self.register_implementation(
                id, checker=checker, execution_transform=execution_transform, grad_transform=grad_transform
            )
        _changed()

    def fuse_rejection(self, bsym: BoundSymbol) -> str | None:
        """Return why an operation cannot be in a fusion. Return None if it can, directly or by its decomposition."""
        owner = bsym.sym.executor
        if bsym.sym.is_fusion or owner not in (None, self):  # another executor has claimed the operation
            return f"is run by {owner.name}" if owner is not None else "is already a fusion"
        reason = self.why_not_fusible(bsym)
        if reason is None or not bsym.subsymbols:
            return reason
        for sub in bsym.subsymbols:
            below = self.fuse_rejection(sub)
            if below is not None:
                return f"{sub.sym.name}: {below}"
        return None

    def why_not_fusible(self, bsym: BoundSymbol) -> str | None:
        """Return why the executor cannot fuse the undecomposed operation; None if it can."""
        id = bsym.sym.id
        if id not in self._supported:
            return "does not support it"
        checker = self._supported[id]
        answer = True if checker is None else self._asked(checker, bsym)
        if answer is True:
            return None
        return answer if isinstance(answer, str) and answer else "its checker returned False"

    def takes(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        return self.can_fuse(bsym) or self.can_execute(bsym, named=named)

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Check whether an operation can be in a fusion."""
        return self.fuse_rejection(bsym) is None

    def register_temporary_operation(
        self, name: str, fn: Callable[..., Any], *, inputs: Sequence[Any], outputs: Any, bsyms: Sequence[BoundSymbol],
        tags: Sequence[OpTags] = (),
    ) -> BoundSymbol:  # fmt: skip
        """Return the bound symbol of a fusion. `fn` computes `outputs` from `inputs`, and replaces `bsyms`."""

        def meta(*args: Any) -> Any:
            return outputs

        sym = Symbol(name, meta, id=f"{self.name}.{name}", is_prim=True, executor=self, fn=fn, tags=tags)
        sym.is_fusion = True
        return BoundSymbol(sym, tuple(inputs), {}, outputs, list(bsyms))

    def get_fuel(self, amount: int = 1) -> bool:
        """Use `amount` of the optimization fuel. Return False if none is left (to bisect a wrong fusion)."""
        if self._fuel is None:
            return True
        if self._fuel < amount:
            return False
        self._fuel -= amount
        return True

    def set_fuel(self, amount: int | None) -> None:
        """Limit the number of further fusions. None removes the limit."""
        self._fuel = amount
