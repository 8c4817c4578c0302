# SPDX-License-Identifier: Apache-2.0
"""`FILE.py:NAME` is the program that a command examines, and the file can give its inputs.

NAME is a function, a module or a jitted callable of the file, or a class of modules that needs no arguments.
`package.module:NAME` works, too. The inputs are, in this order:

1. `--input DESCRIPTION`, once for each argument: `f32[2, 3]`, `bf16[4, 4] cuda grad`, `i64[8] below 1000`,
   `mask=b8[4]`, or a Python literal such as `2.0` or `mode='sum'`. Tensors are random;
2. `NAME_inputs`, `example_inputs` or `inputs` of the file, a value or a function without arguments: a tuple or list of
   positional arguments, a dict of keyword arguments, or the single argument;
3. no inputs, if NAME needs none.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["BadTarget", "Target", "add_target_parser", "file_to_write", "load_target"]

_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d\s,]*)\](?P<rest>(\s+\S+)*)$")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<rest>[^=].*)$")


class BadTarget(Exception):
    """A target or an input that cannot be used. The message says what to write instead."""


class Target:
    """A callable of the user, and the inputs of a call."""

    def __init__(self, name: str, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.name = name
        self.fn = fn
        self.args = args
        self.kwargs = kwargs


def add_target_parser(
    subparsers: Any, name: str, text: str | None, run: Callable[..., int], *, help: str, metavar: str = "FILE.py:NAME"
) -> argparse.ArgumentParser:
    """Declare a command that examines a program, with the arguments that all of these commands have.

    `text` is the command's description, which a description of the inputs follows.
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=help,
        description=f"{text or ''}\n{__doc__ or ''}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar=metavar, help="a function, module or class of modules in a file")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="DESCRIPTION",
        help="an argument: f32[2, 3], 'i64[8] below 1000 cuda', x=bf16[4] or a literal (default: see below)",
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of random numbers (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def file_to_write(path: str) -> str:
    """Return the path of a file that an option names, and that can be written there (the `type` of an argument)."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{path} is a folder" if os.path.isdir(path) else f"there is no {folder}")
    return path


def load_target(text: str, inputs: Sequence[str] = (), seed: int = 0) -> Target:
    """Import a target and make its inputs."""
    # The import is local because it imports torch, and other commands work without torch.
    import torch

    place, _, name = text.rpartition(":")
    if not place or not name:
        raise BadTarget(f"{text!r} names no program: write FILE.py:NAME or package.module:NAME")
    module = _import(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            close = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
            raise BadTarget(f"{place} has no {name!r}. It has {', '.join(close) or 'no callables'}")
        found = getattr(found, part)
    torch.manual_seed(seed)
    fn = _instance(found, name)
    if not callable(fn):
        raise BadTarget(f"{text} is {type(fn).__name__}, not a function or module")
    args, kwargs = _described(inputs) if inputs else _inputs_of(module, name, fn, place)
    _check_call(name, fn, args, kwargs)
    return Target(name, fn, args, kwargs)


def _import(place: str) -> Any:
    if not place.endswith(".py"):
        try:
            # Imported by name: the user names the module.
            return importlib.import_module(place)
        except ImportError as error:
            raise BadTarget(
                f"{place} cannot be imported: {error}. Write FILE.py:NAME or package.module:NAME"
            ) from error
    path = Path(place)
    if not path.is_file():
        raise BadTarget(f"there is no file {place!r}")
    folder = os.path.dirname(os.path.abspath(place))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python FILE.py` does
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _instance(found: Any, name: str) -> Any:
    """Return an instance of a class of modules; any other value is the target itself."""
    if not isinstance(found, type):
        return found
    missing = _required(found)
    if missing:
        raise BadTarget(
            f"the class {name} needs the arguments {', '.join(missing)}: write a line such as `model = {name}(…)` in "
            "the file, and name `model`"
        )
    return found()


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(getattr(fn, "forward", fn) if not isinstance(fn, type) else fn)
    except (TypeError, ValueError):  # e.g. a builtin
        return None


def _check_call(name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that a callable takes these inputs."""
    signature = _signature(fn)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        given = [*(["1 argument"] if len(args) == 1 else [f"{len(args)} arguments"] if args else []), *kwargs]
        taken = ", ".join(signature.parameters) if signature is not None else ""
        raise BadTarget(f"{name}({taken}) does not take {', '.join(given) or 'no argument'}: {error}") from None


def _required(fn: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments without which a callable cannot be called."""
    signature = _signature(fn)
    parameters = {} if signature is None else signature.parameters
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [n for n, p in parameters.items() if p.default is p.empty and p.kind in named]


def _inputs_of(module: Any, name: str, fn: Any, place: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    for candidate in (f"{name.replace('.', '_')}_inputs", "example_inputs", "inputs"):
        value = getattr(module, candidate, None)
        if value is None:
            continue
        value = value() if callable(value) and not _is_tensor(value) else value
        if isinstance(value, dict):
            return (), value
        return (tuple(value) if isinstance(value, (tuple, list)) else (value,)), {}
    missing = _required(fn)
    if missing:
        raise BadTarget(
            f"{name} needs the arguments {', '.join(missing)}: define `example_inputs` in {place}, a function that "
            "returns the arguments, or describe each one, e.g. --input 'f32[2, 3]'"
        )
    return (), {}


def _is_tensor(value: Any) -> bool:
    # The import is local because it imports torch, and other commands work without torch.
    import torch

    return isinstance(value, torch.Tensor)


# -- descriptions -----------------------------------------------------------------------------------------------------
def _described(texts: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        named = _NAMED.match(text.strip())
        if named is None:
            args.append(_value(text.strip()))
        else:
            kwargs[named["name"]] = _value(named["rest"].strip())
    return tuple(args), kwargs


def _value(text: str) -> Any:
    described = _TENSOR.match(text)
    if described is not None:
        return _random(text, described["dtype"], described["shape"], described["rest"].split())
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise BadTarget(
            f"{text!r} describes no input: write a tensor such as f32[2, 3], 'i64[8] below 1000' or "
            "'bf16[4] cuda grad', or a Python literal"
        ) from None


def _random(text: str, dtype_name: str, shape_text: str, words: list[str]) -> Any:
    """Return a random tensor. The words after its type are a device, `grad`, and `below N` for integers."""
    # The imports are local because they import torch, and other commands work without torch.
    import torch

    # For the same reason.
    from thunder.core.dtypes import all_dtypes

    known = {each.short: getattr(torch, each.name) for each in all_dtypes if hasattr(torch, each.name)}
    dtype = known.get(dtype_name, getattr(torch, dtype_name, None))
    if not isinstance(dtype, torch.dtype):
        raise BadTarget(f"{text!r}: {dtype_name!r} is no dtype. Write one of {', '.join(known)}, or torch's name")
    shape = [int(n) for n in shape_text.replace(",", " ").split()]
    device, grad, below = "cpu", False, 2
    pending = list(words)
    while pending:
        word = pending.pop(0)
        if word == "grad":
            grad = True
        elif word == "below" and pending and pending[0].isdigit():
            below = int(pending.pop(0))
        elif re.fullmatch(r"[a-z]+(:\d+)?", word) and word != "below":
            device = word
        else:
            raise BadTarget(f"{text!r}: after the type come a device, `grad` and `below N`, not {word!r}")
    try:
        if dtype.is_floating_point or dtype.is_complex:
            wide = torch.randn(shape, dtype=dtype if dtype.is_complex else torch.float32, device="cpu")
            return wide.to(device, dtype).requires_grad_(grad)
        return torch.randint(0, below, shape, device="cpu").to(device, dtype)
    except (RuntimeError, AssertionError) as error:
        raise BadTarget(f"{text!r}: {error}") from error
