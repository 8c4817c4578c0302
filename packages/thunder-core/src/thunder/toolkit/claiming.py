# SPDX-License-Identifier: Apache-2.0
"""Claiming: which executor takes an operation, for passes that rewrite what their own executor will take.

`choose` answers for one operation and changes nothing; `claim` gives a trace in which each operation is the operator of
the executor that takes it.
"""

from thunder.execution.claim import Choice, choose, claim
from thunder.torch.loss_arguments import reduction_of as loss_reduction

__all__ = ["Choice", "choose", "claim", "loss_reduction"]
