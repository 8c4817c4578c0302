# SPDX-License-Identifier: Apache-2.0
"""Reports of how thunder compiles and runs a program.

`thunder.examine(fn, *args)` reports operations and executors, also as an HTML page. `examine.memory` reports the memory
at each line, `examine.fusions` the fusions, and `examine.choices` what measurements decided. None of them runs the
program. `examine.compare` runs it line by line beside torch and float64, `examine.profile` measures its lines, and
`examine.report` writes a zip for a bug report. `examine.distributed` simulates a program that communicates, also for
more ranks than there are.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thunder.examine.archive import Archive, report
from thunder.examine.compared import ComparedLine, ComparedResult, Comparison
from thunder.examine.comparison import compare
from thunder.examine.distributed import (
    CommunicationLine,
    DistributedReport,
    Scaling,
    distributed,
    fake_ranks,
    scaling,
)
from thunder.examine.hardware import HARDWARE, Curve, Estimate, Hardware, Link
from thunder.examine.measured_collectives import measure_collectives
from thunder.examine.operations import Report, examine
from thunder.examine.predictions import choices, fusions, memory
from thunder.examine.profiles import Machine, Profile, TimedLine, profile
from thunder.execution.fusions import Fusion
from thunder.execution.memory_estimate import MemoryReport
from thunder.extend.measuring import MeasuredChoice

__all__ = [
    "HARDWARE",
    "Archive",
    "CommunicationLine",
    "ComparedLine",
    "ComparedResult",
    "Comparison",
    "Curve",
    "DistributedReport",
    "Estimate",
    "Fusion",
    "Hardware",
    "Link",
    "Machine",
    "MeasuredChoice",
    "MemoryReport",
    "Profile",
    "Report",
    "Scaling",
    "TimedLine",
    "choices",
    "compare",
    "distributed",
    "examine",
    "fake_ranks",
    "fusions",
    "measure_collectives",
    "memory",
    "profile",
    "report",
    "scaling",
]


class CallableModule(types.ModuleType):
    """The class of this module, which makes `thunder.examine` callable."""

    if TYPE_CHECKING:  # the attributes of the module
        examine, fusions, memory = staticmethod(examine), staticmethod(fusions), staticmethod(memory)
        choices = staticmethod(choices)
        distributed, scaling, fake_ranks = staticmethod(distributed), staticmethod(scaling), staticmethod(fake_ranks)
        measure_collectives = staticmethod(measure_collectives)
        compare, profile, report = staticmethod(compare), staticmethod(profile), staticmethod(report)

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
        return examine(fn, *args, **kwargs)


sys.modules[__name__].__class__ = CallableModule
