# SPDX-License-Identifier: Apache-2.0
"""Memory as predicted line by line, against what is live when the program runs."""

from __future__ import annotations

import gc
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import float_tensor, record
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core import prims
from thunder.core.trace import Trace
from thunder.execution.memory_estimate import MemoryTracker, estimate_memory
from thunder.extend import OperatorExecutor

KIB = 1024
llama, nanogpt = (
    runpy.run_path(str(Path(__file__).parents[1] / "models" / f"{name}.py"), run_name=f"footprint_{name}")
    for name in ("llama", "nanogpt")
)


def traced(fn: Any, *sizes: int) -> Trace:
    """The trace of `fn` on float32 vectors."""
    return record(fn, [float_tensor(f"x{i}", n) for i, n in enumerate(sizes)], unpack=True)


def measured(run: Any, inputs: Any) -> int:
    """The most memory that is live while `run` runs, inputs included."""
    gc.collect()
    tracker = MemoryTracker()
    tracker.add(inputs)
    with tracker:
        run()
    return tracker.peak


def test_lines_of_a_program() -> None:
    """What is live after each line, and while it runs: results, what is dropped afterwards, inputs throughout."""
    import thunder.torch as ltorch

    def f(x: Any) -> Any:
        a = ltorch.sin(x)  # one more
        b = ltorch.reshape(a, (16, 16))  # a view
        c = ltorch.matmul(b, b)  # one more; then a and b go
        return ltorch.sum(c)

    report = thunder.examine.memory(traced(f, 256))
    assert report.inputs == KIB
    assert [(line.live, line.peak) for line in report.lines] == [
        (2 * KIB, 2 * KIB), (2 * KIB, 2 * KIB), (2 * KIB, 3 * KIB), (KIB + 4, 2 * KIB + 4),
    ]  # fmt: skip
    assert (report.peak, report.live) == (3 * KIB, KIB + 4)
    text = str(report)
    assert "peak 3072 bytes, of which inputs 1024 bytes; 1028 bytes at the end" in text
    assert [line for line in text.splitlines() if "<- peak" in line and "matmul" in line]


def test_writes_take_no_memory() -> None:
    """And what torch allocates inside one of its functions counts while that runs."""

    def f(x: torch.Tensor) -> Any:
        x.add_(1)
        return torch.var(x, dim=0)

    x = torch.zeros(1024)
    report = thunder.examine.memory(f, x)
    assert torch.equal(x, torch.zeros(1024))  # nothing runs
    assert report.peak == report.inputs + 4  # the sum is written in place
    assert report.live == report.inputs + 4


def test_an_operation_that_only_runs_on_real_tensors() -> None:
    """Is taken to allocate its results."""
    executor = OperatorExecutor("footprint_test")

    def run(a: torch.Tensor) -> Any:
        return torch.tensor(a.numpy() * 2), a + 1

    op = executor.register_operator("pair", like=lambda a: (a * 2, a + 1), fn=run)
    report = thunder.examine.memory(lambda a: torch.mul(*op(a)), torch.ones(256), executors=[executor])
    assert [(line.live, line.peak) for line in report.lines] == [(3 * KIB, 3 * KIB), (2 * KIB, 4 * KIB)]


def test_what_is_not_run() -> None:
    """Kernels of other executors, whose launches no fake tensor survives; hooks; what moves random numbers."""
    executor = OperatorExecutor("footprint_kernels")
    ran: list[Any] = []

    def kernel(a: torch.Tensor) -> torch.Tensor:
        ran.append(a)
        return a.sin()

    op = executor.register_operator("kernel_sin", like=lambda a: a + 0, fn=kernel)

    def f(a: Any) -> Any:
        b = op(a) * 2
        b.register_hook(ran.append)
        return checkpoint(lambda x: F.dropout(x, 0.5).exp().sum(), b, use_reentrant=False)

    before = torch.get_rng_state()
    report = thunder.examine.memory(f, torch.ones(256, requires_grad=True), executors=[executor])
    assert report.peak >= 3 * KIB and "backward" in report.sections
    assert not ran and torch.equal(before, torch.get_rng_state())


def test_what_an_operator_needs_besides() -> None:
    """Its executor says, of the arguments."""
    executor = OperatorExecutor("footprint_workspace")
    op = executor.register_operator(
        "chunked", like=lambda a, n: a + n, fn=lambda a, n: a + n, workspace=lambda a, n: n * a.shape[0] * 4
    )
    report = thunder.examine.memory(lambda a: op(a, 3) * 2, torch.ones(256), executors=[executor])
    assert [(line.live, line.peak) for line in report.lines] == [(2 * KIB, 5 * KIB), (2 * KIB, 3 * KIB)]


class Mixed(nn.Module):
    """Convolution, batch norm, attention, dropout, embedding, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.norm = nn.BatchNorm1d(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Any, *, labels: Any) -> Any:
        """A loss."""
        x = self.norm(self.conv(self.embed(tokens).mT)).relu().mT
        x = F.dropout(x + self.attention(x, x, x, need_weights=False)[0], 0.1)
        return {"loss": F.cross_entropy(self.head(F.gelu(x)).flatten(0, 1), labels.flatten())}


MODELS = {
    "llama": lambda: llama["Llama"](llama["LlamaConfig"](n_embd=64, intermediate=160)),
    "nanogpt": lambda: nanogpt["GPT"](nanogpt["GPTConfig"](dropout=0.1)),
    "mixed": Mixed,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_is_predicted(name: str) -> None:
    """Within 5 % of what is live while it runs on the CPU; so is the forward program by itself."""
    torch.manual_seed(0)
    model = MODELS[name]()
    jitted = thunder.jit(model)
    tokens = torch.randint(0, 50, (4, 16))

    def loss() -> Any:
        out = jitted(tokens, labels=tokens) if name != "nanogpt" else jitted(tokens, tokens)
        return out["loss"] if isinstance(out, dict) else out[1]

    loss().backward()
    model.zero_grad()
    report = thunder.examine.memory(jitted, keep_outputs=False)
    inputs = [*model.parameters(), *model.buffers(), tokens]
    found = measured(lambda: loss().backward(), inputs)
    assert abs(report.peak - found) <= 0.05 * found
    model.zero_grad()
    found = measured(loss, inputs)
    assert abs(max(line.peak for line in report.sections["forward"]) - found) <= 0.05 * found


def test_results_may_be_held() -> None:
    """By default the caller keeps them through backward."""

    def f(a: Any) -> Any:
        big = a.repeat(64)
        return {"loss": big.exp().sum(), "big": big}

    a = torch.zeros(256, requires_grad=True)
    kept, dropped = (thunder.examine.memory(f, a, keep_outputs=keep) for keep in (True, False))
    assert kept.live - dropped.live == 64 * KIB + 4


def test_a_trace_that_nobody_claimed() -> None:
    """Is claimed first; one that runs already is taken as it is."""
    trace = traced(lambda x: prims.exp(prims.sin(x)), 256)
    report = thunder.examine.memory(trace)
    assert [line.live for line in report.lines] == [2 * KIB, 2 * KIB]
    jitted = thunder.jit(lambda x: x.sin().exp())
    jitted(torch.ones(256))
    assert estimate_memory(thunder.last_traces(jitted)[-1]).peak == report.peak == 3 * KIB
