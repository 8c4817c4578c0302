# SPDX-License-Identifier: Apache-2.0
"""`docs/plugins.md` says what is: every hook with its exact signature and docstring, every state, variable and command.

Each failure shows the text that the page should have.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thunder.cli import build_parser
from thunder.core import environment
from thunder.plugins import HOOKS, PHASES, PluginRegistry, PluginState, discovery

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
VENDOR = ROOT / "packages" / "thunder-core" / "tests" / "plugins" / "vendor" / "thunder-ex-multimul"

METHODS = (
    "register_executor",
    "register_operator",
    "register_implementation",
    "register_option",
    "register_transform",
    "executor",
    "operator",
)


def signature(function: Callable[..., Any]) -> str:
    """A function's definition, annotations as they are written, without `self`; in one line if it fits."""
    parts: list[str] = []
    spec = inspect.signature(function)
    for parameter in spec.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        text = ("**" if parameter.kind is parameter.VAR_KEYWORD else "") + f"{parameter.name}: {parameter.annotation}"
        default = parameter.default
        shown = default.__name__ if isinstance(default, type) else repr(default)
        parts.append(text if default is parameter.empty else f"{text} = {shown}")
    line = f"def {function.__name__}({', '.join(parts)}) -> {spec.return_annotation}: ..."
    if len(line) <= 100:
        return line
    rows = "".join(f"    {part},\n" for part in parts)
    return f"def {function.__name__}(\n{rows}) -> {spec.return_annotation}: ..."


def described(function: Callable[..., Any]) -> str:
    """How the page shows a function: its signature as code, then its docstring."""
    return f"```{{code-block}} python\n{signature(function)}\n```\n\n{inspect.getdoc(function)}\n"


@pytest.mark.parametrize("name", HOOKS)
def test_hooks(name: str) -> None:
    """Each hook has a section."""
    assert f"### {name}\n\n{described(HOOKS[name])}" in PAGE


def test_no_stranger_is_described() -> None:
    """A hook that is gone is gone from the page."""
    assert re.findall(r"^### (thunder_\w+)$", PAGE, re.MULTILINE) == list(HOOKS)


@pytest.mark.parametrize("name", METHODS)
def test_the_registry(name: str) -> None:
    """Each method that a hook may call."""
    assert described(getattr(PluginRegistry, name)) in PAGE


def test_no_method_is_left_out() -> None:
    """What is not described is not for hooks."""
    public = {name for name, _ in inspect.getmembers(PluginRegistry, inspect.isfunction) if not name.startswith("_")}
    assert public - set(METHODS) == {"close", "commit", "describe_on"}


@pytest.mark.parametrize("phase", PHASES)
def test_phases(phase: str) -> None:
    """Each phase in the words of the code."""
    assert f"| `{phase}` | {PHASES[phase]} |\n" in PAGE


@pytest.mark.parametrize("state", PluginState)
def test_states(state: PluginState) -> None:
    """Each state has a line in the table of lives."""
    assert re.search(rf"^\| `{state.value}` \|", PAGE, re.MULTILINE)


def test_names() -> None:
    """The group and the environment variables."""
    assert discovery.GROUP in PAGE
    for variable in (environment.EXECUTORS_VARIABLE, environment.DISABLE_VARIABLE):
        assert f"| `{variable}` |" in PAGE


def test_commands() -> None:
    """Each command about plugins, with its options. Those about programs are on other pages."""
    pages = ("diagnostics.md", "saved.md")
    others = "".join((ROOT / "docs" / name).read_text(encoding="utf-8").split("# Command line")[1] for name in pages)
    (choices,) = (action.choices for action in build_parser()._actions if action.choices)
    for name in choices:
        if re.search(rf"^(?:python -m thunder|\$ thunder) {name} ", others, re.MULTILINE):
            continue
        (row,) = re.findall(rf"^\| `python -m thunder {name}\b(.*)` \|", PAGE, re.MULTILINE)
        options = {text for action in choices[name]._actions for text in action.option_strings if text.startswith("--")}
        assert options - {"--help", "--timeout"} == set(re.findall(r"--\w+", row)), name


@pytest.mark.parametrize(
    "file",
    [
        "pyproject.toml",
        "src/thunder_ex_multimul/plugin.py",
        "src/thunder_ex_multimul/multimul.py",
        "src/thunder_ex_multimul/mul.py",
        "src/thunder_ex_multimul/samples.py",
    ],
)
def test_the_example_is_the_tested_one(file: str) -> None:
    """The files that the page shows are those of the wheel that the tests build and use."""
    assert f":caption: {file}\n\n{(VENDOR / file).read_text(encoding='utf-8').strip()}\n```\n" in PAGE
