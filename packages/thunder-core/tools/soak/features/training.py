# SPDX-License-Identifier: Apache-2.0
"""Training: optimizers, schedulers, data sets, gradients inside a program."""

from __future__ import annotations

from soak.feature import Feature, lines

_OPTIMIZER = lines("""
            w$ = nn.Parameter(torch.tensor([1.0, 2.0]))
            o$ = torch.optim.SGD([w$], lr=0.5, momentum=0.9)
            w$.grad = torch.tensor([1.0, 1.0])
            """)
_DATA = lines("""
            class D$(torch.utils.data.Dataset):
                def __init__(self):
                    self.items = [1.0, 2.0]
                def __len__(self):
                    return len(self.items)
                def __getitem__(self, i):
                    return self.items[i]
            d$ = D$()
            """)
_STEP = ("function", "closure", "module", "method")

FEATURES = [
    Feature(
        "learning rate",
        _OPTIMIZER,
        "o$.param_groups[0]['lr']",
        mutate=(
            "o$.param_groups[0]['lr'] = 0.25",
            "o$.param_groups[0]['lr'] *= 0.5",
            "o$.param_groups[0]['lr'] = torch.tensor(0.1)",
        ),
        write=("o$.param_groups[0]['lr'] *= 0.5", "o$.param_groups[0]['lr'] = 0.25"),
        state=("o$.param_groups[0]['lr']",),
    ),
    Feature(
        "number of groups",
        _OPTIMIZER,
        "len(o$.param_groups)",
        mutate=("o$.add_param_group({'params': [nn.Parameter(torch.ones(2))]})",),
    ),
    Feature(
        "default of an optimizer", _OPTIMIZER, "o$.defaults['momentum']", mutate=("o$.defaults['momentum'] = 0.1",)
    ),
    Feature("state of an optimizer", _OPTIMIZER, "len(o$.state)", mutate=("o$.step()", "o$.state.clear()")),
    Feature(
        "buffer of an optimizer",
        _OPTIMIZER + "\no$.step()",
        "o$.state[w$]['momentum_buffer'].sum()",
        mutate=("o$.step()", "o$.state[w$]['momentum_buffer'].fill_(7.0)"),
        entries=("function", "closure"),
    ),
    Feature(
        "step of an optimizer",
        _OPTIMIZER,
        "(o$.step(), 1.0)[1]",
        mutate=("o$.param_groups[0]['lr'] = 0.1", "w$.grad.fill_(3.0)", "w$.grad = None"),
        state=("w$", "w$.grad"),
        entries=_STEP,
    ),
    Feature(
        "step of Adam",
        _OPTIMIZER.replace("torch.optim.SGD([w$], lr=0.5, momentum=0.9)", "torch.optim.Adam([w$], lr=0.5)"),
        "(o$.step(), 1.0)[1]",
        mutate=("o$.param_groups[0]['lr'] = 0.1", "w$.grad.fill_(3.0)", "o$.param_groups[0]['weight_decay'] = 0.5"),
        state=("w$", "w$.grad"),
        entries=_STEP,
    ),
    Feature(
        "zero_grad",
        _OPTIMIZER,
        "(o$.zero_grad(), w$.grad is None)[1]",
        mutate=("w$.grad = torch.tensor([1.0, 1.0])",),
        state=("w$.grad",),
        entries=_STEP,
    ),
    Feature(
        "clipped gradients",
        _OPTIMIZER,
        "nn.utils.clip_grad_norm_([w$], k$_)".replace("k$_", "1.0"),
        mutate=("w$.grad = torch.tensor([3.0, 4.0])", "w$.grad.fill_(9.0)", "w$.grad = None"),
        state=("w$.grad",),
        entries=_STEP,
    ),
    Feature(
        "clipped values",
        _OPTIMIZER,
        "(nn.utils.clip_grad_value_([w$], 0.5), 1.0)[1]",
        mutate=("w$.grad = torch.tensor([3.0, 4.0])", "w$.grad.fill_(9.0)"),
        state=("w$.grad",),
        entries=_STEP,
    ),
    Feature(
        "backward inside",
        "w$ = nn.Parameter(torch.tensor(2.0))\nk$ = 3.0",
        "((w$ * w$ * k$).backward(), w$.grad.clone())[1]",
        mutate=("k$ = 4.0", "w$.grad = None", "w$.data.fill_(5.0)"),
        state=("w$.grad",),
        entries=("function", "closure"),
    ),
    Feature(
        "gradient inside",
        "w$ = nn.Parameter(torch.tensor(2.0))\nk$ = 3.0",
        "torch.autograd.grad(w$ * w$ * k$, w$)[0]",
        mutate=("k$ = 4.0", "w$.data.fill_(5.0)"),
    ),
    Feature(
        "scheduler",
        _OPTIMIZER + "\ns$ = torch.optim.lr_scheduler.StepLR(o$, 1, 0.5)",
        "s$.get_last_lr()[0]",
        mutate=("o$.step(); s$.step()", "s$._last_lr = [9.0]"),
        state=("s$.last_epoch",),
    ),
    Feature(
        "epoch of a scheduler",
        _OPTIMIZER + "\ns$ = torch.optim.lr_scheduler.StepLR(o$, 1, 0.5)",
        "s$.last_epoch",
        mutate=("o$.step(); s$.step()", "s$.last_epoch += 2"),
        state=("s$.last_epoch",),
    ),
    Feature(
        "step of a scheduler",
        _OPTIMIZER + "\no$.step()\ns$ = torch.optim.lr_scheduler.StepLR(o$, 1, 0.5)",
        "(s$.step(), o$.param_groups[0]['lr'])[1]",
        mutate=("s$.gamma = 0.1", "o$.param_groups[0]['lr'] = 8.0"),
        state=("s$.last_epoch", "o$.param_groups[0]['lr']"),
        entries=_STEP,
    ),
    Feature(
        "state of a scheduler",
        _OPTIMIZER + "\ns$ = torch.optim.lr_scheduler.ExponentialLR(o$, 0.5)",
        "s$.state_dict()['gamma']",
        mutate=("s$.gamma = 0.25",),
    ),
    Feature("length of a data set", _DATA, "len(d$)", mutate=("d$.items.append(3.0)", "d$.items = [1.0] * 5")),
    Feature("item of a data set", _DATA, "d$[0]", mutate=("d$.items[0] = 3.0", "d$.items.insert(0, 9.0)")),
    Feature(
        "item of a tensor data set",
        "t$ = torch.tensor([1.0, 2.0])\nd$ = torch.utils.data.TensorDataset(t$)",
        "d$[0][0]",
        mutate=("t$[0] = 3.0", "d$.tensors = (torch.tensor([7.0, 8.0]),)"),
        entries=_STEP,
    ),
    Feature(
        "length of a tensor data set",
        "d$ = torch.utils.data.TensorDataset(torch.ones(3))",
        "len(d$)",
        mutate=("d$.tensors = (torch.ones(5),)",),
    ),
    Feature(
        "subset of a data set",
        _DATA + "\ns$ = torch.utils.data.Subset(d$, [1])",
        "s$[0] + len(s$)",
        mutate=("s$.indices = [0]", "s$.indices.append(0)", "d$.items[1] = 9.0"),
    ),
    Feature(
        "concatenated data sets",
        _DATA + "\ns$ = torch.utils.data.ConcatDataset([d$, d$])",
        "s$[3] + len(s$)",
        mutate=("d$.items[1] = 9.0", "s$.cumulative_sizes = [2, 7]"),
    ),
    Feature(
        "loader of data",
        _DATA + "\nl$ = torch.utils.data.DataLoader(d$, batch_size=2)",
        "len(l$) + l$.num_workers",
        mutate=("d$.items.append(5.0)", "l$.num_workers = 3"),
    ),
    Feature(
        "batches of a loader",
        _DATA + "\nl$ = torch.utils.data.DataLoader(d$, batch_size=1)",
        "sum(float(b) for b in l$)",
        mutate=("d$.items.append(5.0)",),
    ),
    Feature(
        "sequential sampler",
        _DATA + "\ns$ = torch.utils.data.SequentialSampler(d$)",
        "sum(s$)",
        mutate=("d$.items.append(5.0)",),
    ),
    Feature(
        "random sampler",
        _DATA + "\ns$ = torch.utils.data.RandomSampler(d$)",
        "next(iter(s$))",
        mutate=("d$.items.append(5.0)", "torch.manual_seed(9)"),
        state=("torch.get_rng_state()",),
    ),
    Feature(
        "averaged model",
        """
            m$ = nn.Linear(1, 1)
            with torch.no_grad():
                m$.weight.fill_(1.0); m$.bias.fill_(0.0)
            a$ = torch.optim.swa_utils.AveragedModel(m$)
            """,
        "a$.n_averaged",
        mutate=("a$.update_parameters(m$)",),
    ),
    Feature(
        "gradient scaler",
        "s$ = torch.amp.GradScaler('cpu', init_scale=4.0)",
        "s$.get_scale()",
        mutate=("s$.update(8.0)", "s$._init_scale = 2.0"),
    ),
    Feature(
        "saved tensors hooks inside",
        """
            k$ = 2.0
            w$ = torch.tensor(3.0, requires_grad=True)
            def f$(k):
                with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * k):
                    y = w$ * w$
                return torch.autograd.grad(y, w$)[0]
            """,
        "f$(k$)",
        mutate=("k$ = 3.0",),
        entries=("function",),
    ),
    Feature(
        "tensor hook",
        "w$ = torch.tensor(3.0, requires_grad=True)\nk$ = [2.0]\nh$ = w$.register_hook(lambda g: g * k$[0])",
        "torch.autograd.grad(w$ * 2, w$)[0]",
        mutate=("k$[0] = 5.0", "h$.remove()"),
        entries=("function",),
    ),
    Feature(
        "counter of steps",
        "o$ = Holder()\no$.step = 0\no$.every = 2",
        "o$.step % o$.every == 0",
        mutate=("o$.every = 3", "o$.step = 0"),
        write=("o$.step += 1",),
    ),
    Feature(
        "history of losses",
        "h$ = []",
        "len(h$)",
        mutate=("h$.clear()",),
        write=("h$.append(x.detach().sum())", "h$.append(x.sum().item())", "h$.append(float(x.detach().sum()))"),
    ),
    Feature(
        "running average",
        "o$ = Holder()\no$.mean = torch.zeros(())",
        "o$.mean",
        mutate=("o$.mean = torch.ones(())", "o$.mean.fill_(3.0)"),
        write=("o$.mean = o$.mean * 0.9 + x.detach().mean()", "o$.mean.mul_(0.9).add_(x.detach().mean())"),
    ),
    Feature(
        "best so far",
        "o$ = Holder()\no$.best = 0.0",
        "o$.best",
        mutate=("o$.best = 100.0", "o$.best = -1.0"),
        write=("o$.best = max(o$.best, x.shape[0])",),
    ),
    Feature(
        "early stop",
        "o$ = Holder()\no$.bad = 0\no$.patience = 3",
        "o$.bad >= o$.patience",
        mutate=("o$.bad += 1", "o$.patience = 1"),
        write=("o$.bad += 1",),
    ),
    Feature(
        "cache of keys",
        """
            o$ = Holder()
            o$.k = None
            def f$(o, t):
                o.k = t if o.k is None else torch.cat([o.k, t])
                return o.k.shape[0]
            """,
        "f$(o$, x.detach())",
        mutate=("o$.k = None",),
    ),
]
