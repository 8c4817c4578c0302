# SPDX-License-Identifier: Apache-2.0
"""Executors: what runs the operations of a trace.

An `OperatorExecutor` has operators of its own (`register_operator`) and declares which existing operations it
implements (`register_implementation`): by an operator with the same arguments, by an `execution_transform` that
rewrites the call, or by a `grad_transform` with another gradient rule. A `FusionExecutor` also rewrites whole traces.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder.core.errors import ThunderError, name_source
from thunder.core.langctx import langctx
from thunder.core.state import registrations
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Trace
from thunder.extend.operations import id_of

__all__ = ["Executor", "FusionExecutor", "Implementation", "OperatorExecutor", "implementations_epoch"]


def implementations_epoch() -> int:
    """Return a counter of registrations of implementations: an older program may be compiled differently now."""
    return registrations[0]


def _changed() -> None:
    registrations[0] += 1


@dataclass(frozen=True)
class Implementation:
    """How an executor runs one operation."""

    op: Symbol | None = None
    checker: Callable[..., bool | str] | None = None
    execution_transform: Callable[..., Any] | None = None
    grad_transform: Callable[..., Any] | None = None
    priority: int | None = None
    profitable: Callable[..., bool | str] | None = None

    @property
    def executable(self) -> bool:
        """Whether it runs the operation itself; one with a gradient rule only does not."""
        return self.op is not None or self.execution_transform is not None


class Executor:
    """The base of executors: a name, a version, operators, and implementations by the id of what they implement."""

    # Whether it ends every list and runs what no other executor takes; registered gradient rules override its own.
    is_fallback = False
    # Finds an executor by name when unpickling; set by the registry, which this module cannot import.
    find: ClassVar[Any]

    def __init__(self, name: str, *, version: str | None = None):
        self.name = name
        self.version = version
        self.priority = 0
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
    ) -> Symbol:
        """Create an operator that this executor runs and return its symbol.

        Give `meta`, which makes output proxies from input proxies, or `like`, which expresses the operator in existing
        operations (its decomposition and gradient follow from them). `fn` runs it on real tensors; with
        `module` it is that module's attribute `name`, and traces import it from there. Functions of torch listed in
        `replaces` become this operator in programs traced with this executor. `workspace` computes from the operator's
        arguments how many bytes it allocates besides its results while it runs (`thunder.examine.memory`).

        A `kernel` is printed on a line of its own in traces; what it decomposes into, or replaces, is shown by
        `trace.python(kernels=True)`. By default, operators with `meta` and all operators of installed plugins are
        kernels.
        """
        if (like is None) == (meta is None):
            raise ValueError(
                f"register_operator({name!r}) needs either like= (a function of existing operations) or meta= (a "
                f"function that makes the output proxies), and got {'both' if like is not None else 'neither'}"
            )
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"the operator name {name!r} is no Python identifier, but traces call it by its name")
        module_name = getattr(module, "__name__", module)
        if fn is None and module is not None:
            fn = getattr(module, name) if not isinstance(module, str) else None
        description = meta if meta is not None else like
        if not callable(description):
            raise TypeError(f"register_operator({name!r}) takes functions as like= and meta=, not {description!r}")
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
        sym.workspace = workspace
        sym.is_kernel = meta is not None if kernel is None else kernel
        self.opmap[name] = sym
        for target in (replaces,) if callable(replaces) else tuple(replaces or ()):
            self._lookasides[_overridable(target)] = sym
        _changed()
        return sym

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
    ) -> None:
        """Declare how this executor runs an existing operation; a second registration replaces the first.

        The operation is named by its symbol (`ltorch.mul`), by torch's function (`torch.mul`) or by its id.
        `op` is an operator with the same arguments; an `execution_transform` is called with them instead and returns
        the replacement of the result. `checker` receives the arguments as proxies and returns True, or False, or a
        text with the reason. `grad_transform` is the gradient rule when this executor claims the operation. `priority`
        overrides the executor's own for this operation. `profitable` is a second checker, called after the first
        where the user named no executor: it accepts only calls that this executor runs faster than others.
        """
        if op is not None and execution_transform is not None:
            raise ValueError("give either an operator with the same arguments or an execution_transform, not both")
        if op is None and execution_transform is None and grad_transform is None:
            raise ValueError(
                "give an operator, an execution_transform or a grad_transform: nothing was given to register"
            )
        functions = {"checker": checker, "grad_transform": grad_transform, "profitable": profitable}
        for what, given in {**functions, "execution_transform": execution_transform}.items():
            if given is not None and not callable(given):
                raise TypeError(f"{what} is a function, but register_implementation was given {given!r}")
        if priority is not None and (not isinstance(priority, int) or isinstance(priority, bool)):
            raise TypeError(f"priority is an integer, but register_implementation was given {priority!r}")
        self.implmap[id_of(sym_or_id)] = Implementation(
            op, checker, execution_transform, grad_transform, priority, profitable
        )
        _changed()

    # -- queries ------------------------------------------------------------------------------------------------------
    def implementation(self, bsym: BoundSymbol) -> Implementation | None:
        """Return its implementation of that operation, whether or not the checker accepts it."""
        found = self.implmap.get(bsym.sym.id)
        own = bsym.sym.executor is self and bsym.sym.fn is not None
        if own and (found is None or not found.executable):  # a gradient rule alone is not executable
            return Implementation(op=bsym.sym)
        return found

    def unconditional(self, sym: Symbol) -> Implementation | None:
        """Return its implementation of every call of an operation, independently of the arguments; a subclass that
        overrides what depends on the call overrides this too."""
        found = self.implmap.get(sym.id)
        if found is not None and found.executable:
            return found if found.checker is None and found.profitable is None else None
        return Implementation(op=sym) if sym.executor is self and sym.fn is not None else None

    def rejection(self, bsym: BoundSymbol, *, named: bool = True) -> str | None:
        """Return why it does not run that operation; None if it does. `named`: the user named this executor."""
        found = self.implementation(bsym)
        if found is None or not found.executable:
            return "has no implementation of it"
        return self._checked(found, bsym, named)

    def _checked(self, found: Implementation, bsym: BoundSymbol, named: bool) -> str | None:
        for checker in (found.checker, None if named else found.profitable):
            answer = True if checker is None else self._asked(checker, bsym)
            if isinstance(answer, str) or not answer:
                return answer or "its checker said no"
        return None

    def _asked(self, checker: Callable[..., bool | str], bsym: BoundSymbol) -> bool | str:
        try:
            return checker(*bsym.args, **bsym.kwargs)
        except Exception as error:
            name_source(error, f"the checker of the executor {self.name!r} for {bsym.sym.name}{_at(bsym)}")
            raise

    def can_execute(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        """Check whether it runs that operation."""
        return self.rejection(bsym, named=named) is None

    def takes(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        """Check whether it runs that operation, directly or by a transform, or has a gradient rule for it."""
        return self.can_execute(bsym, named=named)

    def arguments(self, bsym: BoundSymbol) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the operator that implements that operation."""
        return bsym.args, bsym.kwargs

    def grad_rule(self, bsym: BoundSymbol, *, named: bool = True) -> Callable[..., Any] | None:
        """Return its gradient rule for that operation, if it accepts it."""
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
    from torch.overrides import resolve_name  # imported here: plugin hooks use this module before torch is imported

    if resolve_name(fn) is None:
        raise TypeError(
            f"replaces= takes functions of torch, whose calls a traced program can be seen making, but {fn!r} is not "
            "one: call the operator in its place"
        )
    return fn


class OperatorExecutor(Executor):
    """An executor that runs operations one by one."""


class FusionExecutor(Executor):
    """An executor that replaces regions of a trace. Subclass it and implement `fusion_pass`."""

    def __init__(self, name: str, *, version: str | None = None):
        super().__init__(name, version=version)
        self._fuel: int | None = None
        self._supported: dict[Any, Callable[..., bool | str] | None] = {}

    def fusion_pass(self, trace: Trace) -> Trace:
        """Return a trace in which the regions it runs are operators of its own."""
        raise ThunderError(f"the fusion executor {self.name} has no fusion_pass: implement it in {type(self).__name__}")

    def register_supported(
        self,
        sym_or_id: Symbol | Any,
        checker: Callable[..., bool | str] | None = None,
        *,
        execution_transform: Callable[..., Any] | None = None,
        grad_transform: Callable[..., Any] | None = None,
    ) -> None:
        """Declare that it can include that operation in fusions."""
        id = id_of(sym_or_id)
        self._supported[id] = checker
        if execution_transform is not None or grad_transform is not None:
            self.register_implementation(
                id, checker=checker, execution_transform=execution_transform, grad_transform=grad_transform
            )
        _changed()

    def fuse_rejection(self, bsym: BoundSymbol) -> str | None:
        """Return why that operation cannot be in a fusion; None if it can, itself or as its decomposition."""
        owner = bsym.sym.executor
        if bsym.sym.is_fusion or owner not in (None, self):  # another executor has claimed it
            return f"is run by {owner.name}" if owner is not None else "is a fusion already"
        reason = self.why_not_fusible(bsym)
        if reason is None or not bsym.subsymbols:
            return reason
        for sub in bsym.subsymbols:
            below = self.fuse_rejection(sub)
            if below is not None:
                return f"{sub.sym.name}: {below}"
        return None

    def why_not_fusible(self, bsym: BoundSymbol) -> str | None:
        """Return why it cannot fuse that operation as it is, regardless of its decomposition; None if it can."""
        id = bsym.sym.id
        if id not in self._supported:
            return "does not support it"
        checker = self._supported[id]
        answer = True if checker is None else self._asked(checker, bsym)
        if answer is True:
            return None
        return answer if isinstance(answer, str) and answer else "its checker said no"

    def takes(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        return self.can_fuse(bsym) or self.can_execute(bsym, named=named)

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Check whether that operation can be in a fusion."""
        return self.fuse_rejection(bsym) is None

    def register_temporary_operation(
        self, name: str, fn: Callable[..., Any], *, inputs: Sequence[Any], outputs: Any, bsyms: Sequence[BoundSymbol]
    ) -> BoundSymbol:
        """Return the bound symbol of a fusion: `fn` computes `outputs` from `inputs` and replaces `bsyms`."""

        def meta(*args: Any) -> Any:
            return outputs

        sym = Symbol(name, meta, id=f"{self.name}.{name}", is_prim=True, executor=self, fn=fn)
        sym.is_fusion = True
        return BoundSymbol(sym, tuple(inputs), {}, outputs, list(bsyms))

    def get_fuel(self, amount: int = 1) -> bool:
        """Use `amount` of the optimization fuel; False when it is used up (for bisecting a wrong fusion)."""
        if self._fuel is None:
            return True
        if self._fuel < amount:
            return False
        self._fuel -= amount
        return True

    def set_fuel(self, amount: int | None) -> None:
        """Limit the number of further fusions; None removes the limit."""
        self._fuel = amount
