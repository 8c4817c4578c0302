# SPDX-License-Identifier: Apache-2.0
"""Execution: claiming, fusion, memory, and running a symbol that is called outside of a trace."""

from thunder.core.symbol import set_eager_runner
from thunder.execution.eager import run_symbol

set_eager_runner(run_symbol)
