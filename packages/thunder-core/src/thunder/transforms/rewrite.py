# SPDX-License-Identifier: Apache-2.0
"""`RewritePass`: a transform that replaces operations one by one.

    class Relu6(thunder.RewritePass):
        '''Bounds every relu.'''

        def rewrite(self, op):
            if op.sym is ltorch.relu:
                return ltorch.relu6(*op.args)

    thunder.jit(model, transforms=[Relu6()])

Contract: if nothing is replaced, the same trace is returned. Operations whose results become unused are dropped. The
contract of `Rewriter` applies too (`passes/rewrite.py`).
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from thunder.core.trace import Trace
from thunder.passes.rewrite import Rewriter
from thunder.transforms.base import PHASES, PassContext, Transform

__all__ = ["RewritePass"]


class RewritePass(Rewriter, Transform):
    """Replace operations in each of `phases`. Override `rewrite`, `rewrite_output` or both.

    Each run works on a copy of the object, so attributes set by `start` belong to one trace. This is necessary because
    several threads may compile at the same time, and because backward programs are compiled when gradients first
    arrive.
    """

    #: The stages at which the pass runs, from `thunder.transforms.base.PHASES`.
    phases: ClassVar[tuple[str, ...]] = ("before_grad",)
    #: The context of the compilation: its executors, the user's options and the phase.
    context: PassContext

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject an unknown phase when the class is defined."""
        super().__init_subclass__(**options)
        unknown = [cls.phases] if isinstance(cls.phases, str) else [p for p in cls.phases if p not in PHASES]
        if unknown:
            raise TypeError(
                f"{cls.__name__}.phases must be a tuple of names among {', '.join(PHASES)}, not {unknown[0]!r}"
            )

    def has(self, phase: str) -> bool:
        return phase in self.phases

    def _rewritten(self, trace: Trace, context: PassContext) -> Trace:
        run = copy.copy(self)
        run.context = context
        out = run.run(trace)
        return out if run.changed else trace

    transform_computation = transform_execution = transform_claimed = _rewritten
    transform_prologue = transform_epilogue = _rewritten
