# SPDX-License-Identifier: Apache-2.0
"""Execution: who runs what, fusion, memory; and how a symbol runs that is called outside a trace."""

from thunder.core.symbol import set_eager_runner
from thunder.execution.eager import run_symbol

set_eager_runner(run_symbol)
