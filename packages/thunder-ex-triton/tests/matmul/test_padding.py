# SPDX-License-Identifier: Apache-2.0
"""Programs with padded matrix multiplications: their traces, values, strides and gradients.

The rule is patched, so that small products on any device are padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
import thunder.torch as ltorch
from thunder.extend import OperatorExecutor, deregister_executor, register_executor
from thunder.toolkit.testing import measured_times, new_process
from thunder_ex_triton.matmul import rule

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently
CLASSES, HIDDEN = 37, 16


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies cost nothing."""
    monkeypatch.setattr(rule, "DEVICES", (DEVICE,))
    monkeypatch.setattr(rule, "SLOWDOWN", 1e12)


def random(*shape: int, dtype: torch.dtype = HALF, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_(grad)


def labels(count: int) -> torch.Tensor:
    return torch.arange(count, device=DEVICE) * 5 % CLASSES


def operations(trace: Any) -> list[str]:
    """The operations of a trace and the parts of fusions, without views."""
    found = []
    for op in trace.bound_symbols:
        found += [part.sym.name for part in op.subsymbols] if op.sym.is_fusion else [op.sym.name]
    others = ("unpack_trivial", "unpack_saved", "python_return", "python_del", "reshape", "permute", "mT")
    return [name for name in found if name not in others]


def programs(jitted: Any) -> tuple[list[str], list[str]]:
    backward = thunder.last_backward_traces(jitted)
    return operations(thunder.last_traces(jitted)[-1]), operations(backward[-1]) if backward else []


def total(found: Any) -> torch.Tensor:
    """A number that depends on each element of the results in another way."""
    several = found if isinstance(found, tuple) else (found,)
    return sum((x.cos() * 0.5).to(torch.promote_types(x.dtype, torch.float32)).sum() for x in several)


def check(f: Any, *args: Any, **options: Any) -> Any:
    """Compare values with float64, and strides with eager; those of gradients with the torch executor.

    Return the jitted function.
    """
    jitted = thunder.jit(f, **options)
    found, eager = jitted(*args), f(*args)
    exact = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in args]
    expected = f(*exact)
    several = isinstance(found, tuple)
    for mine, like, right in zip(*[x if several else (x,) for x in (found, eager, expected)]):
        assert (mine.stride(), mine.dtype) == (like.stride(), like.dtype) and mine._is_view() <= like._is_view()
        torch.testing.assert_close(mine.double(), right, rtol=3e-3, atol=3e-3)
    given = [(x, y) for x, y in zip(args, exact) if x.requires_grad]
    if given:
        inputs, wide = zip(*given)
        unpadded = thunder.jit(f, executors=["torch"])(*args)
        gradients, like = (torch.autograd.grad(total(y), inputs) for y in (found, unpadded))
        for mine, theirs, right in zip(gradients, like, torch.autograd.grad(total(expected), wide)):
            assert mine.shape == theirs.shape and mine.stride() == theirs.stride()
            torch.testing.assert_close(mine.double(), right, rtol=2e-2, atol=1e-2)
    return jitted


def gaps(jitted: Any) -> list[bool]:
    """For each padded result of the program, whether its rows have gaps between them."""
    trace = thunder.last_traces(jitted)[-1]
    return [op.args[5] for op in trace.bound_symbols if op.sym.name == "triton_padded_matmul"]


def head(x: Any, w: Any, t: Any) -> Any:
    """The end of a language model, which returns the logits."""
    logits = F.linear(x, w)
    return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), t)


def test_head_forward_and_backward() -> None:
    """All three products are padded. The gradient of the logits is written into padded memory, without a copy."""
    args = random(2, 4, HIDDEN, grad=True), random(CLASSES, HIDDEN, grad=True), labels(8)
    jitted = thunder.jit(head)
    logits, loss = jitted(*args)
    loss.backward()
    forward, backward = programs(jitted)
    assert forward == ["pad", "triton_padded_matmul", "triton_crossentropy_forward"]
    assert sorted(backward) == ["matmul", "pad", "triton_crossentropy_backward", "triton_padded_matmul"]
    assert logits.is_contiguous() and not logits._is_view()
    assert logits.untyped_storage().nbytes() == logits.numel() * logits.element_size()
    check(lambda *args: head(*args)[1], *args)
    check(lambda *args: head(*args)[0], *args)  # its gradient is another


def test_both_outputs() -> None:
    """Gradients of the logits that come from elsewhere are padded by a copy, once for both products."""
    args = random(2, 4, HIDDEN, grad=True), random(CLASSES, HIDDEN, grad=True), labels(8)
    jitted = check(head, *args)
    backward = programs(jitted)[1]
    assert backward.count("pad") == 2  # the weight and the sum of the gradients
    assert backward.count("matmul") == backward.count("triton_padded_matmul") == 1


def test_gaps_between_rows() -> None:
    """A result that only kernels read has gaps between its rows. Values that leave the program have none."""
    x, w, t = random(2, 4, HIDDEN), random(CLASSES, HIDDEN), labels(8)

    def loss(x: Any, w: Any, t: Any) -> Any:
        return F.cross_entropy(30 * torch.tanh(F.linear(x, w) / 30).view(-1, CLASSES), t)

    def viewed(x: Any, w: Any, t: Any) -> Any:
        return F.linear(x, w).as_strided((8, 5), (CLASSES, 1)) + t[:, None]

    def sliced(x: Any, w: Any, t: Any) -> Any:
        return F.linear(x, w)[..., 1:3]

    assert gaps(check(loss, x, w, t)) == [True]
    assert gaps(check(lambda x, w: F.linear(x, w).softmax(-1), x, w)) == [True]
    assert gaps(check(viewed, x, w, t)) == [False]
    assert gaps(check(sliced, x, w, t)) == [False]
    assert gaps(check(head, x, w, t)) == [False]
    x.requires_grad_()
    assert gaps(check(loss, x, w, t)) == [True]  # the result of tanh is saved for backward
    assert gaps(check(lambda x, w: F.linear(x, w).sin(), x, w)) == [False]  # the logits are saved


def test_training_step_in_one_program() -> None:
    """The logits stay in padded memory, and all products share the padded weight."""

    def step(x: Any, w: Any, t: Any) -> Any:
        loss = F.cross_entropy(F.linear(x, w), t)
        loss.backward()
        return loss.detach()

    args = random(8, HIDDEN, grad=True), random(CLASSES, HIDDEN, grad=True), labels(8)
    jitted = thunder.jit(step, triton_linear_cross_entropy=False, cuda_graphs="never")
    jitted(*args)
    found = [x.grad for x in args[:2]]
    padded = str(thunder.last_traces(jitted)[-1]).count("= ltorch.pad(")  # fused or not
    assert padded == 1 and gaps(jitted) == [True, False]
    for x in args[:2]:
        x.grad = None
    step(*args)
    for x, mine in zip(args, found):
        assert mine.stride() == x.grad.stride() and not mine._is_view()
        torch.testing.assert_close(mine, x.grad, rtol=2e-2, atol=1e-3)


def test_update_in_place() -> None:
    """An update of the weight by its padded gradient is written to the memory of the weight."""

    def step(x: Any, w: Any) -> Any:
        (g,) = torch.autograd.grad(F.linear(x, w).sin().sum(), (w,))
        with torch.no_grad():
            w.sub_(0.1 * g)

    x, w = random(8, HIDDEN), random(CLASSES, HIDDEN, grad=True)
    expected = w.detach().clone().requires_grad_()
    jitted = thunder.jit(step)
    jitted(x, w)
    step(x, expected)
    torch.testing.assert_close(w, expected, rtol=5e-3, atol=5e-3)
    *_, update, _ = [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name != "python_del"]
    assert update.sym.is_fusion and update.arg_names.count("w") == 2  # also as the memory of the result


PRODUCTS = {
    "matmul": (torch.matmul, (12, 9), (9, 11)),
    "mm": (torch.mm, (12, 9), (9, 16)),
    "transposed": (lambda a, b: a.t() @ b.mT, (9, 12), (11, 9)),
    "rows": (torch.matmul, (2, 3, 9), (9, 11)),
    "bmm": (torch.bmm, (3, 4, 9), (3, 9, 11)),
    "one batch": (torch.matmul, (1, 4, 16), (1, 16, 11)),
    "transposed batches": (lambda a, b: torch.matmul(a.transpose(-1, -2), b), (2, 3, 9, 4), (2, 3, 9, 11)),
    "broadcast": (torch.matmul, (4, 9), (3, 9, 11)),
    "vector": (torch.matmul, (4, 9), (9,)),
    "columns of rows": (lambda a, b: a.transpose(-1, -2) @ b, (2, 9, 3), (9, 11)),
    "linear": (F.linear, (2, 5, 9), (11, 9)),
    "same operand": (lambda a, b: a @ a.mT, (11, 9), (1,)),
    "aligned": (torch.matmul, (12, 16), (16, 24)),
}
UNPADDED = ("broadcast", "vector", "columns of rows", "aligned")


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    """Every kind of product, and its gradients."""
    f, a, b = PRODUCTS[name]
    with torch.no_grad():
        alone = check(f, random(*a), random(*b))
    assert any("pad" in name for name in programs(alone)[0]) == (name not in UNPADDED)
    check(f, random(*a, grad=True), random(*b, grad=name != "same operand"))


def test_bias() -> None:
    """The bias is padded too, and its gradient reads the gradient without padding."""
    x, w, b = random(8, HIDDEN, grad=True), random(CLASSES, HIDDEN, grad=True), random(CLASSES, grad=True)
    jitted = check(F.linear, x, w, b)
    assert "triton_padded_matmul" in programs(jitted)[0]
    check(lambda x, w, b: 9 * F.cross_entropy(F.linear(x, w, b), labels(8)), x, w, b)
    check(lambda x, w, b: F.linear(x, w[:, :9], b), random(8, 9, grad=True), w, b)


def test_infinities_stay_in_their_rows() -> None:
    """The padding of a result is not read as padding of an operand: infinity times zero would spread."""
    x, w = random(8, HIDDEN), random(CLASSES, HIDDEN)
    x[3, 2] = float("inf")
    found = thunder.jit(lambda x, w: F.linear(x, w) @ w)(x, w)
    torch.testing.assert_close(found, F.linear(x, w) @ w, equal_nan=True, rtol=3e-3, atol=3e-2)


def test_updates_of_a_padded_weight() -> None:
    """A weight that the program writes after it was padded."""

    def f(x: Any, w: Any) -> Any:
        before = F.linear(x, w)
        w.mul_(2)
        return before, F.linear(x, w)

    x, w = random(8, HIDDEN), random(CLASSES, HIDDEN)
    mine, theirs = w.clone(), w.clone()
    torch.testing.assert_close(thunder.jit(f)(x, mine), f(x, theirs), rtol=3e-3, atol=3e-3)
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_half_precision(dtype: torch.dtype) -> None:
    """Other dtypes and other executors compute eager's bits."""
    x, w = random(8, HIDDEN, dtype=dtype), random(CLASSES, HIDDEN, dtype=dtype)
    assert torch.equal(thunder.jit(F.linear)(x, w), F.linear(x, w))
    x, w = x.to(HALF), w.to(HALF)
    jitted = thunder.jit(F.linear, executors=["torch"])
    assert torch.equal(jitted(x, w), F.linear(x, w)) and "pad" not in str(thunder.last_traces(jitted)[-1])


def test_matmuls_of_other_executors() -> None:
    """A matrix multiplication that another executor runs is not padded, unless it would run it more slowly."""
    runs = []
    ex = OperatorExecutor("matmuls_of_a_test")
    op = ex.register_operator("own_linear", like=lambda x, w, bias=None: ltorch.linear(x, w, bias), fn=F.linear)
    x, w = random(8, HIDDEN), random(CLASSES, HIDDEN)
    for pays in (True, False):
        ex.register_implementation(ltorch.linear, op, profitable=lambda *args, pays=pays: pays)
        register_executor(ex, default=True, priority=50)
        try:
            jitted = thunder.jit(F.linear)
            jitted(x, w)
            runs.append(programs(jitted)[0][-1])
        finally:
            deregister_executor(ex)
    assert runs == ["own_linear", "triton_padded_matmul"]


def test_saved_tensors_are_contiguous() -> None:
    """Hooks of saved tensors see no padding."""
    args = random(8, HIDDEN, grad=True), random(CLASSES, HIDDEN, grad=True), labels(8)

    def f(x: Any, w: Any, t: Any) -> Any:
        return F.cross_entropy(F.linear(x, w).sin(), t)

    seen: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        thunder.jit(f)(*args).backward()
    assert seen and all(x.is_contiguous() for x in seen)


@pytest.fixture
def gpt() -> Iterator[Any]:
    """A model with a head of an odd number of tokens, tied to its embedding."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(CLASSES, HIDDEN)
            self.norm = torch.nn.LayerNorm(HIDDEN)
            self.up = torch.nn.Linear(HIDDEN, 32)
            self.down = torch.nn.Linear(32, HIDDEN)

        def forward(self, idx: Any, targets: Any) -> Any:
            x = self.embed(idx)
            x = x + self.down(F.gelu(self.up(self.norm(x))))
            logits = F.linear(x, self.embed.weight)
            return logits, F.cross_entropy(logits.view(-1, CLASSES).float(), targets.view(-1))

    torch.manual_seed(0)
    yield Model().to(DEVICE, HALF)


def test_training_step(gpt: Any) -> None:
    """A step of training: gradients of all parameters are those of eager, up to rounding."""
    idx = labels(12).view(2, 6)
    jitted = thunder.jit(gpt)
    logits, loss = jitted(idx, idx.flip(1))
    loss.backward()
    found = {name: p.grad.clone() for name, p in gpt.named_parameters()}
    assert "triton_padded_matmul" in programs(jitted)[0] and "triton_padded_matmul" in programs(jitted)[1]
    gpt.zero_grad()
    expected, right = gpt(idx, idx.flip(1))
    right.backward()
    assert logits.stride() == expected.stride()
    torch.testing.assert_close(loss, right, rtol=2e-3, atol=2e-3)
    for name, p in gpt.named_parameters():
        assert found[name].stride() == p.grad.stride()
        torch.testing.assert_close(found[name], p.grad, rtol=2e-2, atol=2e-3)


def test_layers_with_a_bias_share_a_padded_input() -> None:
    """The bias is an operand that is never padded."""

    def f(x: Any, w: Any, b: Any) -> Any:
        h = x.view(-1, 21)
        return F.linear(h, w, b), h @ w[:16].mT

    check(f, random(4, 6, 21, grad=True), random(24, 21, grad=True), random(24, grad=True))


def paddings(jitted: Any) -> list[Any]:
    """The choices of padding."""
    return [choice for choice in thunder.examine.choices(jitted) if choice.operation == "padding of a matmul"]


@pytest.mark.parametrize("faster", ["torch", "padded"])
@pytest.mark.parametrize("pays", [True, False])
def test_measurements_decide(pays: bool, faster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rule says, which is the default."""
    if not pays:
        monkeypatch.setattr(rule, "SLOWDOWN", 0)
    x, w, bias = random(8, HIDDEN), random(CLASSES, HIDDEN), random(CLASSES)
    times = {"torch": 2.0, "padded": 2.0, faster: 1.0}
    with measured_times(lambda name: times.get(name, 3.0)):
        jitted = check(F.linear, x, w, bias, measured="first call")
        (choice,) = paddings(jitted)
        assert (choice.default, choice.chosen) == ("padded" if pays else "torch", faster)
        assert ("triton_padded_matmul" in programs(jitted)[0]) == (faster == "padded")
        new_process()
        assert programs(check(F.linear, x, w, bias, measured=True)) == programs(jitted)


@pytest.mark.parametrize(
    "f, shapes",
    [
        (torch.matmul, ((3, 8, HIDDEN), (HIDDEN, CLASSES))),
        (torch.matmul, ((2, 5, CLASSES), (2, CLASSES, HIDDEN))),
        (lambda a, b: a.mT @ b, ((HIDDEN, CLASSES), (HIDDEN, 8))),
    ],
)
def test_candidates_of_all_layouts_run(f: Any, shapes: Any) -> None:
    with measured_times(lambda name: 1.0 if name == "padded" else 2.0):
        jitted = check(f, *[random(*shape) for shape in shapes], measured="first call")
        (choice,) = paddings(jitted)
        assert choice.chosen == "padded" and not choice.failures
