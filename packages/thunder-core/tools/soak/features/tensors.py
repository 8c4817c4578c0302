# SPDX-License-Identifier: Apache-2.0
"""Tensors, modules of torch, and torch's own state."""

from __future__ import annotations

from soak.feature import Feature, lines

_LINEAR = "torch.manual_seed(0)\nm$ = nn.Linear(2, 1)\ni$ = torch.tensor([1.0, 2.0])"
_NET = lines("""
            class Net$(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.w = nn.Parameter(torch.ones(()))
                    self.register_buffer('b', torch.ones(()))
                    self.k = 2.0
                def forward(self, a):
                    return a * self.w + self.b * self.k
            m$ = Net$()
            i$ = torch.tensor(3.0)
            """)
_NOT_ARGUMENT = ("function", "closure", "module", "method")

FEATURES = [
    Feature(
        "tensor",
        "w$ = torch.tensor(2.0)",
        "w$",
        mutate=(
            "w$ = torch.tensor(3.0)",
            "w$.fill_(4.0)",
            "w$.data = torch.tensor(5.0)",
            "w$ = torch.tensor(2.0, dtype=torch.float64)",
            "w$ = torch.tensor([1.0, 2.0])",
            "w$ = nn.Parameter(torch.tensor(2.0))",
        ),
        write=("w$ = w$ + 1", "w$.add_(1.0)", "w$ = x.detach().sum()", "w$.copy_(x.detach().sum())"),
    ),
    Feature(
        "value of a tensor",
        "w$ = torch.tensor(2.0)",
        "w$.item()",
        mutate=("w$.fill_(4.0)", "w$ = torch.tensor(3)"),
        write=("w$.add_(1.0)",),
    ),
    Feature(
        "type of an item of a tensor",
        "w$ = torch.tensor(2.0)",
        "type(w$.item()) is float",
        mutate=("w$ = torch.tensor(2)", "w$ = torch.tensor(True)"),
    ),
    Feature("list of a tensor", "w$ = torch.tensor([2.0, 1.0])", "w$.tolist()[0]", mutate=("w$[0] = 4.0",)),
    Feature("length of a tensor's text", "w$ = torch.tensor([2.0, 1.0])", "len(f'{w$}')", mutate=("w$[0] = 4e-7",)),
    Feature("length of the input's text", "k$ = 1.0", "len(str([x]))", mutate=("k$ = 2.0",)),
    Feature(
        "shape of a tensor",
        "w$ = torch.ones(2, 3)",
        "w$.shape[0] + w$.size(1) + w$.ndim + w$.numel()",
        mutate=("w$ = torch.ones(3, 3)", "w$ = torch.ones(2, 3, 1)", "w$.resize_(4, 4).fill_(1.0)"),
    ),
    Feature(
        "dtype of a tensor",
        "w$ = torch.ones(2)",
        "str(w$.dtype)",
        mutate=("w$ = torch.ones(2).double()", "w$.data = w$.data.int()"),
    ),
    Feature(
        "stride of a tensor",
        "w$ = torch.ones(2, 3)",
        "w$.stride(0)",
        mutate=("w$ = torch.ones(3, 2).t()", "w$ = torch.ones(2, 6)[:, ::2]"),
    ),
    Feature(
        "contiguity of a tensor", "w$ = torch.ones(2, 3)", "w$.is_contiguous()", mutate=("w$ = torch.ones(3, 2).t()",)
    ),
    Feature(
        "offset of a tensor",
        "b$ = torch.ones(8)\nw$ = b$[0:2]",
        "w$.storage_offset()",
        mutate=("w$ = b$[2:4]", "w$ = b$[1:3]"),
    ),
    Feature("version of a tensor", "w$ = torch.ones(2)", "w$._version", mutate=("w$.add_(1)",), write=("w$.add_(1)",)),
    Feature(
        "requires_grad of a tensor",
        "w$ = torch.ones(2)",
        "w$.requires_grad",
        mutate=("w$.requires_grad_()", "w$ = torch.ones(2, requires_grad=True)"),
    ),
    Feature("conjugate bit", "w$ = torch.tensor([1 + 2j])", "w$.is_conj()", mutate=("w$ = w$.conj()",)),
    Feature("negative bit", "w$ = torch.tensor([1 + 2j])", "w$.imag.is_neg()", mutate=("w$ = w$.conj()",)),
    Feature("layout of a tensor", "w$ = torch.eye(2)", "str(w$.layout)", mutate=("w$ = torch.eye(2).to_sparse()",)),
    Feature(
        "device of a tensor",
        "w$ = torch.eye(2)",
        "w$.device.type",
        mutate=("w$ = w$.to('meta')",),
        entries=("function",),
    ),
    Feature(
        "leaf tensor",
        "w$ = torch.ones(2, requires_grad=True)",
        "w$.is_leaf",
        mutate=("w$ = torch.ones(2, requires_grad=True) * 2",),
    ),
    Feature(
        "gradient function",
        "w$ = torch.ones(2, requires_grad=True)",
        "w$.grad_fn is None",
        mutate=("w$ = torch.ones(2, requires_grad=True) * 2",),
    ),
    Feature(
        "gradient of a tensor",
        "w$ = torch.ones((), requires_grad=True)\nw$.grad = torch.tensor(2.0)",
        "w$.grad",
        mutate=("w$.grad = torch.tensor(3.0)", "w$.grad.add_(1)", "w$.grad = None"),
        state=("w$.grad",),
    ),
    Feature(
        "missing gradient",
        "w$ = torch.ones((), requires_grad=True)",
        "w$.grad is None",
        mutate=("w$.grad = torch.tensor(3.0)",),
        write=("w$.grad = torch.tensor(1.0)",),
        state=("w$.grad",),
    ),
    Feature(
        "address of a tensor",
        "b$ = torch.ones(8)\nw$ = b$[0:2]",
        "w$.data_ptr() == b$.data_ptr()",
        mutate=("w$ = b$[2:4]", "w$ = b$[:2].clone()"),
        entries=_NOT_ARGUMENT,
    ),
    Feature(
        "storage of a tensor",
        "b$ = torch.ones(8)\nw$ = b$[0:2]",
        "w$.untyped_storage().nbytes()",
        mutate=("w$ = b$[2:4].clone()",),
    ),
    Feature(
        "attribute of a tensor",
        "w$ = torch.ones(())\nw$.tag = 2.0",
        "w$.tag",
        mutate=("w$.tag = 3.0", "w$.tag += 1", "del w$.tag"),
        write=("w$.tag = 5.0", "w$.tag += 1"),
        state=("w$.tag",),
    ),
    Feature(
        "attribute of a parameter",
        "w$ = nn.Parameter(torch.ones(()))\nw$.tag = 2.0",
        "w$.tag",
        mutate=("w$.tag = 3.0", "w$.tag += 1"),
        write=("w$.tag += 1",),
        state=("w$.tag",),
    ),
    Feature("missing attribute of a tensor", "w$ = torch.ones(())", "hasattr(w$, 'tag')", mutate=("w$.tag = 3.0",)),
    Feature("attribute of the input", "k$ = 1", "getattr(x, 'tag', 1.0)", mutate=("k$ = 2",)),
    Feature(
        "view of a tensor",
        "b$ = torch.zeros(4)\nw$ = b$[1:2]",
        "w$",
        mutate=("b$.fill_(3.0)", "w$ = b$[2:3]"),
        write=("b$.add_(1.0)", "w$.mul_(2.0)"),
        entries=_NOT_ARGUMENT,
    ),
    Feature("tensor as a condition", "w$ = torch.tensor(True)", "bool(w$)", mutate=("w$.fill_(False)",)),
    Feature("tensor of integers", "w$ = torch.tensor(2)", "w$", mutate=("w$.fill_(3)", "w$ = torch.tensor(5)")),
    Feature(
        "tensor in a dict",
        "d$ = {'w': torch.tensor(2.0)}",
        "d$['w']",
        mutate=("d$['w'] = torch.tensor(3.0)", "d$['w'].fill_(7.0)", "d$['w'] = 4.0"),
        write=("d$['w'] = d$['w'] + 1", "d$['y'] = x.detach()"),
    ),
    Feature("set_ of a tensor", "w$ = torch.tensor([2.0])", "w$", mutate=("w$.set_(torch.tensor([3.0]))",)),
    Feature(
        "tensor subclass",
        "class T$(torch.Tensor):\n    pass\nw$ = torch.ones(()).as_subclass(T$)",
        "type(w$ * 1).__name__",
        mutate=("w$ = torch.ones(())",),
    ),
    Feature(
        "linear",
        _LINEAR,
        "m$(i$)",
        mutate=(
            "m$.weight.data.fill_(1.0)",
            "m$.weight = nn.Parameter(torch.ones(1, 2))",
            "m$.bias = None",
            "m$.requires_grad_(False)",
            "m$ = nn.Linear(2, 1, bias=False)",
        ),
    ),
    Feature(
        "attribute of a module of torch",
        _NET,
        "m$(i$)",
        mutate=(
            "m$.k = 3.0",
            "m$.k += 1.0",
            "m$.b.fill_(5.0)",
            "m$.b = torch.tensor(2.0)",
            "m$.w = nn.Parameter(torch.tensor(4.0))",
            "del m$.b; m$.b = 3.0",
        ),
        write=("m$.k += 1", "m$.b.add_(1)", "m$.b = m$.b + 1"),
    ),
    Feature(
        "tied parameters",
        _NET + "\nn$ = Net$()",
        "m$(i$) + n$(i$)",
        mutate=("n$.w = m$.w", "n$.b = m$.b", "n$.w.data = m$.w.data"),
        entries=_NOT_ARGUMENT,
    ),
    Feature("identity of parameters", _NET + "\nn$ = Net$()", "m$.w is n$.w", mutate=("n$.w = m$.w",)),
    Feature("training mode", _NET, "m$.training", mutate=("m$.eval()", "m$.train(False)"), write=("m$.eval()",)),
    Feature(
        "dropout",
        "m$ = nn.Dropout(0.5)\ni$ = torch.ones(4)",
        "m$(i$)",
        mutate=("m$.eval()", "m$.p = 0.0", "m$.p = 0.25"),
    ),
    Feature(
        "batch norm",
        "m$ = nn.BatchNorm1d(2)\ni$ = torch.tensor([[1.0, 2.0], [3.0, 5.0]])",
        "m$(i$)[0]",
        mutate=(
            "m$.eval()",
            "m$.momentum = 0.5",
            "m$.momentum = None",
            "m$.running_mean.fill_(2.0)",
            "m$.reset_running_stats()",
        ),
        state=("m$.running_mean", "m$.num_batches_tracked"),
    ),
    Feature(
        "forward hook",
        _NET + "\nk$ = [1.0]\nh$ = m$.register_forward_hook(lambda m, a, o: o * k$[0])",
        "m$(i$)",
        mutate=("k$[0] = 2.0", "h$.remove()", "m$.register_forward_hook(lambda m, a, o: o + 5)"),
        entries=("function", "closure"),
    ),
    Feature("forward pre-hook", _NET, "m$(i$)", mutate=("m$.register_forward_pre_hook(lambda m, a: (a[0] * 2,))",)),
    Feature(
        "hook that counts",
        _NET + "\nk$ = [0]\nh$ = m$.register_forward_hook(lambda m, a, o: k$.append(1))",
        "m$(i$)",
        mutate=("k$.clear()", "h$.remove()"),
        entries=("function", "closure"),
    ),
    Feature(
        "global forward hook",
        _NET + "\nk$ = 2.0",
        "m$(i$)",
        mutate=("h$ = nn.modules.module.register_module_forward_hook(lambda m, a, o: o * 2)",),
        undo="nn.modules.module._global_forward_hooks.clear()",
        entries=("function",),
    ),
    Feature(
        "forward replaced",
        _NET,
        "m$(i$)",
        mutate=(
            "m$.forward = lambda a: a * 7",
            "Net$.forward = lambda self, a: a * 9",
            "m$.__class__ = type('Other', (Net$,), {'forward': lambda self, a: a})",
        ),
    ),
    Feature(
        "child replaced",
        "m$ = nn.Sequential(nn.ReLU(), nn.Tanh())\ni$ = torch.tensor(0.5)",
        "m$(i$)",
        mutate=("m$[1] = nn.Sigmoid()", "m$.append(nn.Tanh())", "del m$[0]", "m$.insert(0, nn.Sigmoid())"),
    ),
    Feature(
        "length of a sequential",
        "m$ = nn.Sequential(nn.ReLU(), nn.Tanh())",
        "len(m$)",
        mutate=("m$.append(nn.Tanh())",),
    ),
    Feature(
        "module list",
        "m$ = nn.ModuleList([nn.ReLU()])",
        "len(m$) + isinstance(m$[0], nn.ReLU)",
        mutate=("m$.append(nn.Tanh())", "m$[0] = nn.Tanh()"),
    ),
    Feature("module dict", "m$ = nn.ModuleDict({'a': nn.ReLU()})", "'b' in m$", mutate=("m$['b'] = nn.Tanh()",)),
    Feature(
        "parameter list",
        "m$ = nn.ParameterList([torch.ones(())])",
        "m$[0] + len(m$)",
        mutate=("m$.append(torch.ones(()))", "m$[0] = torch.tensor(4.0)"),
    ),
    Feature(
        "parameter dict",
        "m$ = nn.ParameterDict({'a': torch.ones(())})",
        "m$['a'] + len(m$)",
        mutate=("m$['b'] = torch.ones(())", "m$['a'] = torch.tensor(4.0)"),
    ),
    Feature(
        "number of parameters",
        _NET,
        "len(list(m$.parameters()))",
        mutate=("m$.v = nn.Parameter(torch.ones(2))", "del m$.w"),
    ),
    Feature(
        "names of buffers",
        _NET,
        "sum(len(n) for n, _ in m$.named_buffers())",
        mutate=("m$.register_buffer('more', torch.ones(2))",),
    ),
    Feature(
        "state dict",
        _NET,
        "len(m$.state_dict())",
        mutate=("m$.register_buffer('more', torch.ones(2))", "m$._non_persistent_buffers_set.add('b')"),
    ),
    Feature(
        "value in a state dict", _NET, "m$.state_dict()['b']", mutate=("m$.b.fill_(7.0)", "m$.b = torch.tensor(4.0)")
    ),
    Feature(
        "requires_grad of parameters",
        _NET,
        "sum(p.requires_grad for p in m$.parameters())",
        mutate=("m$.w.requires_grad_(False)", "m$.requires_grad_(False)"),
    ),
    Feature(
        "submodule by name",
        _NET,
        "m$.get_parameter('w')",
        mutate=("m$.w = nn.Parameter(torch.tensor(9.0))", "m$.w.data.fill_(3.0)"),
    ),
    Feature("extra attribute of a module", _NET, "hasattr(m$, 'extra')", mutate=("m$.extra = 1", "Net$.extra = 2")),
    Feature(
        "numeric attributes of modules",
        "m$ = nn.LayerNorm(2)\ni$ = torch.tensor([1.0, 2.0])",
        "m$(i$)[0] + m$.eps",
        mutate=("m$.eps = 1.0", "m$.weight.data.fill_(3.0)"),
    ),
    Feature(
        "activation's slope",
        "m$ = nn.LeakyReLU(0.1)\ni$ = torch.tensor(-1.0)",
        "m$(i$)",
        mutate=("m$.negative_slope = 0.5", "m$.negative_slope += 0.1"),
    ),
    Feature(
        "embedding",
        "torch.manual_seed(0)\nm$ = nn.Embedding(3, 2)\ni$ = torch.tensor([0, 1])",
        "m$(i$)",
        mutate=("i$ = torch.tensor([0, 2])", "m$.weight.data.fill_(1.0)", "m$.padding_idx = 1"),
    ),
    Feature(
        "recurrent cell",
        "torch.manual_seed(0)\nm$ = nn.GRUCell(2, 2)\ni$ = torch.ones(1, 2)\nh$ = torch.zeros(1, 2)",
        "m$(i$, h$)",
        mutate=("h$ = torch.ones(1, 2)",),
        write=("h$ = m$(i$, h$).detach()",),
    ),
    Feature(
        "weight normalisation",
        "torch.manual_seed(0)\nm$ = nn.utils.parametrizations.weight_norm(nn.Linear(2, 1))\ni$ = torch.ones(2)",
        "m$(i$)",
        mutate=("m$.parametrizations.weight.original0.data.fill_(2.0)",),
    ),
    Feature(
        "parametrization",
        """
            class P$(nn.Module):
                k = 2.0
                def forward(self, w):
                    return w * self.k
            m$ = nn.Linear(2, 1)
            with torch.no_grad():
                m$.weight.fill_(1.0); m$.bias.fill_(0.0)
            nn.utils.parametrize.register_parametrization(m$, 'weight', P$())
            i$ = torch.ones(2)
            """,
        "m$(i$)",
        mutate=(
            "P$.k = 3.0",
            "m$.parametrizations.weight[0].k = 5.0",
            "nn.utils.parametrize.remove_parametrizations(m$, 'weight')",
        ),
    ),
    Feature(
        "autograd function",
        """
            class F$(torch.autograd.Function):
                k = 2.0
                @staticmethod
                def forward(ctx, a):
                    return a * F$.k
                @staticmethod
                def backward(ctx, g):
                    return g * F$.k * 3
            """,
        "F$.apply(x)",
        mutate=("F$.k = 5.0", "F$.k += 1.0"),
    ),
    Feature(
        "grad mode",
        "k$ = 1",
        "torch.is_grad_enabled()",
        mutate=("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
        state=("torch.is_grad_enabled()",),
    ),
    Feature(
        "grad mode changed inside",
        "k$ = False\ndef f$(k, a):\n    with torch.set_grad_enabled(k):\n        return a * 2",
        "f$(k$, x).requires_grad",
        mutate=("k$ = True",),
        state=("torch.is_grad_enabled()",),
    ),
    Feature("inference mode", "k$ = 1", "torch.is_inference_mode_enabled()", mutate=("k$ = 2",)),
    Feature(
        "default dtype",
        "k$ = 1",
        "torch.ones(()).dtype.itemsize",
        mutate=("torch.set_default_dtype(torch.float64)",),
        state=("torch.get_default_dtype()",),
    ),
    Feature(
        "default dtype asked for",
        "k$ = 1",
        "str(torch.get_default_dtype())",
        mutate=("torch.set_default_dtype(torch.float64)",),
        write=("torch.set_default_dtype(torch.float64)",),
        state=("str(torch.get_default_dtype())",),
    ),
    Feature(
        "autocast",
        """
            k$ = False
            w$ = torch.ones(2, 2)
            def f$(k):
                with torch.autocast('cpu', dtype=torch.bfloat16, enabled=k):
                    return str((w$ @ w$).dtype)
            """,
        "f$(k$)",
        mutate=("k$ = True",),
        entries=("function", "closure"),
    ),
    Feature(
        "autocast enabled",
        "k$ = 1",
        "torch.is_autocast_enabled('cpu')",
        mutate=("torch.set_autocast_enabled('cpu', True)",),
        undo="torch.set_autocast_enabled('cpu', False)",
    ),
    Feature(
        "number of torch's threads",
        "k$ = 1",
        "torch.get_num_threads()",
        mutate=("torch.set_num_threads(2)",),
        write=("torch.set_num_threads(2)",),
        state=("torch.get_num_threads()",),
    ),
    Feature(
        "deterministic algorithms",
        "k$ = 1",
        "torch.are_deterministic_algorithms_enabled()",
        mutate=("torch.use_deterministic_algorithms(True)",),
        write=("torch.use_deterministic_algorithms(True)",),
        state=("torch.are_deterministic_algorithms_enabled()",),
    ),
    Feature(
        "matmul precision",
        "k$ = 1",
        "torch.get_float32_matmul_precision()",
        mutate=("torch.set_float32_matmul_precision('high')",),
        write=("torch.set_float32_matmul_precision('medium')",),
        state=("torch.get_float32_matmul_precision()",),
        undo="torch.set_float32_matmul_precision('highest')",
    ),
    Feature(
        "flag of a backend",
        "k$ = 1",
        "torch.backends.cudnn.benchmark",
        mutate=("torch.backends.cudnn.benchmark = True",),
        write=("torch.backends.cudnn.benchmark = True",),
        state=("torch.backends.cudnn.benchmark",),
        undo="torch.backends.cudnn.benchmark = False",
    ),
    Feature(
        "default device",
        "k$ = 1",
        "torch.ones(()).device.type",
        mutate=("torch.set_default_device('meta')",),
        undo="torch.set_default_device(None)",
        entries=("function",),
    ),
    Feature(
        "print options",
        "k$ = torch.tensor(1.23456)",
        "torch._tensor_str.PRINT_OPTS.precision",
        mutate=("torch.set_printoptions(precision=2)",),
        undo="torch.set_printoptions(profile='default')",
    ),
    Feature(
        "patched function of torch",
        "old$ = torch.sin",
        "torch.sin(x)",
        mutate=("torch.sin = torch.cos",),
        undo="torch.sin = old$",
        entries=("function",),
    ),
    Feature(
        "patched function of functional",
        "old$ = F.relu",
        "F.relu(x)",
        mutate=("F.relu = F.silu",),
        undo="F.relu = old$",
        entries=("function",),
    ),
    Feature(
        "dtype in a variable",
        "d$ = torch.float32",
        "torch.ones((), dtype=d$).dtype.itemsize",
        mutate=("d$ = torch.float64", "d$ = torch.int8"),
    ),
    Feature(
        "shape in a variable",
        "s$ = (2, 3)",
        "torch.ones(s$).sum()",
        mutate=("s$ = (3, 3)", "s$ = [4]", "s$ = torch.Size([5])"),
    ),
    Feature("size of the input", "k$ = 1", "x.shape[0]", mutate=("k$ = 2",)),
    Feature(
        "distribution",
        "d$ = torch.distributions.Normal(0.0, 1.0)",
        "d$.log_prob(torch.tensor(1.0))",
        mutate=("d$ = torch.distributions.Normal(1.0, 2.0)", "d$.loc.fill_(2.0)", "d$.scale = torch.tensor(3.0)"),
    ),
    Feature("view that is the input", "k$ = 1", "x.contiguous().view(-1) is x", mutate=("k$ = 2",)),
    Feature(
        "requires_grad of a view",
        "k$ = 1",
        "(x.detach().contiguous().view(-1).requires_grad_(), x.requires_grad)[1]",
        mutate=("k$ = 2",),
    ),
]
