# SPDX-License-Identifier: Apache-2.0
"""What thunder finds in frames of torch's own Python; each test fails where a version of torch has changed that."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from thunder.torch import private


class Asking(torch.overrides.TorchFunctionMode):
    """Asks `question` in each call of a torch function, and keeps the answers for the functions of that name."""

    def __init__(self, name, question):
        super().__init__()
        self.name = name
        self.question = question
        self.answers = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name == self.name:
            self.answers.append(self.question())
        return func(*args, **(kwargs or {}))


def test_the_weight_of_l1_loss_is_found():
    x, y, weight = torch.randn(3), torch.randn(3), torch.rand(3)
    with Asking("l1_loss", private.l1_loss_weight) as asking:
        torch.nn.functional.l1_loss(x, y, weight=weight)
    assert len(asking.answers) == 1 and asking.answers[0] is weight
    assert private.l1_loss_weight() is None


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_a_module_with_a_legacy_hook_is_found():
    module = torch.nn.Linear(2, 2)
    with Asking("grad_fn", private.module_with_legacy_hook) as asking:
        module(torch.randn(1, 2)).grad_fn  # noqa: B018
    assert asking.answers == [None]
    module.register_backward_hook(lambda *args: None)
    with Asking("grad_fn", private.module_with_legacy_hook) as asking:
        module(torch.randn(1, 2))
    assert set(asking.answers) == {"Linear"}


def test_a_parameter_that_is_converted_to_itself_is_found():
    module = torch.nn.Linear(2, 2)
    with Asking("grad", lambda: private.parameter_being_converted(lambda filename: False)) as asking:
        module.to(torch.float32)
        module.weight.grad  # noqa: B018
    *converted, read = asking.answers
    assert [any(x is p for x in converted) for p in module.parameters()] == [True, True]
    assert read is None


def test_the_users_own_code_converts_nothing():
    module = torch.nn.Linear(2, 2)
    with Asking("grad", lambda: private.parameter_being_converted(lambda filename: filename == __file__)) as asking:
        module.to(torch.float32)
    assert set(asking.answers) == {None}


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("Normal", lambda: torch.distributions.Normal(torch.zeros(2), torch.ones(2), validate_args=True)),
        (
            "Exponential",
            lambda: torch.distributions.Exponential(torch.ones(2), validate_args=True).log_prob(torch.ones(2)),
        ),
        ("Uniform", lambda: torch.distributions.Uniform(torch.zeros(2), torch.ones(2), validate_args=True)),
        ("Geometric", lambda: torch.distributions.Geometric(torch.full((2,), 0.5), validate_args=True)),
        ("Geometric", lambda: torch.distributions.Geometric(logits=torch.zeros(2), validate_args=True)),
    ],
)
def test_the_distribution_that_checks_a_value_is_found(name, program):
    with Asking("__bool__", lambda: private.distribution_that_checks(lambda filename: filename == __file__)) as asking:
        program()
    assert asking.answers and set(asking.answers) == {name}


def test_a_branch_that_is_no_check_is_no_distributions():
    def branch(x):
        return 1 if x else 2

    ours = private.__file__
    with Asking("__bool__", lambda: private.distribution_that_checks(lambda filename: filename == ours)) as asking:
        branch(torch.tensor(True))
    assert asking.answers == [None]


def test_fake_tensors_in_a_thread_that_ends() -> None:
    """In CUDA builds without a GPU torch's mode leaves a device guard that is freed with the thread."""
    program = """
import threading, torch
from thunder.torch.private import FakeTensorMode
def fake():
    with FakeTensorMode():
        torch.ones(1)
thread = threading.Thread(target=fake)
thread.start(), thread.join()
x = torch.ones(2, requires_grad=True)
x.sum().backward()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_kernels_of_operators_are_found():
    """The names of dispatch keys and of operators. Without them, autocast on other devices would cast nothing."""
    assert private.has_kernel(["aten::no_such", "aten::matmul"], "CompositeImplicitAutograd")
    assert not private.has_kernel(["aten::mul.Tensor"], "CompositeImplicitAutograd")
    for device in ("cpu", "cuda", "xpu"):
        assert private.has_kernel(["aten::mm"], private.autocast_key(device))
        assert not private.has_kernel(["aten::relu"], private.autocast_key(device))


def test_the_key_of_a_vendors_device():
    assert private.autocast_key(torch._C._get_privateuse1_backend_name()) == "AutocastPrivateUse1"
    assert not private.has_kernel(["aten::mm"], "AutocastPrivateUse1")
