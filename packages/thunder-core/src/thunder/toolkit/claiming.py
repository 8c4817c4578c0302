# SPDX-License-Identifier: Apache-2.0
"""Claiming: find the executor that runs an operation, for passes that rewrite only what their executor would claim.

`choose` returns the choice for one operation and changes nothing. `claim` returns a trace in which each operation is an
operator of the executor that claimed it.
"""

from thunder.execution.claim import Choice, choose, claim
from thunder.torch.loss_arguments import reduction_of as loss_reduction

__all__ = ["Choice", "choose", "claim", "loss_reduction"]
