# SPDX-License-Identifier: Apache-2.0
"""The script that reproduces a difference from eager mode, with random inputs of the same metadata."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import platform
import re
import sys
import textwrap
import types
from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.nbytes import known_shape
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.trace import Trace
from thunder.extend import get_executor
from thunder.reproduce.bisection import Bisection

__all__ = ["Script"]

_HELPERS = '''
def tensor(shape, stride, dtype, device="cpu", requires_grad=False, low=None, high=None):
    """Return a random tensor. The values of integers and booleans are from `low` to `high`."""
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if 0 not in shape else 0
    values = torch.randn(size) if low is None else torch.randint(low, high + 1, (size,))
    return values.to(device, dtype).as_strided(shape, stride).requires_grad_(requires_grad)


def run(program):
    """Return the results and the gradients of a program."""
    torch.manual_seed(0)
    args, kwargs = inputs()
    leaves = torch.utils._pytree.tree_leaves((args, kwargs, list(getattr(program, "parameters", list)())))
    leaves = [x for x in leaves if isinstance(x, torch.Tensor)]
    results = [x for x in torch.utils._pytree.tree_leaves(program(*args, **kwargs)) if isinstance(x, torch.Tensor)]
    found = [x.detach().clone() for x in results]
    ends, starts = [x for x in results if x.grad_fn is not None], [x for x in leaves if x.requires_grad]
    if ends and starts:
        torch.manual_seed(1)
        found += torch.autograd.grad(ends, starts, [torch.randn_like(x) for x in ends], allow_unused=True)
    return found + [x.detach() for x in leaves]


if __name__ == "__main__":
    expected, found = run(computation), run(thunder.jit(computation{options}))
    for a, b in zip(found, expected, strict=True):
        if b is not None:
            largest = float(b.abs().max()) if b.numel() else 0.0
            relative = {tolerance}
            torch.testing.assert_close(a, b, rtol=0, atol=relative * largest, equal_nan=True)
    print("no difference")
'''
_BY_DTYPE = "{torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-8}.get(b.dtype, 1e-4)"


class Script:
    """The text of a script, and whether it is complete: some inputs and modules have no expression in Python."""

    def __init__(self, found: Bisection, summary: str, tolerance: float | None):
        self.complete = True
        title = "Reproduce a difference between thunder and eager PyTorch. Written by thunder.repro."
        if found.program is not None:
            self._write(title, summary, tolerance, _text_of(found.program), tuple(found.inputs), {}, found.executors)
            return
        executors = None if found.options.executors is None else _names(found.options.executors)
        self._write(title, summary, tolerance, self._source_of(found.fn), *found.arguments, executors)

    @classmethod
    def of_program(cls, program: Trace, executors: list[str], summary: str) -> Script:
        """Return the script that runs a captured program on random inputs with the metadata of its arguments."""
        script = cls.__new__(cls)
        script.complete = True
        title = "Compare a program of thunder with eager PyTorch. Written by thunder.examine.report."
        script._write(title, summary, None, _text_of(program), tuple(program.args), {}, executors)
        return script

    def _write(
        self,
        title: str,
        summary: str,
        tolerance: float | None,
        program: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        executors: list[str] | None,
    ) -> None:
        versions = f"Python {platform.python_version()}, torch {torch.__version__}, thunder {_version()}"
        header = [title, "", *summary.splitlines(), "", versions]
        body = f"def inputs():\n    return {self._expression(args)}, {self._expression(kwargs)}\n"
        header += [f"Register the executor {name!r} first." for name in executors or () if not _is_installed(name)]
        if not self.complete:
            header.append("Replace each `...`: thunder does not know the expression of this module or input.")
        options = "" if executors is None else f", executors={executors!r}"
        helpers = _HELPERS.replace("{options}", options)
        helpers = helpers.replace("{tolerance}", _BY_DTYPE if tolerance is None else str(tolerance))
        lines = [f"# {line}".rstrip() for line in header]
        self.text = "\n".join([*lines, "import torch", "import thunder", "", "", program, "", body, helpers])

    def failure(self) -> str | None:
        """Run the script here, and return its error, or None. Executors of this process need no registration."""
        namespace: dict[str, Any] = {"__name__": "__main__"}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(self.text, "<thunder.repro>", "exec"), namespace)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _source_of(self, fn: Any) -> str:
        """Return the source of a function or of the class of a module, and a line that defines `computation`."""
        is_module = isinstance(fn, torch.nn.Module)
        target = type(fn) if is_module else getattr(fn, "__func__", fn)
        try:
            source = textwrap.dedent(inspect.getsource(target))
        except (OSError, TypeError):
            self.complete = False
            return "computation = ..."
        variables = getattr(target.__init__ if is_module else target, "__globals__", {})
        imports = [
            f"import {value.__name__} as {name}"
            for name, value in variables.items()
            if isinstance(value, types.ModuleType) and re.search(rf"\b{name}\b", source)
        ]
        name = target.__name__
        if is_module:
            value = f"{name}()" if _needs_no_arguments(target) else f"{name}(...)"
            self.complete = self.complete and not value.endswith("(...)")
        else:
            value = name
            if not name.isidentifier():  # a lambda, whose source is a part of a statement
                self.complete, value, source = False, "...", textwrap.indent(source, "# ")
        return "\n".join([*imports, "", source, f"computation = {value}"])

    def _expression(self, x: Any) -> str:
        """Return the Python expression of an argument, with random tensors in place of tensors."""
        if isinstance(x, torch.Tensor):
            return _tensor(x)
        if isinstance(x, TensorProxy):
            return _tensor_of_proxy(x)
        if isinstance(x, NumberProxy):
            return repr(x.value)
        if type(x) in (list, tuple):
            items = ", ".join(map(self._expression, x))
            return f"[{items}]" if type(x) is list else f"({items}{',' if len(x) == 1 else ''})"
        if type(x) is dict:
            return "{" + ", ".join(f"{key!r}: {self._expression(value)}" for key, value in x.items()) + "}"
        if isinstance(x, float) and not math.isfinite(x):
            return f"float({str(x)!r})"
        if isinstance(x, torch.device):
            return f"torch.{x!r}"
        if isinstance(x, (torch.dtype, int, float, str, bool, type(None), complex, slice)):
            return repr(x)
        self.complete = False
        return "..."


def _version() -> str:
    return str(
        sys.modules["thunder"].__version__
    )  # an import of the package, which imports this module, would be a cycle


def _names(executors: Sequence[Any]) -> list[str]:
    return [getattr(executor, "name", executor) for executor in executors]


def _is_installed(name: str) -> bool:
    """Check whether thunder or an installed plugin registers an executor."""
    executor = get_executor(name)
    return executor.is_fallback or executor.plugin is not None


def _needs_no_arguments(cls: type) -> bool:
    try:
        inspect.signature(cls).bind()
    except (TypeError, ValueError):
        return False
    return True


def _text_of(program: Trace) -> str:
    lines = program.python(depth=0, decorators=False).splitlines()
    return "\n".join(x for x in lines if not x.startswith("#") and x != "import torch")


def _tensor(x: torch.Tensor) -> str:
    bounds = (int(x.min()), int(x.max())) if x.numel() and not _is_random(x.dtype) else (0, 1)
    return _random_tensor(x.shape, x.stride(), x.dtype, x.device, x.requires_grad, bounds)


def _tensor_of_proxy(p: TensorProxy) -> str:
    shape = known_shape(p)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return _random_tensor(shape, strides, to_torch_dtype(p.dtype), to_torch_device(p.device), p.requires_grad, (0, 1))


def _is_random(dtype: torch.dtype) -> bool:
    """Check whether the values of a random tensor need no bounds."""
    return dtype is torch.bool or dtype.is_floating_point or dtype.is_complex


def _random_tensor(
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
    bounds: tuple[int, int],
) -> str:
    options = f"{tuple(shape)}, {tuple(strides)}, {dtype}"
    if device.type != "cpu":
        options += f", device={str(device)!r}"
    if requires_grad:
        options += ", requires_grad=True"
    if not (dtype.is_floating_point or dtype.is_complex):
        options += f", low={bounds[0]}, high={bounds[1]}"
    return f"tensor({options})"
