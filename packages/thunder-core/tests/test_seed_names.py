# SPDX-License-Identifier: Apache-2.0
"""Every name that the specification's documents use can be imported from where they import it.

E, A, X and C are the four documents (extending thunder, adding an operator executor, additional executors, contributing
to thunder) with the line at which a name stands.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

NAMES = [
    # extending thunder
    ("E10", "thunder", "jit last_traces"),
    ("E11", "thunder.core.devices", "DeviceType Device"),
    ("E12", "thunder.core.proxies", "TensorProxy"),
    ("E13", "thunder.core.transforms", "grad put_grads get_grad"),
    ("E18", "thunder.extend", "OperatorExecutor register_executor"),
    ("E64", "thunder.executors.torchex", "no_autocast"),
    ("E136", "thunder.torch", "mul contiguous full unsqueeze expand cross_entropy to_torch_dtype"),
    ("E240", "thunder.core.prims", "mul full broadcast_in_dim stride_order"),
    # adding an operator executor
    ("A50", "thunder", "trace compile dtypes prims core executors"),
    ("A113", "thunder.executors", "add_operator_executor TORCH"),
    ("A155", "thunder.dtypes", "float32"),
    ("A172", "thunder.prims", "PrimIDs"),
    ("A263", "thunder.tests.opinfos", "add_opinfo"),
    # contributing to thunder
    ("C12", "thunder.core.prims", "make_prim PrimIDs OpTags"),
    ("C30", "thunder.core.prims", "expm1"),
    ("C57", "thunder.core.utils", "elementwise_type_promotion ELEMENTWISE_TYPE_PROMOTION_KIND"),
    ("C57", "thunder.clang", "_elementwise_binary_wrapper maybe_broadcast maybe_convert_to_dtype clangop add"),
    ("C113", "thunder.core.utils", "canonicalize_dim check"),
    ("C137", "thunder.core.prims", "unfold transpose view squeeze"),
    (
        "C165",
        "thunder.executors.torchex",
        "_register_torch_operation _register_implementation _always_executable to_torch_device to_torch_dtype",
    ),
    ("C217", "thunder.tests.opinfos", "OpInfo SampleInput make_tensor shape_ops"),
    ("C265", "thunder.clang", "unfold"),
    (
        "C284",
        "thunder.tests.opinfos",
        "DecorateInfo elementwise_unary_generator _elementwise_unary_torch elementwise_unary_ops",
    ),
    ("C290", "thunder.core.dtypes", "float16 complex32 is_float_dtype"),
    ("C324", "thunder.core.transforms", "register_grad put_grad get_grad"),
    ("C324", "thunder.torch", "torchctx zeros_like scatter_add topk"),
    ("C324", "thunder.core.prims", "topk"),
    ("C359", "thunder.torch", "torchsymbol relu6 hardswish acos TensorLike"),
]


@pytest.mark.parametrize(("where", "module", "names"), NAMES, ids=lambda x: x if isinstance(x, str) else None)
def test_names(where: str, module: str, names: str) -> None:
    """They are there."""
    if module == "thunder.dtypes":  # an attribute of thunder, as the document writes it
        found: Any = importlib.import_module("thunder").dtypes
    else:
        found = importlib.import_module(module)
    missing = [name for name in names.split() if not hasattr(found, name)]
    assert not missing, f"{where}: {module} lacks {missing}"


@pytest.mark.parametrize(
    ("where", "module", "name", "package"),
    [
        ("E262", "thunder.executors.apex_entropyex", "apex_ex", "thunder-ex-apex"),
        ("X9", "thunder.executors.triton_crossentropy", "triton_ex", "thunder-ex-triton"),
        ("X48", "thunder.executors.apexex", "apex_ex", "thunder-ex-apex"),
    ],
)
def test_names_that_plugins_bring(where: str, module: str, name: str, package: str) -> None:
    """The plugin's executor where that is installed, else what to install."""
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, RuntimeError) as error:
        assert f"pip install {package}" in str(error), where
    else:
        assert found.name


def test_everything_is_reachable_from_thunder_alone() -> None:
    """A40: `import thunder` is enough."""
    code = "import thunder; thunder.core.proxies.TensorProxy; thunder.prims.PrimIDs.ADD; thunder.executors.TORCH; "
    code += "thunder.dtypes.float32; thunder.torch.add; thunder.extend.OperatorExecutor; thunder.clang.add"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ids_of_primitives() -> None:
    """A91, C113: they print as the documents show."""
    from thunder.core.prims import PrimIDs

    for name in [
        "UNPACK_TRIVIAL",
        "MUL",
        "ADD",
        "BROADCAST_IN_DIM",
        "RETURN",
        "UNFOLD",
        "TOPK",
        "SLICE",
        "SQUEEZE",
        "TRANSPOSE",
        "VIEW",
        "STRIDE_ORDER",
    ]:
        assert str(getattr(PrimIDs, name)) == f"PrimIDs.{name}"


def test_values_of_the_documents() -> None:
    """A41, A155, E11, E258, C137, C290: what is read of dtypes, devices and tags."""
    import thunder
    import thunder.torch as ltorch
    from thunder.core import devices
    from thunder.core import dtypes as datatypes
    from thunder.core.prims import OpTags

    assert str(thunder.dtypes.float32) == "float32"
    assert str(devices.Device("cuda:0")) == "cuda:0"
    assert devices.Device("cpu").devicetype == devices.DeviceType.CPU
    assert ltorch.to_torch_dtype(torch.float32) is torch.float32
    assert ltorch.to_torch_dtype(datatypes.complex32) is torch.complex32
    assert OpTags.SHAPE_OP in thunder.prims.unfold.tags
    assert thunder.core.utils.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT


def test_help_of_add_operator_executor() -> None:
    """A113: the signature as `help` prints it."""
    from thunder.executors import add_operator_executor

    expected = "(name, op_map, *, add_to_default_executors: bool = True) -> None"
    assert str(inspect.signature(add_operator_executor)) == expected


@pytest.mark.parametrize(
    ("where", "module", "function", "arguments"),
    [
        ("C12", "thunder.core.prims", "make_prim", "id name meta tags"),
        ("C65", "thunder.clang", "clangop", "method_name"),
        ("C57", "thunder.core.utils", "elementwise_type_promotion", "type_promotion_kind"),
        ("C57", "thunder.clang", "_elementwise_binary_wrapper", "a b prim type_promotion_kind"),
        ("C113", "thunder.core.utils", "check", "exception_type"),
        ("C165", "thunder.executors.torchex", "_register_torch_operation", "name module"),
        ("C171", "thunder.executors.torchex", "_register_implementation", "op checker execution_transform"),
        (
            "C265",
            "thunder.tests.opinfos",
            "OpInfo",
            "sample_input_generator error_input_generator torch_reference domain",
        ),
        ("C299", "thunder.tests.opinfos", "DecorateInfo", "mark test_name dtypes devicetypes"),
        ("C359", "thunder.torch", "torchsymbol", "id is_method"),
        ("E18", "thunder.extend", "OperatorExecutor", "name version"),
        ("X20", "thunder.torch", "cross_entropy", "weight reduction ignore_index"),
    ],
)
def test_arguments(where: str, module: str, function: str, arguments: str) -> None:
    """The keyword arguments that the documents pass."""
    found = getattr(importlib.import_module(module), function)
    known = inspect.signature(found).parameters
    assert not [name for name in arguments.split() if name not in known], where


def test_methods_of_executors() -> None:
    """E50, E136, E214: the keyword arguments of registration."""
    from thunder.extend import OperatorExecutor

    operator = inspect.signature(OperatorExecutor.register_operator).parameters
    assert {"name", "like", "meta", "fn", "module", "tags", "replaces", "bind_postprocess"} <= set(operator)
    implementation = inspect.signature(OperatorExecutor.register_implementation).parameters
    assert {"checker", "execution_transform", "grad_transform"} <= set(implementation)
