# SPDX-License-Identifier: Apache-2.0
"""One of two distributions that bring a plugin of the same name."""

from thunder.plugins import hookimpl


@hookimpl
def thunder_register_executors(registry):
    """An executor whose version tells which of the two it is."""
    from thunder.extend import OperatorExecutor

    registry.register_executor(OperatorExecutor("twin", version="acme"))
