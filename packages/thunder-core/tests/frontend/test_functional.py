# SPDX-License-Identifier: Apache-2.0
"""`thunder.grad`, `vmap` and their relatives give what their namesakes in torch.func give, errors too."""

from __future__ import annotations

import collections
import traceback

import pytest
import torch
import torch.func
from outcomes import rand, same
from torch.func import functional_call

import thunder

F64 = torch.float64
Pair = collections.namedtuple("Pair", "first second")


def f(x, w):
    return (torch.nn.functional.gelu(x @ w).softmax(-1) ** 2).sum()


def vector(x, w):
    return torch.tanh(x @ w).sum(-1), {"y": x.sin() * 2}


# -- results ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("argnums", [0, 1, -1, (0, 1), (1, 0), (1,)])
def test_grad_argnums(argnums):
    x, w = rand(3, 4), rand(4, 5)
    same(thunder.grad(f, argnums)(x, w), torch.func.grad(f, argnums)(x, w))
    same(thunder.grad_and_value(f, argnums)(x, w), torch.func.grad_and_value(f, argnums)(x, w))
    value, grads = thunder.value_and_grad(f, argnums)(x, w)
    same((grads, value), torch.func.grad_and_value(f, argnums)(x, w))


@pytest.mark.parametrize("fn", [lambda x: x.prod(0), lambda x: (x.permute(0).reshape(3) * x.prod(0, True)).sum()])
def test_pulling_back_twice(fn):
    """Each time through values of its own, but for those that an operation returns as they are."""

    def twice(vjp, x):
        out, pull = vjp(fn, x)
        return pull(out)[0] + pull(out * 2)[0] * pull(out.sin())[0]

    x = rand(3)
    same(thunder.jit(lambda x: twice(thunder.vjp, x))(x), twice(torch.func.vjp, x))
    nested = thunder.jacrev(lambda x: twice(thunder.vjp, x))(x)
    same(nested, torch.func.jacrev(lambda x: twice(torch.func.vjp, x))(x))


def test_aux_is_handed_on():
    def fn(x):
        y = x.sin()
        return y.sum(), {"y": y, "n": (x * 2,)}

    x = rand(3)
    same(thunder.grad(fn, has_aux=True)(x), torch.func.grad(fn, has_aux=True)(x))
    same(thunder.grad_and_value(fn, has_aux=True)(x), torch.func.grad_and_value(fn, has_aux=True)(x))
    out, vjp_fn, aux = thunder.vjp(lambda x: (x.sin(), x * 2), x, has_aux=True)
    same((out, vjp_fn(x), aux), (x.sin(), (x * x.cos(),), x * 2))
    same(
        thunder.jvp(lambda x: (x.sin(), x * 2), (x,), (x,), has_aux=True),
        torch.func.jvp(lambda x: (x.sin(), x * 2), (x,), (x,), has_aux=True),
    )
    for name in ("jacrev", "jacfwd"):
        ours, theirs = (getattr(m, name)(lambda x: (x.sin(), x * 2), has_aux=True)(x) for m in (thunder, torch.func))
        same(ours, theirs)


def test_containers():
    def fn(tree, pair):
        return (tree["a"] * tree["b"][0]).sum() + (pair.first * pair.second).sum()

    tree, pair = {"b": [rand(3), rand(2)], "a": rand(3)}, Pair(rand(2), rand(2))
    ours, theirs = thunder.grad(fn, (0, 1))(tree, pair), torch.func.grad(fn, (0, 1))(tree, pair)
    assert type(ours[1]) is Pair and list(ours[0]) == list(theirs[0])
    same(ours, theirs)
    _, vjp_fn = thunder.vjp(lambda t: {"z": t["a"] * 2}, tree)
    same(vjp_fn({"z": rand(3) * 0 + 1})[0]["a"], torch.full((3,), 2.0, dtype=F64))


def test_vjp_and_jvp():
    x, w, t, u = rand(3, 4), rand(4, 5), rand(3, 4), rand(4, 5)
    ours, theirs = thunder.vjp(vector, x, w), torch.func.vjp(vector, x, w)
    same(ours[0], theirs[0])
    for _ in range(2):
        cotangent = rand(3), {"y": rand(3, 4)}
        same(ours[1](cotangent), theirs[1](cotangent))
    same(thunder.jvp(vector, (x, w), (t, u)), torch.func.jvp(vector, (x, w), (t, u)))
    # Integers do not move, nor does what does not depend on the input.
    fn = lambda x: (x.argmax(), torch.ones(2), x.detach(), x)  # noqa: E731
    ours, theirs = thunder.jvp(fn, (t,), (x,)), torch.func.jvp(fn, (t,), (x,))
    same(ours[0], theirs[0])
    same(ours[1][:2] + ours[1][3:], theirs[1][:2] + theirs[1][3:])
    assert not ours[1][2].any()


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "hessian"])
@pytest.mark.parametrize("argnums", [0, (0, 1)])
def test_jacobians(name, argnums):
    x, w = rand(2, 3), rand(3, 2)
    fn = f if name == "hessian" else vector
    same(getattr(thunder, name)(fn, argnums)(x, w), getattr(torch.func, name)(fn, argnums)(x, w))


def test_jacrev_in_chunks():
    x, w = rand(2, 3), rand(3, 2)
    for size in (1, 2, 4, 100):
        same(thunder.jacrev(vector, chunk_size=size)(x, w), torch.func.jacrev(vector)(x, w))


# -- composition ------------------------------------------------------------------------------------------------------
def scalar(x):
    return torch.nn.functional.softplus(x * x.cumsum(-1)).prod(-1).sum()


def compositions(m):
    """The same compositions in thunder and in torch."""
    return {
        "grad of grad": lambda x: m.grad(lambda x: m.grad(scalar)(x).pow(2).sum())(x),
        "vmap of grad": lambda x: m.vmap(m.grad(scalar))(x),
        "grad of vmap": lambda x: m.grad(lambda x: m.vmap(scalar)(x).sin().sum())(x),
        "vmap of vmap": lambda x: m.vmap(m.vmap(lambda x: x.sin() * 2), in_dims=1)(x),
        "jvp of grad": lambda x: m.jvp(m.grad(scalar), (x,), (x.cos(),)),
        "grad of jvp": lambda x: m.grad(lambda x: m.jvp(scalar, (x,), (x,))[1])(x),
        "vmap of jvp": lambda x: m.vmap(lambda x: m.jvp(scalar, (x,), (x.exp(),)))(x),
        "jvp of vmap": lambda x: m.jvp(m.vmap(scalar), (x,), (x,)),
        "vmap of hessian": lambda x: m.vmap(m.hessian(scalar))(x),
        "vjp in vmap": lambda x: m.vmap(lambda x: m.vjp(torch.sin, x)[1](x * 2)[0])(x),
        "vmap of vjp": lambda x: m.vmap(m.vjp(torch.sin, x)[1])(torch.stack([x, x + 1]))[0],
        "jacfwd of jacrev of a part": lambda x: m.jacfwd(m.jacrev(lambda x: x[0].sin() * x[1]))(x),
        "closures": lambda x: m.grad(lambda y: m.grad(lambda z: (x * y * z * z).sum())(y).sum())(x * 2),
        "jacrev in grad": lambda x: m.grad(lambda x: m.jacrev(torch.sin)(x[0]).sum())(x),
    }


@pytest.mark.parametrize("name", list(compositions(torch.func)))
def test_compositions(name):
    x = rand(3, 4)
    expected = compositions(torch.func)[name](x)
    same(compositions(thunder)[name](x), expected)
    same(thunder.jit(compositions(thunder)[name])(x), expected)
    same(thunder.jit(compositions(torch.func)[name])(x), expected)  # torch's own, in a traced program


def test_transforms_of_jitted_functions_and_modules():
    x = rand(5, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).double()
    jitted, params = thunder.jit(model), dict(model.named_parameters())
    expected = torch.func.vmap(model)(x)
    same(thunder.vmap(jitted)(x), expected)
    for module in (model, jitted):
        out, vjp_fn = thunder.vjp(module, x)
        theirs = torch.func.vjp(model, x)
        same((out, vjp_fn(out)), (theirs[0], theirs[1](theirs[0])))
        assert out.requires_grad  # the parameters do
        same(thunder.jvp(module, (x,), (x,)), torch.func.jvp(model, (x,), (x,)))
        same(thunder.jacrev(module)(x), torch.func.jacrev(model)(x))
    same(thunder.vmap(model)(x), expected)

    def loss(params, x):
        return functional_call(model, params, (x,)).pow(2).sum()

    detached = {name: p.detach() for name, p in params.items()}
    expected = torch.func.grad(loss)(detached, x)
    same(thunder.grad(loss)(detached, x), expected)
    same(thunder.jit(torch.func.grad(loss))(detached, x), expected)
    same(thunder.grad(thunder.jit(loss))(detached, x), expected)
    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(detached, x)
    same(thunder.vmap(thunder.grad(loss), (None, 0))(detached, x), per_sample)
    same(thunder.grad(lambda x: jitted(x).sum())(x), torch.func.grad(lambda x: model(x).sum())(x))


# -- in torch's autograd ----------------------------------------------------------------------------------------------
def test_results_are_differentiated_by_torch():
    for m in (thunder, torch.func):
        x = torch.linspace(0, 1, 4, dtype=F64, requires_grad=True)
        w = torch.linspace(1, 2, 4, dtype=F64, requires_grad=True)
        out = m.grad(lambda x: (x * w).sin().sum())(x)
        assert out.requires_grad
        found = torch.autograd.grad(out.pow(2).sum(), (x, w))
        if m is thunder:
            ours = out, found
        else:
            same(ours, (out, found))
    plain = rand(4)
    assert not thunder.grad(lambda x: x.sin().sum())(plain).requires_grad
    with torch.no_grad():
        assert not thunder.grad(lambda x: (x * w).sin().sum())(x).requires_grad


def test_vjp_at_top_level_is_differentiated_by_torch():
    x = torch.linspace(0, 1, 4, dtype=F64, requires_grad=True)
    found = []
    for m in (thunder, torch.func):
        out, vjp_fn = m.vjp(lambda x: x.sin(), x)
        (g,) = vjp_fn(torch.ones_like(x))
        found.append((out, g, torch.autograd.grad(out.sum() + g.pow(2).sum(), x)))
    same(*found)
    out, vjp_fn = thunder.vjp(lambda x: x.sin(), x.detach())
    assert not out.requires_grad and not vjp_fn(x.detach())[0].requires_grad


def test_no_grad_inside_is_respected():
    def fn(x):
        with torch.no_grad():
            c = x**2
        return (x**2 - c * x).sum()

    x = rand(3)
    same(thunder.grad(fn)(x), torch.func.grad(fn)(x))
    with torch.no_grad():
        same(thunder.grad(fn)(x), torch.func.grad(fn)(x))
        same(thunder.vjp(fn, x)[1](torch.ones((), dtype=F64)), torch.func.vjp(fn, x)[1](torch.ones((), dtype=F64)))


def test_torch_func_around_jitted_functions() -> None:
    """Outside of a traced program torch's own transforms see the function's calls, also of one that was compiled."""
    module = torch.nn.Linear(4, 4, dtype=torch.float64)

    def h(x: torch.Tensor) -> torch.Tensor:
        return (module(x).sin() * x).sum()

    f, x = thunder.jit(h), torch.randn(5, 4, dtype=torch.float64)
    for _ in range(2):
        for transform in (torch.func.grad, torch.func.hessian, lambda g: lambda v: torch.func.jvp(g, (v,), (v,))):
            same(transform(f)(x[0]), transform(h)(x[0]))
            same(torch.func.vmap(transform(f))(x), torch.func.vmap(transform(h))(x))
        same(f(x[0]), h(x[0]))  # compiled, from here on
        same(torch.autograd.grad(f(x[0]), module.weight), torch.autograd.grad(h(x[0]), module.weight))
    jitted, values = thunder.jit(module), {name: p.detach() for name, p in module.named_parameters()}
    same(functional_call(jitted, values, (x,)), functional_call(module, values, (x,)))
    strict = thunder.jit(h, sharp_edges="error")
    with pytest.raises(RuntimeError, match=r"torch\.func is running.* Use thunder's transform of the same name"):
        torch.func.grad(strict)(x[0])


def test_forward_mode_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dual numbers go through a jitted function whose parameters require grad, which torch's Function would refuse."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).double()
    f, x, t = thunder.jit(module), torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    same(f(x), module(x))
    for run in (f, module, f):
        with torch.autograd.forward_ad.dual_level():
            out = torch.autograd.forward_ad.unpack_dual(run(torch.autograd.forward_ad.make_dual(x, t)))
            found = (out.primal, out.tangent, *torch.autograd.grad(out.tangent.sum(), [*module.parameters()][:1]))
        if run is f:
            first = found
    same(found, first)
    monkeypatch.setattr("thunder.frontend.differentiable.MIN_STAGE_BYTES_CPU", 1)
    staged = thunder.jit(lambda x: module(x))
    jacobian = torch.autograd.functional.jacobian
    torch.autograd.grad(staged(x).sum(), [*module.parameters()])
    for run in (f, staged, staged):
        same(jacobian(run, x, vectorize=True, strategy="forward-mode"), jacobian(module, x))
    g = thunder.jit(lambda x, p: ((x @ p).sin(), {"x": x, "y": [x[0], (x * 2).long()]}))
    p = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        y, rest = g(dual, p)
        same(torch.autograd.forward_ad.unpack_dual(y).tangent, (t @ p) * (x @ p).cos())
        assert rest["x"] is dual
        same(torch.autograd.forward_ad.unpack_dual(rest["y"][0]).tangent, t[0])


# -- errors -----------------------------------------------------------------------------------------------------------
ERRORS = {
    "integers": lambda m, x: m.grad(lambda x: x.sum())(torch.arange(3)),
    "not a scalar": lambda m, x: m.grad(lambda x: x * 2)(x),
    "complex": lambda m, x: m.grad(lambda x: (x * 2j).sum())(x),
    "no tensor": lambda m, x: m.grad(lambda x: x * 2)(3.0),
    "sizes": lambda m, x: m.vmap(lambda a, b: a + b)(torch.ones(2), torch.ones(3)),
    "in_dims": lambda m, x: m.vmap(lambda a: a, in_dims=(0, 0))(x),
    "in_dims list": lambda m, x: m.vmap(lambda a, b: a, in_dims=[0, 0])(x, x),
    "in_dims None": lambda m, x: m.vmap(lambda a: a, in_dims=None)(x),
    "in_dims all None": lambda m, x: m.vmap(lambda a: a, in_dims=(None,))(x),
    "in_dims 5": lambda m, x: m.vmap(lambda a: a, in_dims=5)(x),
    "number": lambda m, x: m.vmap(lambda a: a)(3),
    "no inputs": lambda m, x: m.vmap(lambda: 1)(),
    "out_dims": lambda m, x: m.vmap(lambda a: a, out_dims=(0, 1))(x),
    "out_dims 4": lambda m, x: m.vmap(lambda a: a, out_dims=4)(x),
    "returns a number": lambda m, x: m.vmap(lambda a: 3)(x),
    "out_dims None": lambda m, x: m.vmap(lambda a: a, out_dims=None)(x),
    "randomness": lambda m, x: m.vmap(lambda a: a, randomness="x")(x),
    "argnums 3": lambda m, x: m.grad(lambda a: a.sum(), argnums=3)(x),
    "argnums twice": lambda m, x: m.grad(lambda a, b: a.sum(), argnums=(0, 0))(x, x),
    "argnums keyword": lambda m, x: m.grad(lambda a: a.sum())(a=x),
    "aux": lambda m, x: m.grad(lambda a: a.sum(), has_aux=True)(x),
    "cotangent": lambda m, x: m.vjp(lambda a: a * 2, x)[1](torch.ones(2)),
    "cotangent's structure": lambda m, x: m.vjp(lambda a: (a * 2, a), x)[1](x),
    "tangent": lambda m, x: m.jvp(lambda a: a * 2, (x,), (torch.ones(2),)),
    "tangents no tuple": lambda m, x: m.jvp(lambda a: a * 2, x, x),
    "tangents' structure": lambda m, x: m.jvp(lambda a: a * 2, (x,), (x, x)),
    "tangent of integers": lambda m, x: m.jvp(lambda a: a * 2, (torch.arange(3),), (torch.arange(3),)),
    "strict": lambda m, x: m.jvp(lambda a: torch.ones(2), (x,), (x,), strict=True),
    "jacrev of integers": lambda m, x: m.jacrev(lambda a: a.argmax())(x),
    "vjp of a number": lambda m, x: m.vjp(lambda a: 3, x),
    "jvp of a number": lambda m, x: m.jvp(lambda a: 3, (x,), (x,)),
    "vjp's aux": lambda m, x: m.vjp(lambda a: (a, 3), x, has_aux=True),
    "jvp's aux": lambda m, x: m.jvp(lambda a: (a, None), (x,), (x,), has_aux=True),
    "chunk size": lambda m, x: m.vmap(lambda a: a, chunk_size=0)(x),
    "jacrev's chunk size": lambda m, x: m.jacrev(lambda a: a, chunk_size=0)(x),
    "cotangent's device": lambda m, x: m.vjp(lambda a: a * 2, x)[1](torch.ones(3, device="meta")),
    "cotangent's kind": lambda m, x: m.vjp(lambda a: a.sum(), x)[1](1.0),
    "complex cotangent": lambda m, x: m.vjp(lambda a: a * 2, x)[1](torch.ones(3, dtype=torch.complex64)),
    "real cotangent": lambda m, x: m.vjp(lambda a: a * 2j, x)[1](torch.ones(3)),
    "no cotangent": lambda m, x: m.vjp(lambda a: a * 2, x)[1](None),
    "tangent's type": lambda m, x: m.jvp(lambda a: a * 2, (x,), (torch.arange(3),)),
    "tangent's device": lambda m, x: m.jvp(torch.sin, (x,), (torch.ones(3, device="meta"),)),
    "tangent's kind": lambda m, x: m.jvp(lambda a: a * 2, (x,), (1.0,)),
    "no tangent": lambda m, x: m.jvp(lambda a: a * 2, (x,), (None,)),
    "nothing moves": lambda m, x: m.jvp(lambda: x, (), ()),
    "vjp by integers": lambda m, x: m.vjp(lambda a: a.sum(), torch.arange(3)),
    "jacfwd by integers": lambda m, x: m.jacfwd(lambda a: a * 2)(torch.arange(3)),
    "hessian by integers": lambda m, x: m.hessian(lambda a: a.sum())(torch.arange(3)),
    "no argnums": lambda m, x: m.grad(lambda a: a.sum(), argnums=())(x),
    "argnums list": lambda m, x: m.grad(lambda a: a.sum(), argnums=[0])(x),
    "a scalar's batch": lambda m, x: m.vmap(lambda a: a)(x.sum()),
    "in_dims -2": lambda m, x: m.vmap(lambda a: a, in_dims=-2)(x),
    "in_dims 0.0": lambda m, x: m.vmap(lambda a: a, in_dims=(0.0,))(x),
    "in_dims of a dict": lambda m, x: m.vmap(lambda d: d["a"], in_dims=({"b": 0},))({"a": x}),
    "out_dims of a string": lambda m, x: m.vmap(lambda a: a, out_dims="0")(x),
    "returns None": lambda m, x: m.vmap(lambda a: None)(x),
}
OPTIONS = ("randomness", "chunk size", "jacrev's chunk size")
OF_CALLS_OUTSIDE = tuple(name for name in ERRORS if "cotangent" in name)


def check_error(name, run, *, inside):
    """It has torch's type, and its traceback contains the user's line if it comes from inside of a program."""
    call, x = ERRORS[name], torch.ones(3)
    with pytest.raises(Exception) as theirs:
        call(torch.func, x)
    with pytest.raises(theirs.type) as ours:
        run(call, x)
    assert len(str(ours.value).splitlines()[0]) > 20
    assert not inside or any(frame.filename == __file__ for frame in traceback.extract_tb(ours.tb)[2:])


@pytest.mark.parametrize("name", list(ERRORS))
def test_errors_are_torchs(name):
    inside = name not in OPTIONS and name not in OF_CALLS_OUTSIDE
    check_error(name, lambda call, x: call(thunder, x), inside=inside)


@pytest.mark.parametrize("name", list(ERRORS))
def test_errors_in_programs_are_torchs(name):
    """Where torch's transforms are a part of a program."""
    inside = name not in OPTIONS
    check_error(name, lambda call, x: thunder.jit(lambda x: call(torch.func, x))(x), inside=inside)


@pytest.mark.parametrize("kind", [torch.float64, torch.complex64])
def test_tangents_that_their_primals_cannot_hold(kind):
    """torch gives results of other types than the function's, or drops imaginary parts."""
    for run in (thunder.jvp, thunder.jit(lambda *args: torch.func.jvp(*args))):
        with pytest.raises(RuntimeError, match=rf"a tangent has dtype {kind}, which the dtype torch\.float32"):
            run(torch.sin, (torch.ones(3),), (torch.ones(3, dtype=kind),))
        found = run(torch.sin, (torch.ones(3, dtype=torch.float64),), (torch.ones(3),))
        same(found, torch.func.jvp(torch.sin, (torch.ones(3, dtype=torch.float64),), (torch.ones(3),)))


@pytest.mark.parametrize("m", [thunder, "in a program"])
def test_cotangents_of_other_types(m):
    """They are converted to their results' types, as torch does; that of a number may be None."""

    def run(m, x, g):
        return *m.vjp(torch.sin, x)[1](g), *m.vjp(lambda a: (a * a).sum(), x)[1](None)

    ours = thunder.jit(lambda x, g: run(torch.func, x, g)) if m == "in a program" else lambda x, g: run(m, x, g)
    for x in (torch.ones(3), torch.ones(3).double()):
        for g in (torch.arange(3), torch.arange(3.0), torch.arange(3.0).double()):
            found, expected = ours(x, g), run(torch.func, x, g)
            same(found, expected)
            assert [y.dtype for y in found] == [y.dtype for y in expected]


# -- caching ----------------------------------------------------------------------------------------------------------
def test_programs_are_cached():
    x, w = rand(3, 4), rand(4, 5)
    transformed = [
        thunder.grad(f), thunder.value_and_grad(f), thunder.vmap(f, (0, None)), thunder.jacrev(f), thunder.jacfwd(f),
        thunder.hessian(f), thunder.vmap(thunder.grad(f), (0, None)), thunder.jit(thunder.grad(thunder.jit(f))),
    ]  # fmt: skip
    for fn in transformed:
        fn(x, w)
        fn(x + 1, w)
        assert (thunder.cache_hits(fn), thunder.cache_misses(fn)) == (1, 1)
        fn(rand(2, 4), w)
        assert (thunder.cache_hits(fn), thunder.cache_misses(fn)) == (1, 2)


def test_closures_are_guarded():
    scale = 2.0

    def fn(x):
        return (x * scale).sum()

    g = thunder.grad(fn)
    same(g(torch.ones(2)), torch.full((2,), 2.0))
    scale = 3.0
    same(g(torch.ones(2)), torch.full((2,), 3.0))


def test_jvp_and_vjp_cache_by_function(monkeypatch):
    from thunder.frontend.functional import _programs

    def fn(x):
        return x.sin()

    for _ in range(3):
        thunder.jvp(fn, (rand(3),), (rand(3),))
        thunder.vjp(fn, rand(3))
    assert sorted(thunder.cache_hits(p) for p in _programs[fn].values()) == [2, 2]


def test_traces_name_the_functions_arguments():
    g = thunder.grad(f)
    g(rand(3, 4), rand(4, 5))
    text = str(thunder.last_traces(g)[0])
    assert "def computation(x, w):" in text


def test_symbolic_sizes():
    g = thunder.vmap(thunder.grad(thunder.jit(lambda x: (x.sin() ** 2).sum(), cache="symbolic values")))
    for n in (2, 3, 5):
        x = rand(n, 4)
        same(g(x), 2 * x.sin() * x.cos())
    assert thunder.cache_misses(g) == 1
