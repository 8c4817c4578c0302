# SPDX-License-Identifier: Apache-2.0
"""Symbols and bound symbols: a `Symbol` is an operator, and a `BoundSymbol` is one call of it in a trace.

The function `meta` defines a symbol. For a primitive, `meta` checks the inputs and creates the output proxies. For a
composite, `meta` is the decomposition into other operations. Rules are attached below the declaration with decorators
of the symbol: `@sym.grad` or `@sym.vjp` (gradient rule), `@sym.jvp` (tangents), `@sym.batch` (batching rule),
`@sym.samples` and `@sym.errors`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from thunder.core.binder import Binder
from thunder.core.errors import name_source
from thunder.core.facts import Cost, FactOptions, Facts, facts_of, with_facts
from thunder.core.printer import PrintContext, bound_symbol_lines
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import SourceLine, state
from thunder.core.structures import ATOMS, argument_key, map_proxies, proxies_in, renamed

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "NON_DIFFERENTIABLE",
    "BoundSymbol",
    "OpTags",
    "Symbol",
    "argument_key",
    "map_proxies",
    "proxies_in",
    "renamed",
    "set_eager_runner",
]

F = TypeVar("F", bound=Callable[..., Any])


class OpTags(Enum):
    """Properties of an operation that passes and executors may assume."""

    __hash__ = object.__hash__  # faster than Enum's; passes look up tags very often

    SHAPE_OP = auto()  # does no arithmetic: changes only shape or strides, or selects elements
    VIEW_OP = auto()  # its result may share memory with its first input
    ELEMENTWISE_OP = auto()
    REDUCTION_OP = auto()
    MATMUL_OP = auto()
    RANDOM_OP = auto()  # draws random numbers: never dropped or merged; random operations keep their order
    GENERATOR_STATE_OP = auto()  # reads or sets a generator's state, but draws no numbers: runs once for a whole batch
    IN_PLACE_OP = auto()  # writes to an input: never dropped, merged or moved across a use of that input
    SIDE_EFFECT = auto()  # runs for its side effect: never dropped, moved or fused
    COLLECTIVE = auto()  # communicates with other processes: never dropped or merged; collectives keep their order
    DEVICE_SYNC_OP = auto()  # synchronizes with the device
    CHECK_OP = auto()  # a guard of a prologue
    UNPACK_OP = auto()  # binds an input
    GRAD_OP = auto()  # get_grad / put_grad: exists only while a gradient rule runs
    OPAQUE_OP = auto()  # an operation of torch for which thunder has no symbol
    NON_DIFFERENTIABLE = auto()  # its outputs carry no gradient, by definition
    DONT_DCE = auto()  # kept even if its result is unused, but may be moved: it binds inputs or numbers
    LAYOUT_OF_KERNEL = auto()  # the kernel decides the strides of the result: those of torch's meta function are wrong
    RECOMPUTED = auto()  # recomputed in backward instead of saved: draws random numbers from a seed in its arguments


# A short name for the tag of operations through which no gradient flows.
NON_DIFFERENTIABLE = OpTags.NON_DIFFERENTIABLE

_KEEP = frozenset({
    OpTags.RANDOM_OP, OpTags.COLLECTIVE, OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.CHECK_OP, OpTags.DONT_DCE,
})  # fmt: skip

_STRUCTURAL_IDS = frozenset({"PrimIDs.RETURN", "PrimIDs.HAND_OVER", "PrimIDs.DEL", "PrimIDs.COMMENT"})

_eager_runner: list[Callable[[Symbol, tuple[Any, ...], dict[str, Any]], Any]] = []


def set_eager_runner(runner: Callable[[Symbol, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Set the function that runs symbols that are called outside a trace. `thunder.execution` calls this function."""
    _eager_runner[:] = [runner]


class Symbol:
    """An operator. A call inside a trace records a `BoundSymbol`; a call on real tensors, outside a trace, runs it."""

    def __init__(
        self,
        name: str,
        meta: Callable[..., Any],
        *,
        id: Any = None,
        module: str | None = None,
        is_prim: bool = False,
        tags: Iterable[OpTags] = (),
        executor: Any = None,
        fn: Callable[..., Any] | None = None,
        torch_names: Sequence[str] = (),
        explicit: bool = False,
        printer: Callable[..., list[str]] | None = None,
        bind_postprocess: Callable[[BoundSymbol], None] | None = None,
        facts: FactOptions | None = None,
    ):
        self.name = name
        self.id = name if id is None else id
        self.meta = meta
        self.module = module
        self.is_prim = is_prim
        self.tags: frozenset[OpTags] = frozenset(tags)
        #: Declared properties that passes and executors may rely on; see `thunder.core.facts`.
        self.facts: Facts = _facts(self.tags, facts or {})
        # True if calls stay in a trace even if their results are unused.
        self.must_stay = not _KEEP.isdisjoint(self.tags)
        # True for operations that only give a program its structure (inputs, del, return …). No executor claims them.
        self.is_structural = OpTags.UNPACK_OP in self.tags or (is_prim and str(self.id) in _STRUCTURAL_IDS)
        self.is_return = is_prim and str(self.id) == "PrimIDs.RETURN"
        self.executor = executor
        self.fn = fn
        self.torch_names: tuple[str, ...] = tuple(torch_names)
        self.printer = printer
        self.bind_postprocess = bind_postprocess
        self.is_fusion = False
        self.is_kernel = False  # printed traces do not show its decomposition
        self.bind = Binder(meta, name, explicit=explicit)
        self.grad_rule: Callable[..., Any] | None = None
        self.vjp_rule: Callable[..., Any] | None = None
        self.jvp_rule: Callable[..., Any] | None = None
        self.batch_rule: Callable[..., Any] | None = None
        # `(call, JointTrace) -> forward operations, backward operations`: a rule for what `grad` cannot express.
        self.joint_rule: Callable[..., Any] | None = None
        # `(call, Forward)`: records one operation that computes both the results and their tangents.
        self.joint_jvp_rule: Callable[..., Any] | None = None
        self.sample_generator: Callable[..., Iterator[Any]] | None = None
        self.error_generator: Callable[..., Iterator[Any]] | None = None
        self.view_scatter_rule: Callable[..., Any] | None = None
        self.view_condition: Callable[..., bool] | None = None
        self.reference: Callable[..., Any] | None = None
        self.workspace: Callable[..., int] | None = None  # temporary memory of a call in bytes
        # Whether a call can be part of a CUDA graph: True, a reason why not, or a function of the arguments.
        self.capturable: bool | str | Callable[..., bool | str] = True
        self.writer: Symbol | None = None  # the operator that writes the result to its argument `out`
        self.__name__ = name
        self.__qualname__ = name
        self.__doc__ = meta.__doc__
        self.__wrapped__ = meta

    # -- calling ------------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = state.trace
        if trace is None:
            if not _eager_runner:
                # Imported by name at run time: the module belongs to a higher layer, and calls `set_eager_runner`.
                importlib.import_module("thunder.execution")
            return _eager_runner[0](self, args, kwargs)
        frontend = state.frontend
        if frontend is not None:
            return frontend.call_symbol(self, args, kwargs)
        if state.parts is not None:
            return state.parts.call_symbol(self, args, kwargs)
        return self.record(args, kwargs)

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call into the current trace, and return its output."""
        trace: Any = state.trace
        args, kwargs = self.bind(args, kwargs)
        subsymbols: tuple[BoundSymbol, ...] | list[BoundSymbol] = ()
        try:
            if self.is_prim:
                output = self.meta(*args, **kwargs)
            else:
                subsymbols = []
                scopes = trace.scopes
                scopes.append(subsymbols)
                try:
                    output = self.meta(*args, **kwargs)
                finally:
                    scopes.pop()
        except Exception as error:
            if getattr(self.executor, "plugin", None) is not None:
                name_source(
                    error, f"the meta function of {self.name} of the executor {self.executor.name!r}", self.executor
                )
            raise
        bsym = BoundSymbol(self, args, kwargs, output, subsymbols, state.source)
        if self.bind_postprocess is not None:
            self.bind_postprocess(bsym)
            bsym.refresh()
        trace.scopes[-1].append(bsym)
        return output

    # -- rules --------------------------------------------------------------------------------------------------------
    def grad(self, rule: F) -> F:
        """Register the gradient rule: one function for forward and backward, which calls get_grad and put_grad(s)."""
        self.grad_rule = rule
        return rule

    def vjp(self, rule: F) -> F:
        """Register the gradient rule as `(g, output, *args, **kwargs) -> gradients of the positional tensor arguments`.

        This is a short form of `grad` for operations with one output. `g` is the cotangent of `output`. A gradient that
        is None means no gradient.
        """
        self.vjp_rule = rule
        return rule

    def jvp(self, rule: F) -> F:
        """Register the forward-mode rule as `(t, output, *args, **kwargs) -> tangent of the output`.

        `t` is a tuple with a tangent for each positional parameter (None for zero; a tuple for a sequence of tensors).
        With several outputs the rule returns a tuple. Without a rule, tangents are computed by applying the gradient
        rule twice. Register a rule only if that result is too slow or not accurate enough.
        """
        self.jvp_rule = rule
        return rule

    def batch(self, rule: F) -> F:
        """Register the batching rule as `(b, *args, **kwargs) -> output`.

        `b` is a `thunder.passes.batching.Batch` with helper methods. A tensor `a` is batched if `a in b`: its first
        dimension is the batch. The first dimension of each output is the batch too. If a rule returns NotImplemented,
        the operation's decomposition is batched instead.
        """
        self.batch_rule = rule
        return rule

    def samples(self, generator: F) -> F:
        """Register a generator function `(make) -> SampleInput…`; it yields inputs that the operation must accept."""
        self.sample_generator = generator
        return generator

    def errors(self, generator: F) -> F:
        """Register a generator function `(make) -> (SampleInput, exception type, message pattern)…`."""
        self.error_generator = generator
        return generator

    def declare(self, **facts: Unpack[FactOptions]) -> None:
        """Add `facts` to the facts of the operation's declaration."""
        self.facts = with_facts(self.facts, facts)

    def samples_of(self, other: Symbol) -> None:
        """Use the samples and errors of `other`, e.g. a primitive with the same arguments that this composite calls."""
        self.sample_generator, self.error_generator = other.sample_generator, other.error_generator

    def view_scatter(self, rule: F) -> F:
        """Register the rule that propagates a write from a view to its base.

        The view is the operation's result, and the base is its first input. The rule has the signature
        `(base, new, *args, **kwargs) -> new base`. `new` is the view's new value. `args` and `kwargs` are the other
        arguments of the call that created the view. With several outputs, the keyword `index` is the index of the
        output that was written to.
        """
        self.view_scatter_rule = rule
        return rule

    def view_when(self, condition: F) -> F:
        """Register a condition on the arguments; the result is a view only for arguments that fulfil the condition."""
        self.view_condition = condition
        return condition

    def gives_view(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Check whether the result of a call with these arguments may alias its first input."""
        if OpTags.VIEW_OP not in self.tags:
            return False
        return self.view_condition is None or self.view_condition(*args, **kwargs)

    @property
    def differentiable(self) -> bool:
        """True if gradients flow through the operation; False if it has the tag NON_DIFFERENTIABLE."""
        return OpTags.NON_DIFFERENTIABLE not in self.tags

    def __repr__(self) -> str:
        return f"<Symbol {self.module + '.' if self.module else ''}{self.name}>"

    def __thunder_text__(self, context: PrintContext) -> str:
        """Return the expression that printed traces contain for a symbol that is an argument."""
        return context.function(self)

    def __reduce__(self) -> Any:
        if self.module is None:
            return object.__reduce__(self)
        if self.meta.__module__.startswith(self.module):
            return (_symbol_by_name, (self.module, self.name))
        return (_symbol_by_name, (self.module, self.name, self.meta.__module__))


_EXPENSIVE = frozenset(
    {OpTags.REDUCTION_OP, OpTags.MATMUL_OP, OpTags.OPAQUE_OP, OpTags.RANDOM_OP, OpTags.COLLECTIVE,
     OpTags.DEVICE_SYNC_OP}
)  # fmt: skip
_CHEAP = frozenset({OpTags.ELEMENTWISE_OP, OpTags.VIEW_OP})


def _facts(tags: frozenset[OpTags], options: FactOptions) -> Facts:
    """Return the facts of an operation: the declared facts, and defaults that follow from its tags."""
    cheap: Cost = "as its parts" if tags.isdisjoint(_CHEAP) else "cheap"
    return facts_of(
        view="always" if OpTags.VIEW_OP in tags else "never",
        cost=cheap if tags.isdisjoint(_EXPENSIVE) else "expensive",
        options=options,
    )


def _symbol_by_name(module: str, name: str, declared_in: str | None = None) -> Symbol:
    if declared_in is not None:
        importlib.import_module(declared_in)  # importing this module declares the primitive
    # Imported by name at run time: a pickled symbol may belong to any module.
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


class BoundSymbol:
    """One operation of a trace: a symbol, its arguments, its output, and its decomposition.

    Values that passes often use are cached in slots. `__getattr__` fills these slots at their first use, except for
    `has_effect`, which `__init__` computes. The `subsymbols` of a substituted operation are also substituted at their
    first use, because most passes do not read them.
    """

    __slots__ = ("_renamed", "arg_names", "args", "has_effect", "inner_numbers", "key", "kwargs", "out_names",
                 "output", "source", "subsymbols", "sym")  # fmt: skip

    #: The names of the values that the operation reads.
    arg_names: tuple[str, ...]
    #: The names of the values that the operation computes. An output that is also an argument does not count.
    out_names: tuple[str, ...]
    #: True if the operation, or an operation of its decomposition, must run even if its result is unused.
    has_effect: bool
    #: The names of symbolic numbers that the decomposition reads from tensors' shapes, and that are not arguments.
    inner_numbers: frozenset[str]
    #: A key that is equal for equal calls only; it is hashable if all arguments are.
    key: Any
    #: The decomposition. It reads only the operation's arguments, its own results, and symbolic numbers.
    subsymbols: Sequence[BoundSymbol]
    # A pending substitution of `subsymbols`: the operation that still has the old ones, `mapping` and `fresh`.
    _renamed: tuple[BoundSymbol, dict[str, Any], dict[str, str] | None] | None

    def __init__(
        self,
        sym: Symbol,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        subsymbols: Sequence[BoundSymbol] = (),
        source: SourceLine | None = None,
    ):
        self.sym = sym
        self.args = args
        self.kwargs = kwargs
        self.output = output
        self.subsymbols = subsymbols
        self.source = source
        self._renamed = None
        effect = sym.must_stay
        for part in subsymbols:
            effect = effect or part.has_effect
        self.has_effect = effect

    def refresh(self) -> None:
        """Recompute the caches after an in-place change."""
        self.has_effect = self.sym.must_stay or any(part.has_effect for part in self.subsymbols)
        _find_names(self)

    def __getattr__(self, name: str) -> Any:
        find = _ANSWERS.get(name)
        if find is None:
            raise AttributeError(f"operations of a trace have no attribute {name!r}")
        find(self)
        return getattr(self, name)

    @property
    def id(self) -> Any:
        """The symbol's id."""
        return self.sym.id

    @property
    def flat_args(self) -> list[Proxy]:
        """The proxies in its arguments."""
        found = proxies_in(self.args)
        return proxies_in(self.kwargs, found) if self.kwargs else found

    @property
    def flat_outs(self) -> list[Proxy]:
        """The proxies in its output."""
        return proxies_in(self.output)

    @property
    def like(self) -> BoundSymbol:
        """The operation of which this one is a renamed copy, or this operation itself.

        Its subsymbols already exist, so passes that ignore the names of values can read them without a substitution.
        """
        op = self
        while (renamed := op._renamed) is not None and renamed[2] is not None:
            op = renamed[0]
        return op

    def replace(self, **changes: Any) -> BoundSymbol:
        """Return a copy in which `changes` replace sym, args, kwargs, output, subsymbols or source."""
        if "subsymbols" not in changes:
            changes["subsymbols"] = self.subsymbols
        values = {name: getattr(self, name) for name in ("sym", "args", "kwargs", "output", "source")}
        return BoundSymbol(**{**values, **changes})

    def run_by(self, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundSymbol:
        """Return a call of the executor's operator `sym`, which computes this operation's output values."""
        new = object.__new__(BoundSymbol)
        new.sym, new.args, new.kwargs, new.output = sym, args, kwargs, self.output
        new.source, new.subsymbols, new._renamed = self.source, (self,), None
        new.arg_names, new.out_names = self.arg_names, self.out_names
        new.has_effect = sym.must_stay or self.has_effect
        return new

    def substitute(
        self, mapping: dict[str, Any], fresh: dict[str, str] | None = None, source: SourceLine | None = None
    ) -> BoundSymbol:
        """Replace each proxy whose name is in `mapping`, in arguments, outputs and the decomposition.

        An output is replaced only by another proxy: a call cannot assign to a number. If `fresh` is None and there is
        nothing to replace, return this object. `fresh` maps old names to new names. If it is passed, return a copy in
        which values that are not in `mapping` are renamed; the renamed values are added to `mapping`. `source` is the
        line of user code for the new call.

        The decomposition is substituted at its first use. Until then, callers may add entries to `mapping` for values
        that are computed later, but must not change or remove entries.
        """
        if fresh is None:
            keys = mapping.keys()
            if (
                keys.isdisjoint(self.arg_names)
                and keys.isdisjoint(self.out_names)
                and ((self._renamed is None and not self.subsymbols) or keys.isdisjoint(self.inner_numbers))
            ):
                return self

        def replaced(p: Proxy) -> Any:
            return renamed(p, mapping, fresh)

        new = object.__new__(BoundSymbol)
        new.sym = self.sym
        new.args = tuple([
            renamed(x, mapping, fresh) if type(x) is TensorProxy
            else x if type(x) in ATOMS else map_proxies(x, replaced)
            for x in self.args
        ])  # fmt: skip
        new.kwargs = map_proxies(self.kwargs, replaced) if self.kwargs else self.kwargs
        output = self.output
        if type(output) is TensorProxy and type(value := renamed(output, mapping, fresh)) is TensorProxy:
            output = value
        elif output is not None:
            output = map_proxies(output, lambda p: value if isinstance(value := replaced(p), Proxy) else p)
        new.output = output
        if fresh is None:
            new.arg_names = _arg_names(new)
        else:
            new.arg_names = tuple([mapping[name].name if name in mapping else name for name in self.arg_names])
        new.out_names = _out_names(output, new.arg_names)
        new.source = source or self.source
        new.has_effect = self.has_effect
        if self._renamed is not None or self.subsymbols:
            new._renamed = self, mapping, fresh
        else:
            new.subsymbols, new._renamed = (), None
        return new

    def tensors(self) -> list[TensorProxy]:
        """Return the tensors in its arguments."""
        return [p for p in self.flat_args if isinstance(p, TensorProxy)]

    def __str__(self) -> str:
        return "\n".join(bound_symbol_lines(self))

    __repr__ = __str__


# -- lazily computed attributes ---------------------------------------------------------------------------------------
def _rename_subsymbols(bsym: BoundSymbol) -> None:
    renamed = bsym._renamed
    if renamed is None:  # another thread has already substituted them
        return
    source, mapping, fresh = renamed
    line = None if fresh is None else bsym.source
    bsym.subsymbols = [part.substitute(mapping, fresh, line) for part in source.subsymbols]
    bsym._renamed = None


def _find_names(bsym: BoundSymbol) -> None:
    bsym.arg_names = given = _arg_names(bsym)
    bsym.out_names = _out_names(bsym.output, given)


def _arg_names(bsym: BoundSymbol) -> tuple[str, ...]:
    names: list[str] = []
    for x in bsym.args:
        if type(x) is TensorProxy:
            names.append(x.name)
        elif type(x) not in ATOMS:
            names += [p.name for p in proxies_in(x)]
    if bsym.kwargs:
        names += [p.name for p in proxies_in(bsym.kwargs)]
    return tuple(names)


def _out_names(output: Any, given: tuple[str, ...]) -> tuple[str, ...]:
    if type(output) is TensorProxy:
        return () if output.name in given else (output.name,)
    if output is None:
        return ()
    return tuple(dict.fromkeys([p.name for p in proxies_in(output) if p.name not in given]))


def _find_inner_numbers(bsym: BoundSymbol) -> None:
    tensors = [p for p in (*bsym.flat_args, *bsym.flat_outs) if isinstance(p, TensorProxy)]
    found: set[str] = set()
    if any(type(n) is not int for p in tensors for n in p.shape):
        inside = set(bsym.arg_names)
        for part in bsym.subsymbols:
            found.update(part.inner_numbers - inside)
            found.update([name for name in part.arg_names if name not in inside])
            inside.update(part.out_names)
    bsym.inner_numbers = frozenset(found)


def _find_key(bsym: BoundSymbol) -> None:
    args = tuple([x.name if type(x) is TensorProxy else argument_key(x) for x in bsym.args])
    bsym.key = bsym.sym.id, args, argument_key(bsym.kwargs) if bsym.kwargs else None


_ANSWERS: dict[str, Callable[[BoundSymbol], None]] = {
    "arg_names": _find_names, "out_names": _find_names, "inner_numbers": _find_inner_numbers, "key": _find_key,
    "subsymbols": _rename_subsymbols,
}  # fmt: skip
