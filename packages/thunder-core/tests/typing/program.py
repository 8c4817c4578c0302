# SPDX-License-Identifier: Apache-2.0
"""What a user's type checker says of `thunder.jit` and its relatives; `check_types.py` compares it with the comments.

`# type: T` behind a line: `reveal_type` says `T` there. `# error: code`: the type checker reports an error there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import reveal_type

import thunder

x = torch.ones(2)


# -- functions --------------------------------------------------------------------------------------------------------
@thunder.jit
def scaled(a: Tensor, b: float, *, scale: float = 1.0) -> Tensor:
    return a * b * scale


reveal_type(scaled)  # type: JitFunction[[a: Tensor, b: float, *, scale: float =], Tensor]
reveal_type(scaled(x, 2.0, scale=3.0))  # type: Tensor
scaled("x", 3)  # error: arg-type
scaled(x, 2.0, 3.0)  # error: call-arg
scaled(x, 2.0, scal=3.0)  # error: call-arg


@thunder.jit(cache="symbolic values", remat="none")
def pair(a: Tensor) -> tuple[Tensor, int]:
    return a, a.shape[0]


reveal_type(pair(x))  # type: tuple[Tensor, int]
pair()  # error: call-arg

reveal_type(thunder.compile(pair)(x))  # type: tuple[Tensor, int]
reveal_type(thunder.disable(scaled)(x, 2.0))  # type: Tensor


# -- options ----------------------------------------------------------------------------------------------------------
thunder.jit(pair, cache="symbolic")  # error: call-overload
thunder.jit(pair, remat="some")  # error: call-overload
thunder.jit(pair, sharp_edges="no")  # error: call-overload
thunder.jit(pair, transforms=[thunder.transforms.CUDAGraphTransform()])
reveal_type(thunder.transforms.CUDAGraphTransform())  # type: CUDAGraphTransform
thunder.jit(pair, transforms=["debug"])  # error: list-item
thunder.jit(pair, executors=["triton", thunder.executors.TORCH], triton_option=1)


# -- modules ----------------------------------------------------------------------------------------------------------
class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.linear(inputs)
        return found

    @thunder.jit
    def repeated(self, inputs: Tensor, times: int) -> Tensor:
        return inputs.repeat(times)


reveal_type(thunder.jit(Model()))  # type: Model
reveal_type(thunder.jit(Model()).linear)  # type: Linear
reveal_type(thunder.jit(remat="none")(Model()))  # type: Model
reveal_type(Model().repeated(x, 2))  # type: Tensor
Model().repeated(x, "2")  # error: arg-type


# -- transforms of functions ------------------------------------------------------------------------------------------
def loss(a: Tensor, times: int) -> Tensor:
    return (a * times).sum()


reveal_type(thunder.grad(loss))  # type: JitFunction[[a: Tensor, times: int], Any]
reveal_type(thunder.value_and_grad(loss)(x, 2))  # type: tuple[Tensor, Any]
reveal_type(thunder.vmap(loss)(x, 2))  # type: Tensor
thunder.grad(loss)(2, x)  # error: arg-type
thunder.vmap(loss, randomness="some")  # error: arg-type


# -- what is asked of a jitted function -------------------------------------------------------------------------------
reveal_type(thunder.last_traces(scaled))  # type: list[Trace]
reveal_type(thunder.cache_hits(scaled))  # type: int
reveal_type(thunder.explain(scaled))  # type: str
reveal_type(thunder.examine(loss, x, 2))  # type: Report
reveal_type(thunder.examine.memory(loss, x, 2))  # type: MemoryReport
print(thunder.no_such_name)  # error: attr-defined
