# SPDX-License-Identifier: Apache-2.0
"""How the classes of the enumeration are made and changed, and what is not made or called."""

from __future__ import annotations

# Arguments that are tried where a class has no recipe.
ARGUMENTS = ("", "2", "2, 2", "2, 2, 1", "'a'", "[1.0, 2.0]", "lambda: 1.0")

_W = "[nn.Parameter(torch.tensor([[1.0, 2.0]]))]"
_OPT = f"torch.optim.SGD({_W}, lr=0.5)"
_DATA = "torch.utils.data.TensorDataset(torch.arange(3.0))"
_LAYER = "torch.nn.TransformerEncoderLayer(2, 1, 2)"

RECIPES: dict[str, str] = {
    **{
        f"torch.optim.{name}": f"torch.optim.{name}({_W}, lr=0.5)"
        for name in (
            "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam",
            "RMSprop", "Rprop", "SGD", "SparseAdam",
        )
    },
    "torch.optim.Optimizer": f"torch.optim.Optimizer({_W}, {{'lr': 0.5}})",
    **{
        f"torch.optim.lr_scheduler.{name}": f"torch.optim.lr_scheduler.{name}({_OPT}, {arguments})"
        for name, arguments in {
            "LambdaLR": "lambda e: 0.5**e", "MultiplicativeLR": "lambda e: 0.5", "StepLR": "2", "MultiStepLR": "[1, 2]",
            "ConstantLR": "0.5", "LinearLR": "0.5", "ExponentialLR": "0.5", "CosineAnnealingLR": "4",
            "PolynomialLR": "4", "ReduceLROnPlateau": "'min'", "CyclicLR": "0.1, 0.5",
            "CosineAnnealingWarmRestarts": "4", "OneCycleLR": "0.5, 10", "LRScheduler": "-1", "_LRScheduler": "-1",
        }.items()
    },
    "torch.optim.lr_scheduler.ChainedScheduler": "torch.optim.lr_scheduler.ChainedScheduler("
    f"[torch.optim.lr_scheduler.StepLR({_OPT}, 2)])",
    "torch.optim.lr_scheduler.SequentialLR": "(lambda o, m: m.SequentialLR(o, [m.StepLR(o, 2), m.StepLR(o, 3)], [2]))("
    f"{_OPT}, torch.optim.lr_scheduler)",
    **{
        f"torch.utils.data.{name}": f"torch.utils.data.{name}({arguments})"
        for name, arguments in {
            "BatchSampler": f"torch.utils.data.SequentialSampler({_DATA}), 2, False", "ChainDataset": f"[{_DATA}]",
            "ConcatDataset": f"[{_DATA}, {_DATA}]", "DataLoader": f"{_DATA}, batch_size=2",
            "DistributedSampler": f"{_DATA}, 2, 0", "RandomSampler": _DATA, "SequentialSampler": _DATA,
            "StackDataset": f"{_DATA}, {_DATA}", "Subset": f"{_DATA}, [0, 1]", "SubsetRandomSampler": "[0, 1]",
            "TensorDataset": "torch.arange(3.0)", "WeightedRandomSampler": "[0.5, 0.5], 2", "DataChunk": "[1, 2]",
        }.items()
    },
    **{
        f"torch.nn.{name}": f"torch.nn.{name}({arguments})"
        for name, arguments in {
            "AdaptiveLogSoftmaxWithLoss": "2, 4, [2]", "Bilinear": "2, 2, 1", "FractionalMaxPool2d": "2, output_size=1",
            "FractionalMaxPool3d": "2, output_size=1", "Module": "", "ModuleDict": "{'a': nn.ReLU()}",
            "ModuleList": "[nn.ReLU()]", "MultiheadAttention": "2, 1", "Parameter": "torch.ones(2)",
            "Buffer": "torch.ones(2)", "ParameterDict": "{'a': torch.ones(2)}", "ParameterList": "[torch.ones(2)]",
            "RNNBase": "'LSTM', 2, 2", "RNNCellBase": "2, 2, True, 4", "Sequential": "nn.Linear(2, 2), nn.ReLU()",
            "Transformer": "2, 1, 1, 1, 2", "TransformerDecoder": "nn.TransformerDecoderLayer(2, 1, 2), 1",
            "TransformerDecoderLayer": "2, 1, 2", "TransformerEncoder": f"{_LAYER}, 1",
            "TransformerEncoderLayer": "2, 1, 2",
            "Unflatten": "1, (1, 2)", "Upsample": "scale_factor=2", "UpsamplingBilinear2d": "scale_factor=2",
            "UpsamplingNearest2d": "scale_factor=2", "Threshold": "0.5, 1.0", "DataParallel": "nn.ReLU()",
            "Container": "", "CircularPad1d": "1",
        }.items()
    },
    "torch.Tensor": "torch.ones(2)",
    "torch.FloatTensor": "torch.FloatTensor([1.0])",
    "torch.FloatStorage": "torch.FloatStorage([1.0])",
    "torch.Size": "torch.Size([2, 3])",
    "torch.Tag": "torch.Tag.core",
    "torch.device": "torch.device('cpu')",
    "torch.dtype": "torch.float32",
    "torch.finfo": "torch.finfo(torch.float32)",
    "torch.iinfo": "torch.iinfo(torch.int32)",
    "torch.layout": "torch.strided",
    "torch.memory_format": "torch.channels_last",
    "torch.autocast": "torch.autocast('cpu', dtype=torch.bfloat16)",
    "collections.defaultdict": "collections.defaultdict(int, a=1)",
    "collections.ChainMap": "collections.ChainMap({'a': 1}, {'b': 2})",
    "collections.Counter": "collections.Counter('aab')",
    "collections.OrderedDict": "collections.OrderedDict(a=1)",
    "collections.UserDict": "collections.UserDict(a=1)",
    "collections.UserList": "collections.UserList([1.0])",
    "collections.UserString": "collections.UserString('ab')",
    "collections.deque": "collections.deque([1.0], maxlen=3)",
    **{
        f"enum.{name}": f"enum.{name}('E', 'A B').A"
        for name in ("Enum", "Flag", "IntEnum", "IntFlag", "StrEnum", "ReprEnum")
    },
    "enum.EnumMeta": "enum.Enum('E', 'A B')",
    "enum.EnumCheck": "enum.EnumCheck.UNIQUE",
    "enum.FlagBoundary": "enum.FlagBoundary.STRICT",
    "dataclasses.Field": "dataclasses.field(default=2.0)",
    "dataclasses.InitVar": "dataclasses.InitVar(int)",
    "functools.partial": "functools.partial(max, 1.0)",
    "logging.LogRecord": "logging.makeLogRecord("
    "{'name': 'a', 'msg': 'm', 'created': 5.0, 'msecs': 1.0, 'relativeCreated': 2.0, 'thread': 1, 'process': 1})",
    "logging.Logger": "logging.Logger('soak')",
    "logging.LoggerAdapter": "logging.LoggerAdapter(logging.Logger('soak'), {})",
    "logging.FileHandler": "logging.FileHandler(os.devnull, delay=True)",
    "threading.Barrier": "threading.Barrier(2)",
    "threading.Thread": "threading.Thread(target=int, name='a')",
    "threading.Timer": "threading.Timer(9.0, int)",
    "queue.Queue": "queue.Queue(9)",
    "random.Random": "random.Random(3)",
    "decimal.Decimal": "decimal.Decimal('1.5')",
    "decimal.DecimalTuple": "decimal.DecimalTuple(0, (1, 5), -1)",
    "contextvars.Context": "contextvars.copy_context()",
    "contextvars.ContextVar": "contextvars.ContextVar('v', default=2.0)",
    "contextvars.Token": "contextvars.ContextVar('v').set(1.0)",
    **{
        f"numpy.{name}": f"numpy.{name}({arguments})"
        for name, arguments in {
            "bool": "1", "byte": "1", "bytes_": "b'a'", "cdouble": "1j", "clongdouble": "1j", "complex64": "1j",
            "double": "1", "float128": "1", "float16": "1", "float32": "1", "int16": "1", "int32": "1", "int64": "1",
            "longlong": "1", "object_": "1", "str_": "'a'", "ubyte": "1", "uint": "1", "uint16": "1", "uint32": "1",
            "ulonglong": "1",
            "poly1d": "[1.0, 2.0]", "ndindex": "2, 2", "ndenumerate": "np.ones(2)", "nditer": "np.ones(2)",
            "vectorize": "math.sin", "errstate": "all='ignore'",
        }.items()
    },
    "numpy.broadcast": "np.broadcast(np.ones(2), np.ones((2, 1)))",
    "numpy.dtype": "np.dtype('float32')",
    "numpy.finfo": "np.finfo(np.float32)",
    "numpy.iinfo": "np.iinfo(np.int32)",
    "numpy.ndarray": "np.array([1.0, 2.0])",
    "numpy.flatiter": "np.array([1.0, 2.0]).flat",
    "numpy.matrix": "np.matrix([[1.0]])",
    "numpy.memmap": "np.memmap(tempfile.TemporaryFile(), np.float32, 'w+', shape=(2,))",
    "numpy.recarray": "np.rec.array([(1.0,)], dtype=[('a', float)])",
    "numpy.record": "np.rec.array([(1.0,)], dtype=[('a', float)])[0]",
    "numpy.ufunc": "np.add",
    "numpy.void": "np.void(b'ab')",
    "numpy.datetime64": "np.datetime64('2020-01-02')",
    "numpy.timedelta64": "np.timedelta64(2, 's')",
}  # fmt: skip

_QUEUE = ("h$.v.put_nowait(5.0)",)
_SCHEDULER = ("h$.v.optimizer.param_groups[0]['lr'] = 0.125", "h$.v.optimizer.step(); h$.v.step()")
_OPTIMIZER = ("h$.v.param_groups[0]['lr'] = 0.125",)
CHANGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("queue.Queue", "queue.LifoQueue", "queue.PriorityQueue"), _QUEUE),
    **{path: _SCHEDULER for path in RECIPES if path.startswith("torch.optim.lr_scheduler.")},
    **{path: _OPTIMIZER for path in RECIPES if path.startswith("torch.optim.") and "lr_scheduler" not in path},
    "queue.SimpleQueue": ("h$.v.put(5.0)",),
    "threading.Event": ("h$.v.set()", "h$.v.clear()"),
    "threading.Semaphore": ("h$.v.release()",),
    "threading.local": ("h$.v.a = 1",),
    "threading.Thread": ("h$.v.name = 'bb'", "h$.v.daemon = True"),
    "logging.Logger": ("h$.v.setLevel(10)", "h$.v.disabled = True"),
    "logging.LoggerAdapter": ("h$.v.logger.setLevel(10)",),
    "logging.Handler": ("h$.v.setLevel(10)", "h$.v.set_name('n')"),
    "logging.StreamHandler": ("h$.v.terminator = ''",),
    "random.Random": ("h$.v.seed(9)",),
    "torch.Generator": ("h$.v.manual_seed(9)",),
    "torch.Tensor": ("h$.v.fill_(3.0)", "h$.v = torch.ones(3).double()"),
    "torch.nn.Parameter": ("h$.v.data.fill_(3.0)", "h$.v.requires_grad_(False)"),
    "collections.Counter": ("h$.v.update('bbb')",),
    "collections.ChainMap": ("h$.v.maps[1]['c'] = 1",),
    "collections.OrderedDict": ("h$.v['b'] = 2",),
    "collections.UserDict": ("h$.v['b'] = 2",),
    "collections.UserList": ("h$.v.append(2.0)",),
    "collections.UserString": ("h$.v.data = 'xyz'",),
    "collections.defaultdict": ("h$.v['b'] = 2", "h$.v.default_factory = None"),
    "collections.deque": ("h$.v.append(2.0)", "h$.v = collections.deque([1.0], maxlen=7)"),
    "functools.partial": ("h$.v = functools.partial(min, 1.0, 2.0)",),
    "decimal.Context": ("h$.v.prec = 7", "h$.v.Emax = 99"),
    "decimal.Decimal": ("h$.v = decimal.Decimal('-7.25')",),
    "contextvars.ContextVar": ("h$.v.set(4.0)",),
    "numpy.ndarray": ("h$.v[0] = 9.0", "h$.v = np.array([[1.0, 2.0, 3.0]])"),
    "torch.utils.data.TensorDataset": ("h$.v.tensors = (torch.arange(7.0),)",),
    "torch.utils.data.Subset": ("h$.v.indices.append(1)",),
    "torch.nn.Sequential": ("h$.v.append(nn.Tanh())", "h$.v[1] = nn.Tanh()"),
    "torch.nn.ModuleList": ("h$.v.append(nn.Tanh())",),
    "torch.nn.ModuleDict": ("h$.v['b'] = nn.Tanh()",),
    "torch.nn.ParameterList": ("h$.v.append(torch.ones(1))",),
    "torch.nn.ParameterDict": ("h$.v['b'] = torch.ones(1)",),
    "torch.nn.Module": ("h$.v.eval()", "h$.v.register_buffer('b', torch.ones(1))"),
}

# Why a class is not made.
NOT_MADE: dict[str, str] = {
    "torch.nn.SyncBatchNorm": "needs a process group to run",
    "torch.Stream": "needs an accelerator",
    "torch.Event": "needs an accelerator",
    "torch.qscheme": "has no public instance",
    "torch.utils.data.DFIterDataPipe": "DataFrames are no part of torch",
    "torch.utils.data.functional_datapipe": "registers for the whole process",
    "torch.utils.data.guaranteed_datapipes_determinism": "sets a switch of the process",
    "torch.utils.data.runtime_validation_disabled": "sets a switch of the process",
    "torch.utils.data.non_deterministic": "decorates classes",
    "torch.nn.UninitializedParameter": "has no data",
    "torch.nn.UninitializedBuffer": "has no data",
    "threading.ExceptHookArgs": "is made by the interpreter",
    "numpy.busdaycalendar": "C, constant",
    "torch.Future": "waits",
    "torch.optim.lr_scheduler.LRScheduler": "is abstract",
    "torch.utils.data.IterableDataset": "is abstract",
    "enum.ReprEnum": "has no members of its own",
    **{
        f"numpy.{name}": "is abstract"
        for name in (
            "character",
            "complexfloating",
            "flexible",
            "floating",
            "generic",
            "inexact",
            "integer",
            "number",
            "signedinteger",
            "unsignedinteger",
        )
    },
}

# Methods that would wait, end something, or start something.
NOT_CALLED = {
    "acquire", "breakpoint", "close", "data_ptr", "exec", "get", "input", "join", "run", "share_memory",
    "share_memory_", "start", "tofile", "wait", "exit", "is_shared", "pin_memory", "is_pinned", "cuda", "xpu",
    "ipu", "mtia", "_cuda", "compile", "record", "synchronize", "query", "hex_", "abort", "backward",
}  # fmt: skip

# Classes whose instances the process shares: a change would outlive the program.
NOT_CHANGED = {"enum.EnumCheck", "enum.FlagBoundary", "numpy.finfo", "numpy.iinfo", "numpy.ufunc", "torch.Tag"}
