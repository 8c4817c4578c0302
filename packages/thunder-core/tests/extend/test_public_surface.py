# SPDX-License-Identifier: Apache-2.0
"""What vendors may import of thunder: a name leaves these lists only with a change of the plugin API."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]

SURFACE = {
    "thunder.extend": """
        BoundSymbol Compilation Executor ExecutorList FusionExecutor Implementation NewResults NumberProxy OpTags
        OperatorExecutor Proxy ResultMemory Saved Strides Symbol SymbolicNumber TensorProxy ThunderError Trace
        UnsupportedError add_always_executor add_default_executor are_named argument_key bytes_of compilation
        compiling construct current_trace dense_strides deregister_executor device_table devices dtypes
        get_all_executors get_always_executors get_default_executors get_executor get_grad implementations_epoch
        in_bytes is_capturing_graph is_left_to_torch known_shape map_proxies named_executors proxies_in
        put_grad put_grads recording
        register_executor remove_default_executor resolve_executors rewrite set_default_executors symbol_of_id
        to_device to_dtype to_torch_device to_torch_dtype tracectx write_once
    """,
    "thunder.plugins": """
        API_VERSION AcceleratorDevice Availability ConformanceProfile Env ExecutorInfo GROUP GpuDevice HOOKS OptionSpec
        PHASES PassContext
        PluginLoadError PluginManager PluginRecord PluginRegistry PluginState ThunderError TransformSpec check_options
        conformance_profile describe_error executor_order hookimpl hookspec is_usable known_options load_all load_named
        major_and_minor manager records registered_transforms reject_device reject_version reset transformed
    """,
    "thunder.toolkit": "benchmarking claiming conformance fusion launch layouts measuring testing",
    "thunder.toolkit.benchmarking": """
        Kernels by_events by_kernels copy_bandwidth in_turns on_host parser replayed report step table
    """,
    "thunder.toolkit.claiming": "Choice choose claim loss_reduction",
    "thunder.toolkit.conformance": """
        OpInfo OperatorSamples SampleInput TensorMaker assert_distributions assert_dropout assert_residual_dropout_norm
        assert_seeds_are_torchs compare make_tensor operator_opinfos philox philox_words seeded_opinfos
    """,
    "thunder.toolkit.fusion": """
        Region by_device draw_from_seeds flattened partition reject_values replace_regions rounded_results
        torch_program without_data without_views
    """,
    "thunder.toolkit.launch": """
        current_cuda_device current_stream increment_versions launch_cubin load_cubin new_tensor no_device
        on_its_device
    """,
    "thunder.toolkit.layouts": """
        changed_strides eager_strides gradient_strides has_fixed_strides order_of ordered_strides reads_strides
        results_of
    """,
    "thunder.toolkit.measuring": """
        Candidate MeasuredChoice Measurements example_tensor measured_choice shape_class_of size_class
    """,
    "thunder.toolkit.testing": """
        FakeEnv deterministic_algorithms fallbacks_raise gpu is_ready measured_times new_process registered repeats
    """,
}
# The languages are public too: what they have is what torch, or the set of primitives, has.
LANGUAGES = ("thunder.torch", "thunder.prims")
# Paths of the documented seeds, which the plugins' tests go through as users do, and what users call.
OF_USERS = ("thunder.core.transforms", "thunder.executors", "thunder.examine", "thunder.transforms")


@pytest.mark.parametrize("module", SURFACE)
def test_the_names(module: str) -> None:
    """Each module says what it offers, and offers what is listed here."""
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(SURFACE[module].split())
    for name in found.__all__:
        assert hasattr(found, name)


@pytest.mark.parametrize("module", SURFACE)
def test_everything_says_what_it_is(module: str) -> None:
    """Modules, classes and functions have docstrings."""
    found = importlib.import_module(module)
    assert inspect.getdoc(found)
    # what torch has under another name cannot be given one
    values = {name: getattr(found, name) for name in found.__all__ if module != "thunder.toolkit.launch"}
    wrong = [name for name, value in values.items() if callable(value) and not inspect.getdoc(value)]
    assert not wrong, wrong


def test_it_is_light() -> None:
    """A probe may use `thunder.plugins`, and a hook `thunder.extend`, before torch is imported."""
    code = "import thunder.plugins, thunder.extend, thunder.toolkit, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_linter_knows_the_same_modules() -> None:
    """Its contract lists what plugins may import."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contract = text.partition('id = "plugins-use-the-public-surface"')[2].partition("[[tool")[0]
    allowed = set(re.findall(r'"\*\* -> ([\w.]+)"', contract))
    assert allowed == {*SURFACE, *LANGUAGES} - {"thunder.toolkit"}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "thunder":
            yield from (f"thunder.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "thunder.toolkit":
            yield from (f"thunder.toolkit.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_tests_and_benchmarks_of_plugins_use_it_too() -> None:
    """What the linter does not see of them."""
    allowed = {"thunder", *SURFACE, *LANGUAGES}
    wrong = []
    for path in sorted((ROOT / "packages").glob("thunder-ex-*/**/*.py")):
        for name in _imports(path):
            ours = name.split(".")[0] == "thunder" and name not in allowed
            if ours and not name.startswith(OF_USERS):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)
