# SPDX-License-Identifier: Apache-2.0
"""Operations: a `Symbol` is one, a `BoundSymbol` is one call of it in a trace.

A symbol's `meta` is what it means: for a primitive a function that checks its inputs and makes its output proxies, for
a composite its decomposition into lower operations. What else is known of the operation is attached right below its
declaration with the symbol's decorators: `@sym.grad` or `@sym.vjp` (its gradient rule), `@sym.jvp` (its tangents),
`@sym.batch` (itself over a batch), `@sym.samples`, `@sym.errors`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from thunder.core.binder import Binder
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
    """What passes and executors may assume of an operation."""

    __hash__ = object.__hash__  # each is equal to itself only; passes look for tags all the time

    SHAPE_OP = auto()  # moves no arithmetic: only shape, strides or which elements
    VIEW_OP = auto()  # its result may share memory with its first input
    ELEMENTWISE_OP = auto()
    REDUCTION_OP = auto()
    MATMUL_OP = auto()
    RANDOM_OP = auto()  # draws random numbers: never dropped, merged or reordered among themselves
    GENERATOR_STATE_OP = auto()  # reads or sets where random numbers stand and draws none: one for all of a batch
    IN_PLACE_OP = auto()  # writes to an input: never dropped, merged or moved across a use of that input
    SIDE_EFFECT = auto()  # running it is the point: never dropped, moved or put into a fusion
    DEVICE_SYNC_OP = auto()  # waits for the device
    CHECK_OP = auto()  # a guard of a prologue
    UNPACK_OP = auto()  # binds an input
    GRAD_OP = auto()  # get_grad / put_grad: exists only while a gradient rule runs
    OPAQUE_OP = auto()  # torch's own operation that thunder does not look into
    NON_DIFFERENTIABLE = auto()  # its outputs carry no gradient, by definition
    DONT_DCE = auto()  # kept though nothing reads its result, and may be moved: what names inputs and numbers
    LAYOUT_OF_KERNEL = auto()  # its result's strides are up to the device's kernel: a meta function of torch's errs
    RECOMPUTED = auto()  # backward computes it again rather than keep it: what is drawn from a seed that is an argument


# The explicit mark of an operation through which no gradient flows.
NON_DIFFERENTIABLE = OpTags.NON_DIFFERENTIABLE

_KEEP = frozenset({OpTags.RANDOM_OP, OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.CHECK_OP, OpTags.DONT_DCE})

_STRUCTURAL_IDS = frozenset({"PrimIDs.RETURN", "PrimIDs.HAND_OVER", "PrimIDs.DEL", "PrimIDs.COMMENT"})

_eager_runner: list[Callable[[Symbol, tuple[Any, ...], dict[str, Any]], Any]] = []


def set_eager_runner(runner: Callable[[Symbol, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Says how a symbol that is called outside a trace runs (set by `thunder.execution`)."""
    _eager_runner[:] = [runner]


class Symbol:
    """An operation. Calling it inside a trace records a `BoundSymbol`; calling it on real tensors just runs it."""

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
        #: What passes and executors may rely on besides what it computes; see `thunder.core.facts`.
        self.facts: Facts = _facts(self.tags, facts or {})
        # Whether its calls stay in a trace though nobody uses their results.
        self.must_stay = not _KEEP.isdisjoint(self.tags)
        # Whether they are part of a program's frame (inputs, del, yield, return) and run as they are printed.
        self.is_structural = OpTags.UNPACK_OP in self.tags or (is_prim and str(self.id) in _STRUCTURAL_IDS)
        self.is_return = is_prim and str(self.id) == "PrimIDs.RETURN"
        self.executor = executor
        self.fn = fn
        self.torch_names: tuple[str, ...] = tuple(torch_names)
        self.printer = printer
        self.bind_postprocess = bind_postprocess
        self.is_fusion = False
        self.is_kernel = False  # printed traces show its line alone, without what it decomposes into
        self.bind = Binder(meta, name, explicit=explicit)
        self.grad_rule: Callable[..., Any] | None = None
        self.vjp_rule: Callable[..., Any] | None = None
        self.jvp_rule: Callable[..., Any] | None = None
        self.batch_rule: Callable[..., Any] | None = None
        # `(call, JointTrace) -> forward operations, backward operations`, where one program cannot say both.
        self.joint_rule: Callable[..., Any] | None = None
        # `(call, Forward)`: records the operation together with what gives its tangents, where these are one operation.
        self.joint_jvp_rule: Callable[..., Any] | None = None
        self.sample_generator: Callable[..., Iterator[Any]] | None = None
        self.error_generator: Callable[..., Iterator[Any]] | None = None
        self.view_scatter_rule: Callable[..., Any] | None = None
        self.view_condition: Callable[..., bool] | None = None
        self.reference: Callable[..., Any] | None = None
        self.workspace: Callable[..., int] | None = None  # the bytes that a call needs besides its results
        self.__name__ = name
        self.__qualname__ = name
        self.__doc__ = meta.__doc__
        self.__wrapped__ = meta

    # -- calling ------------------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = state.trace
        if trace is None:
            if not _eager_runner:
                # At run time on purpose: what runs symbols stands above, and says so here (`set_eager_runner`).
                importlib.import_module("thunder.execution")
            return _eager_runner[0](self, args, kwargs)
        frontend = state.frontend
        if frontend is not None:
            return frontend.call_symbol(self, args, kwargs)
        args, kwargs = self.bind(args, kwargs)
        if self.is_prim:
            output = self.meta(*args, **kwargs)
            subsymbols: tuple[BoundSymbol, ...] | list[BoundSymbol] = ()
        else:
            subsymbols = []
            scopes = trace.scopes
            scopes.append(subsymbols)
            try:
                output = self.meta(*args, **kwargs)
            finally:
                scopes.pop()
        bsym = BoundSymbol(self, args, kwargs, output, subsymbols, state.source)
        if self.bind_postprocess is not None:
            self.bind_postprocess(bsym)
            bsym.refresh()
        trace.scopes[-1].append(bsym)
        return output

    # -- what stands below the declaration ----------------------------------------------------------------------------
    def grad(self, rule: F) -> F:
        """Decorator: its gradient, written forward and backward in one function with get_grad and put_grad(s)."""
        self.grad_rule = rule
        return rule

    def vjp(self, rule: F) -> F:
        """Decorator: its gradient as `(g, output, *args, **kwargs) -> a gradient for each positional tensor argument`.

        Short for a `grad` rule that runs the operation, takes the gradient of its (one) output and puts what `rule`
        returns; None means no gradient.
        """
        self.vjp_rule = rule
        return rule

    def jvp(self, rule: F) -> F:
        """Decorator: how its results move with its inputs, as `(t, output, *args, **kwargs) -> tangent of the output`.

        `t` is a tuple with a tangent for each positional parameter (None: it does not move; for a sequence of tensors a
        tuple). With several outputs the rule returns a tuple. It is only needed where the gradient rule, applied twice,
        is not good enough: an operation without one takes its tangents from there.
        """
        self.jvp_rule = rule
        return rule

    def batch(self, rule: F) -> F:
        """Decorator: the operation over a batch, as `(b, *args, **kwargs) -> output`.

        Tensors `a` with `a in b` have the batch as their first dimension, and so have the outputs. `b` is a
        `thunder.passes.batching.Batch`, which helps with the rest. NotImplemented leaves a call to what the
        operation decomposes into.
        """
        self.batch_rule = rule
        return rule

    def samples(self, generator: F) -> F:
        """Decorator: a generator function `(make) -> SampleInput…` of inputs it must take."""
        self.sample_generator = generator
        return generator

    def errors(self, generator: F) -> F:
        """Decorator: a generator function `(make) -> (SampleInput, exception type, message pattern)…`."""
        self.error_generator = generator
        return generator

    def declare(self, **facts: Unpack[FactOptions]) -> None:
        """Add to the facts that the operation was declared with."""
        self.facts = with_facts(self.facts, facts)

    def samples_of(self, other: Symbol) -> None:
        """Take the samples and errors of a symbol with the same arguments: the primitive's, for what only calls it."""
        self.sample_generator, self.error_generator = other.sample_generator, other.error_generator

    def view_scatter(self, rule: F) -> F:
        """Decorator: how a write to its result, a view of its first input, reaches that input.

        `(base, new, *args, **kwargs) -> new base`: `new` is the view's new value, args and kwargs are those of the call
        that made the view, without the input. With several outputs the keyword `index` says which of them was written.
        """
        self.view_scatter_rule = rule
        return rule

    def view_when(self, condition: F) -> F:
        """Decorator: says of a call, by its arguments, whether its result is a view, where not all calls' are."""
        self.view_condition = condition
        return condition

    def gives_view(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the result of such a call may share memory with its first input."""
        if OpTags.VIEW_OP not in self.tags:
            return False
        return self.view_condition is None or self.view_condition(*args, **kwargs)

    @property
    def differentiable(self) -> bool:
        """False for operations that carry the explicit mark that no gradient flows through them."""
        return OpTags.NON_DIFFERENTIABLE not in self.tags

    def __repr__(self) -> str:
        return f"<Symbol {self.module + '.' if self.module else ''}{self.name}>"

    def __thunder_text__(self, context: PrintContext) -> str:
        """How it is written where it is an argument."""
        return context.function(self)

    def __reduce__(self) -> Any:
        if self.module is None:
            return object.__reduce__(self)
        if self.meta.__module__.startswith(self.module):
            return (_symbol_by_name, (self.module, self.name))
        return (_symbol_by_name, (self.module, self.name, self.meta.__module__))


_EXPENSIVE = frozenset(
    {OpTags.REDUCTION_OP, OpTags.MATMUL_OP, OpTags.OPAQUE_OP, OpTags.RANDOM_OP, OpTags.DEVICE_SYNC_OP}
)
_CHEAP = frozenset({OpTags.ELEMENTWISE_OP, OpTags.VIEW_OP})


def _facts(tags: frozenset[OpTags], options: FactOptions) -> Facts:
    """Return the facts of an operation: what is declared, else what follows from its tags."""
    cheap: Cost = "as its parts" if tags.isdisjoint(_CHEAP) else "cheap"
    return facts_of(
        view="always" if OpTags.VIEW_OP in tags else "never",
        cost=cheap if tags.isdisjoint(_EXPENSIVE) else "expensive",
        options=options,
    )


def _symbol_by_name(module: str, name: str, declared_in: str | None = None) -> Symbol:
    if declared_in is not None:
        importlib.import_module(declared_in)  # a primitive of a language's family, which is loaded with the language
    # At run time on purpose: a pickled symbol is found by its name, in whatever module that is.
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


class BoundSymbol:
    """One operation of a trace: a symbol, its arguments, its output, and what it decomposes into.

    What passes ask over and over is found out once. But for `has_effect` the answers are slots that are filled when
    somebody first asks (`__getattr__`); so are `subsymbols` where they are to be renamed first, as most passes do not
    look at them.
    """

    __slots__ = ("_renamed", "arg_names", "args", "has_effect", "inner_numbers", "key", "kwargs", "out_names",
                 "output", "source", "subsymbols", "sym")  # fmt: skip

    #: The names of the values it reads.
    arg_names: tuple[str, ...]
    #: The names of the values it makes: those of its output that are not arguments.
    out_names: tuple[str, ...]
    #: Whether it, or anything it decomposes into, has to run though its result is unused.
    has_effect: bool
    #: The names of the symbolic numbers that its parts read besides its arguments: those that tensors bring along.
    inner_numbers: frozenset[str]
    #: What is equal exactly for equal calls; it is hashable where all arguments are.
    key: Any
    #: The operations that it decomposes into. But for symbolic numbers they read what it is given, or make.
    subsymbols: Sequence[BoundSymbol]
    # Of whose parts, and by what, its own are renamed, while they are not there.
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
        """Recompute what is cached about the call, after it has been changed in place."""
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
        """The proxies among its arguments."""
        found = proxies_in(self.args)
        return proxies_in(self.kwargs, found) if self.kwargs else found

    @property
    def flat_outs(self) -> list[Proxy]:
        """The proxies in its output."""
        return proxies_in(self.output)

    @property
    def like(self) -> BoundSymbol:
        """Itself, or the call under whose names its parts still are: for who only asks which operations they are."""
        op = self
        while (renamed := op._renamed) is not None and renamed[2] is not None:
            op = renamed[0]
        return op

    def replace(self, **changes: Any) -> BoundSymbol:
        """A copy with some of sym, args, kwargs, output, subsymbols, source changed."""
        if "subsymbols" not in changes:
            changes["subsymbols"] = self.subsymbols
        values = {name: getattr(self, name) for name in ("sym", "args", "kwargs", "output", "source")}
        return BoundSymbol(**{**values, **changes})

    def run_by(self, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundSymbol:
        """The call of `sym` that runs it, with the same values in its arguments."""
        new = object.__new__(BoundSymbol)
        new.sym, new.args, new.kwargs, new.output = sym, args, kwargs, self.output
        new.source, new.subsymbols, new._renamed = self.source, (self,), None
        new.arg_names, new.out_names = self.arg_names, self.out_names
        new.has_effect = sym.must_stay or self.has_effect
        return new

    def substitute(
        self, mapping: dict[str, Any], fresh: dict[str, str] | None = None, source: SourceLine | None = None
    ) -> BoundSymbol:
        """The same call with each proxy whose name is in `mapping` replaced, in arguments, outputs and below.

        An output is replaced only by another proxy: a call cannot assign to a number. Where there is nothing to replace
        it is this very call. With `fresh`, names by names, it is another call: values that `mapping` does not know get
        these names, and are added to it; `source` is the line that it is called at.

        What is below is replaced when it is asked for. So a mapping may grow while a program is walked through, by
        values that come later, and must not change otherwise.
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
        """The tensors among its arguments."""
        return [p for p in self.flat_args if isinstance(p, TensorProxy)]

    def __str__(self) -> str:
        return "\n".join(bound_symbol_lines(self))

    __repr__ = __str__


# -- what is asked of operations --------------------------------------------------------------------------------------
def _rename_subsymbols(bsym: BoundSymbol) -> None:
    renamed = bsym._renamed
    if renamed is None:  # another thread was first
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
