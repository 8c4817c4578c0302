# SPDX-License-Identifier: Apache-2.0
"""The text of traces: Python that runs and rebuilds the same program.

An operation prints as `out = module.name(args)  # out: "type"`, what it decomposes into as indented comments below it.
Values that cannot be written as Python get a name in the `PrintContext`, which is the namespace that the text runs in.
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

__all__ = ["RESERVED_NAMES", "PrintContext", "bound_symbol_lines", "printable", "trace_text"]

# Names that the text of traces uses for something else: a value that had one of them would hide it.
RESERVED_NAMES = frozenset({
    "torch", "thunder", "ltorch", "lnp", "clang", "prims", "dtypes", "devices", "Tensor", "operator", "no_autocast",
    "bool", "int", "float", "complex", "str", "slice", "set", "__debug__",
})  # fmt: skip


class PrintedSymbol(Protocol):
    """What is written of an operation (`core/symbol.py`)."""

    name: str
    module: str | None
    fn: Callable[..., Any] | None
    is_kernel: bool
    printer: Callable[..., list[str]] | None


class PrintedCall(Protocol):
    """What is written of a call (`core/symbol.py`)."""

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
    """What is written of a program (`core/trace.py`)."""

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

# How modules are written in traces, and the import that makes it so.
_MODULES: dict[str, tuple[str, str]] = {
    "thunder.torch": ("ltorch", "import thunder.torch as ltorch"),
    "thunder.numpy": ("lnp", "import thunder.numpy as lnp"),
    "thunder.clang": ("clang", "import thunder.clang as clang"),
    "thunder.core.prims": ("prims", "import thunder.core.prims as prims"),
    "thunder.executors.torchex": ("torchex", "import thunder.executors.torchex as torchex"),
    "torch.Tensor": ("Tensor", "from torch import Tensor"),
}


class PrintContext:
    """What a text refers to: `imports`, and `objects` by the names that the text gives them.

    Operators of executors are there as the functions that run them, or with `symbols` as symbols, which run on tensors
    too and are recorded where the text is traced.
    """

    def __init__(self, *, symbols: bool = False) -> None:
        self.symbols = symbols
        self.imports: set[str] = set()
        self.objects: dict[str, Any] = {}
        self.taken: set[str] = set()  # names of values, which no object may have
        self._functions: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def aside(self) -> PrintContext:
        """A context for what only stands in comments: it needs no import, and objects have the same names."""
        other = PrintContext(symbols=self.symbols)
        other._functions, other._names, other._counts = self._functions, self._names, self._counts
        other.objects, other.taken = self.objects, self.taken
        return other

    def module(self, module: str) -> str:
        """How `module` is written, with its import noted."""
        alias, line = _MODULES.get(module, (module, f"import {module}"))
        self.imports.add(line)
        return alias

    def name_of(self, x: Any, base: str) -> str:
        """The name of an object that has no literal; one object has one name."""
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
        """How a call of `sym` is written."""
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
    """Whether repr() says it all: it is a sum, which is no literal for what is not finite, and loses signs of zeros."""
    signs = [math.copysign(1, part) for part in (x.real, x.imag) if part == 0]
    return math.isfinite(x.real) and math.isfinite(x.imag) and -1 not in signs and not (x.real == 0 and x.imag < 0)


def _number(x: Any) -> str:
    if isinstance(x, complex) and not _reads_back(x):
        return f"complex({_number(x.real)}, {_number(x.imag)})"
    if isinstance(x, float) and not math.isfinite(x):
        return f'float("{x}")'
    return repr(x)


def printable(x: Any, context: PrintContext) -> str:
    """`x` as a Python expression."""
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
    text = getattr(kind, "__thunder_text__", None)  # of a symbol
    if text is not None:
        return text(x, context)  # type: ignore[no-any-return]
    if isinstance(x, SymbolicNumber):
        text = x.text()
        if "math." in text:
            context.imports.add("import math")
        return text
    if isinstance(x, tuple) and proxies_in(x):
        # A named tuple that holds values of the trace; torch.return_types are made from one sequence.
        items = ", ".join([printable(i, context) for i in x])
        return f"{context.name_of(kind, kind.__name__)}({items if hasattr(x, '_fields') else f'({items})'})"
    return context.name_of(x, getattr(x, "__name__", "").strip("<>_") or _identifier(kind))


def _output(x: Any, given: set[str]) -> str:
    """The left side of an assignment: literals and repeated names become `_`."""
    if isinstance(x, Proxy):
        return x.name
    if isinstance(x, (tuple, list)):
        items = [_output(i, given) for i in x]
        if isinstance(x, list):
            return f"[{', '.join(items)}]"
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    return "_"


def type_comment(x: Any) -> str:
    """`# t0: "cpu f32[2, 2]"`."""
    return f'# {x.name}: "{x.type_string()}"'


def call_line(bsym: PrintedCall, context: PrintContext) -> str:
    """The line of one operation, without what it decomposes into."""
    args = [printable(a, context) for a in bsym.args]
    args += [f"{k}={printable(v, context)}" for k, v in bsym.kwargs.items()]
    call = f"{context.function(bsym.sym)}({', '.join(args)})"
    out = bsym.output
    if out is None or (isinstance(out, (tuple, list, dict)) and not out):
        return call
    if isinstance(out, dict):
        # A dict cannot be assigned to: the names are taken from its values in order.
        return f"({', '.join([_output(v, set()) for v in out.values()])},) = {call}.values()"
    line = f"{_output(out, set())} = {call}"
    return f"{line}  {type_comment(out)}" if isinstance(out, TensorProxy) else line


def bound_symbol_lines(
    bsym: PrintedCall, *, depth: int | None = None, kernels: bool = False, context: PrintContext | None = None
) -> list[str]:
    """The lines of one operation: its call, then what it decomposes into as indented comments.

    The line of a kernel stands alone unless `kernels` asks for what it decomposes into.
    """
    context = context or PrintContext()
    if bsym.sym.printer is not None:
        lines = list(bsym.sym.printer(bsym, context))
    else:
        lines = [call_line(bsym, context)]
    if depth is None or depth > 0:
        below = None if depth is None else depth - 1
        aside = context.aside()
        comments: list[str] = []
        for sub in bsym.subsymbols:
            for line in bound_symbol_lines(sub, depth=below, kernels=kernels, context=aside):
                indent = len(line) - len(line.lstrip())
                text = line.lstrip()
                comments.append(f"{INDENT}{' ' * indent}{text if indent or text.startswith('#') else '# ' + text}")
        # Those of a kernel are rendered even where they are not shown: names of objects must not depend on it.
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
    """The text of a whole trace."""
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


def lines_around(bound_symbols: Sequence[PrintedCall], index: int, *, reach: int = 10) -> str:
    """The lines of a program around one of its operations, which is marked: what an error shows."""
    first, last = max(0, index - reach), min(len(bound_symbols), index + reach + 1)
    lines = []
    for i in range(first, last):
        mark = "> " if i == index else "  "
        lines += [mark + line for line in bound_symbol_lines(bound_symbols[i], depth=0)]
    return "\n".join(lines)
