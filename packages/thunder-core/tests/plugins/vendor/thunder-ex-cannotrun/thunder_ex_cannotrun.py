# SPDX-License-Identifier: Apache-2.0
"""A plugin that finds out that it cannot run here."""

from thunder.plugins import Availability, hookimpl


@hookimpl
def thunder_probe(env):
    """There is no such device anywhere."""
    return Availability(False, "needs an Acme accelerator, and this machine has none")


@hookimpl
def thunder_register_executors(registry):
    """Never called."""
    raise AssertionError("a plugin that cannot run here was asked for its executors")
