# SPDX-License-Identifier: Apache-2.0
"""The printer of traces: it writes Python source that runs and rebuilds the same program.

An operation prints as `out = module.name(args)  # out: "type"`, with its decomposition as indented comments below.
Objects that have no literal get a name in the `PrintContext`, the namespace in which the source runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from thunder.core.devices import Device
from thunder.core.dtypes import dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.structures import proxies_in
from thunder.core.symint.numbers import SymbolicNumber

__all__ = ["RESERVED_NAMES", "PrintContext", "bound_symbol_lines", "call_line", "printable", "trace_text"]

# Names that printed traces use for modules and builtins; a value with one of these names would shadow them.
RESERVED_NAMES = frozenset({
    "torch", "thunder", "ltorch", "lnp", "clang", "prims", "dtypes", "devices", "Tensor", "Group", "operator",
    "no_autocast", "bool", "int", "float", "complex", "str", "slice", "set", "__debug__",
})  # fmt: skip


class PrintedSymbol(Protocol):
    """The attributes of a symbol (`core/symbol.py`) that the printer reads."""

    name: str
    module: str | None
    fn: Callable[..., Any] | None
    is_kernel: bool
    printer: Callable[..., list[str]] | None


class PrintedCall(Protocol):
    """The attributes of an operation (`core/symbol.py`) that the printer reads."""

    @property
    def sym(self) -> PrintedSymbol: ...
    @property
    def args(self) -> Sequence[Any]: ...
    @property
    def kwargs(self) -> dict[str, Any]: ...
    @property
    def output(self) -> Any: ...
    @property
    def subsymbols(self) -> Sequence[PrintedCall]: ...


class PrintedTrace(Protocol):
    """The attributes of a trace (`core/trace.py`) that the printer reads."""

    name: str
    names: set[str]
    signature: str | None
    decorated: bool

    @property
    def args(self) -> Sequence[Proxy]: ...
    @property
    def bound_symbols(self) -> Sequence[PrintedCall]: ...
    @property
    def provenance(self) -> object: ...


INDENT = "  "

# The alias of each module in printed traces, and the import statement that binds the alias.
_MODULES: dict[str, tuple[str, str]] = {
    "thunder.torch": ("ltorch", "import thunder.torch as ltorch"),
    "thunder.numpy": ("lnp", "import thunder.numpy as lnp"),
    "thunder.clang": ("clang", "import thunder.clang as clang"),
    "thunder.core.prims": ("prims", "import thunder.core.prims as prims"),
    "thunder.executors.torchex": ("torchex", "import thunder.executors.torchex as torchex"),
    "torch.Tensor": ("Tensor", "from torch import Tensor"),
}


class PrintContext:
    """The names that printed source refers to: its `imports`, and `objects` by name.

    Operators of executors are bound to the functions that run them. With `symbols` they are bound to their symbols,
    which also run on tensors and can be traced again.
    """

    def __init__(self, *, symbols: bool = False, types: bool = True) -> None:
        self.symbols = symbols
        self.types = types  # whether lines end with the types of their results
        self.imports: set[str] = set()
        self.objects: dict[str, Any] = {}
        self.taken: set[str] = set()  # names of values, which must not be used for objects
        self._functions: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def for_comments(self) -> PrintContext:
        """Return a context for comments, which need no imports; both contexts share the names of objects."""
        other = PrintContext(symbols=self.symbols, types=self.types)
        other._functions, other._names, other._counts = self._functions, self._names, self._counts
        other.objects, other.taken = self.objects, self.taken
        return other

    def module(self, module: str) -> str:
        """Return the alias of a module and add its import."""
        alias, line = _MODULES.get(module, (module, f"import {module}"))
        self.imports.add(line)
        return alias

    def name_of(self, x: Any, base: str) -> str:
        """Return the name of an object that has no literal; the same object always gets the same name."""
        known = self._names.get(id(x))
        if known is not None:
            return known
        base = "".join([c if c.isalnum() else "_" for c in base])
        n = self._counts.get(base, 0)
        while (name := f"_{base}_{n}") in self.taken:
            n += 1
        self._counts[base] = n + 1
        self._names[id(x)] = name
        self.objects[name] = x
        return name

    def function(self, sym: PrintedSymbol) -> str:
        """Return the expression for the function of `sym`."""
        if sym.module is not None:
            return f"{self.module(sym.module)}.{sym.name}"
        target = sym.fn if sym.fn is not None else sym
        own = sym.name not in self.taken and self._functions.setdefault(sym.name, target) is target
        name = sym.name if own else self.name_of(target, sym.name)
        self.objects[name] = sym if self.symbols else target
        return name


def _identifier(cls: type) -> str:
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}_{cls.__qualname__}"
    return "".join(c if c.isalnum() else "_" for c in name)


def _reads_back(x: complex) -> bool:
    """Check whether evaluating `repr(x)`, a sum, returns the same number. It does not if `x` has inf, nan or -0.0."""
    signs = [math.copysign(1, part) for part in (x.real, x.imag) if part == 0]
    return math.isfinite(x.real) and math.isfinite(x.imag) and -1 not in signs and not (x.real == 0 and x.imag < 0)


def _number(x: Any) -> str:
    if isinstance(x, complex) and not _reads_back(x):
        return f"complex({_number(x.real)}, {_number(x.imag)})"
    if isinstance(x, float) and not math.isfinite(x):
        return f'float("{x}")'
    return repr(x)


def printable(x: Any, context: PrintContext) -> str:
    """Return `x` as a Python expression."""
    kind = type(x)
    if isinstance(x, Proxy):
        return x.name
    if kind in (bool, int, float, complex):
        return _number(x)
    if x is None or x is Ellipsis or kind is str:
        return repr(x) if x is not Ellipsis else "..."
    if kind is list:
        return f"[{', '.join([printable(i, context) for i in x])}]"
    if kind is tuple:
        items = [printable(i, context) for i in x]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if kind is dict:
        return f"{{{', '.join([f'{printable(k, context)}: {printable(v, context)}' for k, v in x.items()])}}}"
    if kind is slice:
        return f"slice({', '.join([printable(i, context) for i in (x.start, x.stop, x.step)])})"
    if kind is set:
        return f"{{{', '.join([printable(i, context) for i in x])}}}" if x else "set()"
    return _special(x, kind, context)


def _special(x: Any, kind: type, context: PrintContext) -> str:
    if isinstance(x, dtype):
        context.imports.add("import thunder.core.dtypes as dtypes")
        return f"dtypes.{'bool8' if x.name == 'bool' else x.name}"
    if isinstance(x, Device):
        context.imports.add("import thunder.core.devices as devices")
        return repr(x)
    if kind.__module__ == "torch":
        if kind.__name__ == "dtype":
            return str(x)
        if kind.__name__ == "device":
            return f'torch.device("{x}")'
        if kind.__name__ == "Size":
            return printable(tuple(x), context)
    if x is bool or x is int or x is float or x is complex or x is str:
        return x.__name__
    text = getattr(kind, "__thunder_text__", None)  # symbols define this method
    if text is not None:
        return text(x, context)  # type: ignore[no-any-return]
    if isinstance(x, SymbolicNumber):
        text = x.text()
        if "math." in text:
            context.imports.add("import math")
        return text
    if isinstance(x, tuple) and proxies_in(x):
        # A named tuple that contains values of the trace; torch.return_types are constructed from one sequence.
        items = ", ".join([printable(i, context) for i in x])
        return f"{context.name_of(kind, kind.__name__)}({items if hasattr(x, '_fields') else f'({items})'})"
    return context.name_of(x, getattr(x, "__name__", "").strip("<>_") or _identifier(kind))


def _output(x: Any, given: set[str]) -> str:
    """Return the left side of an assignment: literals and repeated names become `_`."""
    if isinstance(x, Proxy):
        return x.name
    if isinstance(x, (tuple, list)):
        items = [_output(i, given) for i in x]
        if isinstance(x, list):
            return f"[{', '.join(items)}]"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    return "_"


def type_comment(x: Any) -> str:
    """Return the comment with a value's type: `# t0: "cpu f32[2, 2]"`."""
    return f'# {x.name}: "{x.type_string()}"'


def call_line(bsym: PrintedCall, context: PrintContext) -> str:
    """Return the line of one operation, without its decomposition."""
    args = [printable(a, context) for a in bsym.args]
    args += [f"{k}={printable(v, context)}" for k, v in bsym.kwargs.items()]
    call = f"{context.function(bsym.sym)}({', '.join(args)})"
    out = bsym.output
    if out is None or (isinstance(out, (tuple, list, dict)) and not out):
        return call
    if isinstance(out, dict):
        # A dict cannot be an assignment target: unpack its values in order.
        return f"({', '.join([_output(v, set()) for v in out.values()])},) = {call}.values()"
    line = f"{_output(out, set())} = {call}"
    return f"{line}  {type_comment(out)}" if context.types and isinstance(out, TensorProxy) else line


def call_with_programs(bsym: PrintedCall, context: PrintContext) -> list[str]:
    """Return the line of an operation, and the traces of programs in its arguments as comments below it."""
    lines = [call_line(bsym, context)]
    aside = context.for_comments()
    for program in bsym.args:
        trace = None if isinstance(program, Proxy) else getattr(program, "trace", None)
        if trace is not None:
            lines.append(f"  # {program.__name__}({', '.join(p.name for p in trace.args)}):")
            for op in trace.bound_symbols:
                lines += [f"    # {line}" for line in bound_symbol_lines(op, depth=0, context=aside)]
    return lines


def bound_symbol_lines(
    bsym: PrintedCall, *, depth: int | None = None, kernels: bool = False, context: PrintContext | None = None
) -> list[str]:
    """Return the lines of one operation: its call, then its decomposition as indented comments.

    The decomposition of a kernel is shown only with `kernels`.
    """
    context = context or PrintContext()
    if bsym.sym.printer is not None:
        lines = list(bsym.sym.printer(bsym, context))
    else:
        lines = [call_line(bsym, context)]
    if depth is None or depth > 0:
        below = None if depth is None else depth - 1
        comment_context = context.for_comments()
        comments: list[str] = []
        for sub in bsym.subsymbols:
            for line in bound_symbol_lines(sub, depth=below, kernels=kernels, context=comment_context):
                indent = len(line) - len(line.lstrip())
                text = line.lstrip()
                comments.append(f"{INDENT}{' ' * indent}{text if indent or text.startswith('#') else '# ' + text}")
        # Comments of a kernel are rendered even if they are not shown: names of objects must not depend on `kernels`.
        lines += comments if kernels or not bsym.sym.is_kernel else []
    return lines


def _header(trace: PrintedTrace, context: PrintContext, decorators: bool) -> list[str]:
    lines = [f"# Constructed by {trace.provenance}"] if trace.provenance else []
    lines += sorted(context.imports - {"import torch"}, key=lambda line: line.split()[1])
    lines.append("import torch")
    if decorators:
        lines += ["from thunder.executors.torchex import no_autocast", "", "@torch.no_grad()", "@no_autocast"]
    else:
        lines.append("")
    return lines


def trace_text(
    trace: PrintedTrace,
    *,
    depth: int | None = None,
    kernels: bool = False,
    decorators: bool = True,
    context: PrintContext | None = None,
) -> str:
    """Return the source of a trace."""
    context = context or PrintContext()
    context.taken |= {trace.name, *trace.names, *RESERVED_NAMES}
    body: list[str] = []
    for bsym in trace.bound_symbols:
        body += bound_symbol_lines(bsym, depth=depth, kernels=kernels, context=context)
    signature = trace.signature if trace.signature is not None else ", ".join([p.name for p in trace.args])
    if not any(line and not line.lstrip().startswith("#") for line in body):
        body.append("pass")
    lines = _header(trace, context, decorators and trace.decorated)
    lines.append(f"def {trace.name}({signature}):")
    lines += [INDENT + line for line in body]
    return "\n".join(lines)


def lines_around(bound_symbols: Sequence[PrintedCall], index: int, *, radius: int = 10) -> str:
    """Return the lines around an operation for an error message, with a mark at the operation."""
    first, last = max(0, index - radius), min(len(bound_symbols), index + radius + 1)
    lines = []
    for i in range(first, last):
        mark = "> " if i == index else "  "
        lines += [mark + line for line in bound_symbol_lines(bound_symbols[i], depth=0)]
    return "\n".join(lines)
