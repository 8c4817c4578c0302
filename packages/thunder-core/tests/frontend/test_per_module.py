# SPDX-License-Identifier: Apache-2.0
"""`thunder.disable`: what stays Python behaves as in eager at each call, and the modules around it are programs."""

import copy
import pickle

import pytest
import torch
from torch import nn

import thunder
from thunder.core.errors import TracingError


@thunder.disable
def doubled_if_positive(x):
    return x * 2 if x.sum() > 0 else x


def test_a_branch_on_a_value():
    def f(x):
        return doubled_if_positive(x.sin()).cos()

    jf = thunder.jit(f)
    for scale in (1.0, -1.0, 2.0):
        x = (scale * torch.rand(4)).requires_grad_()
        out = jf(x)
        assert torch.equal(out, f(x))
        assert torch.equal(*[torch.autograd.grad(y.sum(), x)[0] for y in (out, f(x))])
    assert "doubled_if_positive" in thunder.explain(jf)
    assert "(3 partly eager)" in thunder.explain(jf)
    with pytest.raises(RuntimeError, match="partly eager"):
        thunder.last_traces(jf)
    thunder.reset()
    assert "partly eager" not in thunder.explain(jf)


def test_it_may_return_anything_and_change_objects():
    seen = []

    class Found:
        def __init__(self, kept):
            self.kept = kept

    @thunder.disable
    def look(x, *, threshold):
        seen.append(x)
        return Found(x[x > threshold]), [float(v) for v in x], x.numpy().shape

    def f(x):
        found, numbers, shape = look(x + 1, threshold=1.0)
        return found.kept * len(numbers), numbers, shape

    jf = thunder.jit(f)
    for n in range(1, 6):
        x = torch.randn(n)
        for got, wanted in zip(jf(x), f(x)):
            assert torch.equal(got, wanted) if isinstance(got, torch.Tensor) else got == wanted
    assert [type(x) for x in seen] == [torch.Tensor] * 10


def test_an_exception_of_it_is_the_programs():
    @thunder.disable
    def check(x):
        if x.min() < 0:
            raise ValueError("negative")

    def f(x):
        try:
            check(x)
        except ValueError as error:
            return x.abs(), str(error)
        return x, None

    jf = thunder.jit(f)
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        (a, b), (c, d) = jf(x), f(x)
        assert torch.equal(a, c) and b == d
    with pytest.raises(ValueError, match="negative"):
        thunder.jit(lambda x: check(x))(-torch.ones(2))


class Block(nn.Module):
    def __init__(self, routed):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.norm = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4))
        self.routed = routed
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = x + self.norm(self.up(x).relu())
        return self.route(x) if self.routed else x

    @thunder.disable
    def route(self, x):
        self.last = x.detach().sum().item()
        return x * 2 if self.last > 0 else -x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(i == 1) for i in range(3)])
        self.by_name = nn.ModuleDict({"end": Block(False)})
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        assert isinstance(self.layers[0], Block) and self.layers[0].__class__ is Block
        assert self.layers[-1] is not None and len(self.layers) == 3
        for i, layer in enumerate(self.layers):
            assert layer == self.layers[i]
            x = layer(x)
        return self.norm(self.by_name["end"](x))


def test_the_modules_around_it_are_programs():
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    jnet = thunder.jit(net)
    for _ in range(8):
        x = torch.randn(3, 4, requires_grad=True)
        out, wanted = jnet(x), other(x)
        torch.testing.assert_close(out, wanted)
        out.square().sum().backward()
        wanted.square().sum().backward()
        for (name, p), q in zip(net.named_parameters(), other.parameters()):
            torch.testing.assert_close(p.grad, q.grad, msg=name)
        assert [layer.calls for layer in net.layers] == [layer.calls for layer in other.layers]
        assert net.layers[1].last == pytest.approx(other.layers[1].last)
    assert {type(m) for m in net.modules()} == {type(m) for m in other.modules()}
    for (name, b), c in zip(net.named_buffers(), other.buffers()):
        torch.testing.assert_close(b, c, msg=name)
    told = thunder.explain(jnet)
    # A counter is a constant, a constant, then an input: no module is traced for ever.
    assert "thunder.jit(Block): 8 calls, 3 compilations" in told
    assert list(net.state_dict()) == list(other.state_dict())
    copied = copy.deepcopy(jnet)
    torch.testing.assert_close(copied(x), jnet(x))
    torch.testing.assert_close(pickle.loads(pickle.dumps(jnet))(x), jnet(x))


def test_children_that_change():
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block(False)])

        def forward(self, x):
            if len(self.blocks) < 3:
                self.blocks.append(Block(False))
            self.extra = nn.Identity()
            x = doubled_if_positive(x)
            for block in self.blocks:
                x = block(x)
            return self.extra(x)

    net = Growing()
    jnet = thunder.jit(net)
    x = torch.randn(2, 4)
    for n in (2, 3, 3):
        jnet(x)
        assert len(net.blocks) == n and isinstance(net.extra, nn.Identity)
    assert all(type(block) is Block for block in net.blocks)
    torch.testing.assert_close(jnet(x), net(x))
    net.blocks[0] = Block(True)
    torch.testing.assert_close(jnet(x), net(x))


def test_hooks_see_the_modules():
    net = Net()
    seen = []
    net.layers[0].register_forward_hook(lambda m, args, out: seen.append(type(m)))
    net.register_forward_hook(lambda m, args, out: out + 1)
    jnet = thunder.jit(net)
    jnet.eval()
    x = torch.randn(3, 4)
    torch.testing.assert_close(jnet(x), net(x))
    assert len(seen) >= 2


def test_a_module_and_a_class_of_modules():
    @thunder.disable
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 2)

        def forward(self, x):
            return torch.cat([self.gate(row[None]) if row.sum() > 0 else row[None, :2] for row in x])

    router = Router()
    block = thunder.disable(Block(True))
    net = nn.Sequential(Block(False), block, router)
    jnet = thunder.jit(net)
    for _ in range(3):
        x = torch.randn(5, 4)
        torch.testing.assert_close(jnet(x), net(x))
    assert "thunder.jit(Block): 3 calls" in thunder.explain(jnet)
    assert copy.deepcopy(net)[1].forward.__self__ is not block


def test_modules_that_a_function_is_given_or_closes_over():
    first, second, third = Block(False), Block(True), nn.Sequential(Block(False))

    def f(x, module, *, last):
        return last(doubled_if_positive(module(first(x))))

    jf = thunder.jit(f)
    for _ in range(2):
        x = torch.randn(2, 4)
        torch.testing.assert_close(jf(x, second, last=third), f(x, second, last=third))
    told = thunder.explain(jf)
    assert told.count("thunder.jit(Block)") == 2 and "thunder.jit(Sequential)" in told


MODEL = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
STEPS = 0


def predicts(x):
    return doubled_if_positive(MODEL(x))


def counts(x):
    global STEPS
    STEPS += 1
    return doubled_if_positive(MODEL(x)) + STEPS


def test_modules_that_are_globals():
    x = torch.randn(2, 4)
    jf = thunder.jit(predicts)
    for _ in range(2):
        torch.testing.assert_close(jf(x), predicts(x))
    assert "thunder.jit(Sequential): 2 calls, 1 compilation" in thunder.explain(jf)
    assert type(MODEL) is nn.Sequential
    jf = thunder.jit(counts)  # it assigns to globals: they are its own
    assert [float((jf(x) - doubled_if_positive(MODEL(x))).mean().round()) for _ in range(3)] == [1, 2, 3]
    assert STEPS == 3


RATE = 1.0


def set_rate(rate):
    global RATE
    RATE = rate


def changes_globals(x):
    out = doubled_if_positive(MODEL(x)) * RATE
    set_rate(RATE + 1)
    out = out + RATE
    globals()["RATE"] = 2 * RATE
    names = [name for name in globals() if name == "RATE"]
    return out * RATE, names, globals()["MODEL"] is MODEL, "MODEL" in globals(), len(globals()) > 20


def test_globals_are_read_and_written_as_they_are():
    x = torch.randn(2, 4)
    jitted, found, wanted = thunder.jit(changes_globals), [], []
    for run, results in ((jitted, found), (changes_globals, wanted)):
        set_rate(1.0)
        for _ in range(3):
            results.append((*run(x), RATE))
            set_rate(RATE - 0.5)
    for got, expected in zip(found, wanted):
        torch.testing.assert_close(got[0], expected[0])
        assert got[1:] == expected[1:]


def reads_globals_in_a_class(x):
    out = doubled_if_positive(MODEL(x))

    class Rates:
        rate = RATE

    return out * Rates.rate


def test_class_bodies_find_globals():
    """The interpreter looks up globals of a class body in the dict itself."""
    x = torch.ones(2, 4)
    jitted = thunder.jit(reads_globals_in_a_class)
    for _ in range(2):
        torch.testing.assert_close(jitted(x), reads_globals_in_a_class(x))


def test_inside_of_modes_and_of_jitted_functions():
    states = []

    @thunder.disable
    def note(x):
        states.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.compiler.is_compiling()))
        return x

    inner = thunder.jit(lambda x: note(x) * 2)

    def f(x):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            y = note(x @ x)
        return inner(y.float()) + x

    jf = thunder.jit(f)
    x = torch.randn(3, 3, requires_grad=True)
    for _ in range(3):
        torch.testing.assert_close(jf(x), f(x))
    assert set(states) == {(False, True, False), (True, False, False)}


def test_only_paths_that_call_it_are_in_pieces():
    @thunder.disable
    def log(x):
        return x.sum().item()

    def f(x, verbose):
        if verbose:
            log(x)
        return x * 2

    jf = thunder.jit(f)
    x = torch.ones(3)
    assert torch.equal(jf(x, False), x * 2)
    assert torch.equal(jf(x, True), x * 2)
    assert torch.equal(jf(x, False), x * 2)
    assert (thunder.cache_hits(jf), thunder.cache_misses(jf)) == (1, 2)


def test_a_program_that_catches_everything():
    @thunder.disable
    def risky(x):
        return x * (2 if x.sum() > 0 else 3)

    def f(x):
        try:
            return risky(x)
        except Exception:
            return x

    jf = thunder.jit(f)
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(jf(x), f(x))


def test_nothing_is_left_of_the_trace_that_met_it():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0
            self.kept = []

        def forward(self, x):
            self.n += 1
            self.kept.append(x * 2)
            out = doubled_if_positive(x)
            self.n += 1
            return out + self.kept[-1]

    net = Counter()
    jnet = thunder.jit(net)
    for i in range(3):
        assert torch.equal(jnet(torch.ones(2)), torch.full((2,), 4.0))
        assert net.n == 2 * (i + 1) and len(net.kept) == i + 1
        assert type(net.kept[-1]) is torch.Tensor


def test_what_is_transformed_as_a_whole():
    """`torch.func.grad` runs it; a transform of the user's has no such form."""
    gradient = thunder.grad(lambda x: doubled_if_positive(x).sum())
    for _ in range(3):
        assert torch.equal(gradient(torch.ones(3)), torch.full((3,), 2.0))
    ones = thunder.core.transforms.grad(lambda x: doubled_if_positive(x).sum())
    with pytest.raises(TracingError, match=r"doubled_if_positive, which thunder\.disable keeps out"):
        ones(torch.ones(3))
    with pytest.raises(TypeError, match="takes a function or a module"):
        thunder.disable(3)


def test_outside_of_programs_it_is_the_function():
    assert doubled_if_positive.__name__ == "doubled_if_positive"
    x = torch.ones(2)
    assert torch.equal(doubled_if_positive(x), x * 2)

    class Owner:
        @thunder.disable
        def method(self, x):
            return self, x

        @staticmethod
        @thunder.disable
        def static(x):
            return x

        @thunder.disable
        @classmethod
        def of_class(cls, x):
            return cls

    owner = Owner()
    assert owner.method(1) == (owner, 1) and owner.static(2) == 2 and owner.of_class(3) is Owner


def test_legacy_backward_hooks():
    """They are given nodes of torch's graph: the module runs as Python, those around it are programs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Sequential(nn.Linear(3, 2), nn.Tanh()))
    seen = []
    net[1][0].register_backward_hook(
        lambda m, given, out: seen.append([None if g is None else g.clone() for g in given])
    )
    jnet = thunder.jit(net)
    x = torch.randn(2, 3, requires_grad=True)
    for _ in range(2):
        for f in (net, jnet):
            f(x).sum().backward()
        torch.testing.assert_close(seen[-1], seen[-2])
    assert len(seen) == 4
    assert "thunder.jit(Sequential): 2 calls, 1 compilation" in thunder.explain(jnet)


def test_the_graph_of_what_is_computed():
    def f(x):
        assert x.grad_fn is None and x.is_leaf
        y = x * 2
        assert not y.is_leaf
        return y, y.grad_fn

    jitted = thunder.jit(f)
    for _ in range(2):
        y, node = jitted(torch.ones(2, requires_grad=True))
        assert y.grad_fn is node is not None
    assert "reads the grad_fn" in thunder.explain(jitted)


def test_scripted_functions():
    scripted = torch.jit.script(nn.Linear(3, 3))
    stays = thunder.disable(scripted)
    x = torch.randn(2, 3)
    torch.testing.assert_close(thunder.jit(lambda x: stays(x) + 1)(x), scripted(x) + 1)

    @torch.jit.script
    def doubled(x):
        return x * 2

    x.requires_grad_()
    for fn in (doubled, scripted, torch.jit.trace(nn.Linear(3, 3), x.detach())):
        given = [x, *(fn.parameters() if isinstance(fn, nn.Module) else ())]
        jitted = thunder.jit(lambda x, fn=fn: fn(x) + 1)
        for _ in range(2):
            out = jitted(x)
            torch.testing.assert_close(out, fn(x) + 1)
            for a, b in zip(torch.autograd.grad(out.sum(), given), torch.autograd.grad(fn(x).sum(), given)):
                torch.testing.assert_close(a, b)
        assert "compiled by torch.jit" in thunder.explain(jitted)
        with pytest.raises(TypeError, match=r"compiled by torch\.jit: pass the original Python"):
            thunder.jit(fn)


class Logged(torch.Tensor):
    """Says itself what torch's functions do with it: they are counted, and `add` subtracts."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        func = torch.sub if func is torch.add else func
        return super().__torch_function__(func, types, args, kwargs or {})


class Bare(torch.Tensor):
    pass


def test_tensors_of_classes_of_the_users():
    def f(x):
        return torch.add(x, 1) * 2

    jf = thunder.jit(f)
    for _ in range(2):
        for kind in (Logged, Bare, torch.Tensor):
            x = torch.randn(3)
            before = Logged.calls
            out, wanted = jf(x.as_subclass(kind)), f(x.as_subclass(kind))
            assert type(out) is type(wanted) is kind
            assert (Logged.calls > before) is (kind is Logged)
            assert torch.equal(out.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))
    assert "class Logged" in thunder.explain(jf)

    inside = thunder.jit(lambda x: torch.add(x.as_subclass(Logged), 1).as_subclass(torch.Tensor) * 2)
    assert torch.equal(inside(x), (x - 1) * 2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.scale = Block(False), torch.full((4,), 2.0).as_subclass(Logged)

        def forward(self, x):
            return torch.add(self.scale, self.before(x))

    net = Net()
    jnet = thunder.jit(net)
    for _ in range(2):
        x = torch.randn(2, 4)
        torch.testing.assert_close(jnet(x).as_subclass(torch.Tensor), net(x).as_subclass(torch.Tensor))
    assert "thunder.jit(Block): 2 calls" in thunder.explain(jnet)
