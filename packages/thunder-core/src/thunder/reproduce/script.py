# SPDX-License-Identifier: Apache-2.0
"""The script that reproduces a difference from eager mode, with random inputs of the same metadata."""

from __future__ import annotations

import inspect
import math
import platform
import textwrap
import types
from collections.abc import Sequence
from typing import Any

import torch

import thunder
from thunder.core.pytree import tree_flatten
from thunder.core.trace import Trace
from thunder.reproduce.bisection import Finding

__all__ = ["failure_of", "script_of"]

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


def script_of(finding: Finding, summary: str, tolerance: float | None) -> str:
    """Return the text of the script."""
    header = [
        "Reproduce a difference between thunder and eager PyTorch. Written by thunder.repro.", "", *summary.splitlines(),
        "", f"Python {platform.python_version()}, torch {torch.__version__}, thunder {thunder.__version__}",
    ]  # fmt: skip
    lines = [f"# {line}".rstrip() for line in header]
    if finding.program is not None:
        args: tuple[Any, ...] = tuple(finding.inputs)
        kwargs: dict[str, Any] = {}
        program = _text_of(finding.program)
        executors = finding.executors
    else:
        args, kwargs = finding.arguments
        program = _source_of(finding.fn)
        executors = None if finding.options.executors is None else _names(finding.options.executors)
    for name in executors or ():
        lines.append(f"# The executor {name!r} has to be registered before the call.")
    options = "" if executors is None else f", executors={executors!r}"
    helpers = _HELPERS.replace("{options}", options).replace("{tolerance}", _BY_DTYPE if tolerance is None else str(tolerance))
    body = f"def inputs():\n    return {_expression(args)}, {_expression(kwargs)}\n"
    return "\n".join([*lines, "import torch", "import thunder", "", program, "", body, helpers])


def _names(executors: Sequence[Any]) -> list[str]:
    return [getattr(executor, "name", executor) for executor in executors]


def _text_of(program: Trace) -> str:
    return program.python(depth=0, decorators=False)


def _source_of(fn: Any) -> str:
    """Return the source of a function or of the class of a module as `computation`, as far as it is known."""
    target = type(fn) if isinstance(fn, torch.nn.Module) else getattr(fn, "__func__", fn)
    try:
        source = textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError):
        source = f"# The source of {fn!r:.60} is not available."
    imports = [
        f"import {value.__name__} as {name}"
        for name, value in getattr(getattr(target, "__init__", target), "__globals__", {}).items()
        if isinstance(value, types.ModuleType) and name in source and not name.startswith("__")
    ]
    name = getattr(target, "__name__", "computation")
    last = f"computation = {name}" + ("(...)  # pass the arguments of your module" if isinstance(target, type) else "")
    return "\n".join([*imports, "", source, "" if name == "computation" else last])


def _expression(x: Any) -> str:
    """Return the Python expression of an argument, with random tensors in place of tensors."""
    if isinstance(x, torch.Tensor):
        return _tensor(x)
    if type(x) in (list, tuple):
        items = ", ".join(map(_expression, x))
        return f"[{items}]" if type(x) is list else f"({items}{',' if len(x) == 1 else ''})"
    if type(x) is dict:
        return "{" + ", ".join(f"{key!r}: {_expression(value)}" for key, value in x.items()) + "}"
    if isinstance(x, (torch.dtype, torch.device, int, float, str, bool, type(None), complex, slice)):
        if isinstance(x, float) and not math.isfinite(x):
            return f"float({str(x)!r})"
        return f"torch.{x!r}" if isinstance(x, torch.device) else repr(x)
    leaves, structure = tree_flatten(x)
    return f"...  # {type(x).__qualname__}" if len(leaves) < 2 else f"...  # {structure}"


def _tensor(x: torch.Tensor) -> str:
    options = f"{tuple(x.shape)}, {tuple(x.stride())}, {x.dtype}"
    if x.device.type != "cpu":
        options += f", device={str(x.device)!r}"
    if x.requires_grad:
        options += ", requires_grad=True"
    if not (x.is_floating_point() or x.is_complex()):
        bounds = (int(x.min()), int(x.max())) if x.numel() and x.dtype is not torch.bool else (0, 1)
        options += f", low={bounds[0]}, high={bounds[1]}"
    return f"tensor({options})"


def failure_of(script: str) -> str | None:
    """Run a script here, and return its error, or None. Executors that are registered in this process are known."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(script, "<thunder.repro>", "exec"), namespace)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
