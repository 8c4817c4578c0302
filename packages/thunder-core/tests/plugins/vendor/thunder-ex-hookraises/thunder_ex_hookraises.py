# SPDX-License-Identifier: Apache-2.0
"""A plugin that fails at its last step, when it has registered an executor that would come before every other."""

from thunder.plugins import hookimpl


def on_purpose(*args, **kwargs):
    """What must never run."""
    raise AssertionError("an executor of a plugin that failed is in use")


@hookimpl
def thunder_register_executors(registry):
    """A default executor of the highest priority, both through the registry and behind its back."""
    from thunder.extend import OperatorExecutor, register_executor

    registry.register_executor(OperatorExecutor("hookraises"), default=True, priority=1000)
    register_executor(OperatorExecutor("hookraises_bypass"), default=True, priority=1001)


@hookimpl
def thunder_register_options(registry):
    """An option that goes with the rest."""
    registry.register_option("hookraises_level", type=int, default=1)


@hookimpl
def thunder_register_transforms(registry):
    """The last hook: an implementation that takes every multiplication, a pass, then a mistake."""
    import thunder.torch as ltorch

    registry.register_implementation(ltorch.mul, checker=on_purpose, execution_transform=on_purpose)
    registry.register_transform("hookraises", on_purpose, phase="before_grad")
    registry.register_transform("hookraises_again", on_purpose, phase="no such phase")
