# SPDX-License-Identifier: Apache-2.0
"""Calls of functions that are written in C: which ones a compiled program may leave out.

No hook sees what a C function reads or changes. A compiled program runs without these calls, so a call is harmless only
if the function computes its result from arguments that are guarded. Functions known to do that are listed here, by
module or class, each with the reason. Any other call ends the trace before the function runs (`denied`), so nothing is
drawn, consumed or written twice.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.predicates import module_of
from thunder.capture.base.sources import Root, Source
from thunder.core.classes import ClassCache

__all__ = ["assume_pure", "communicates", "denied", "never_denied", "setting_read_by"]

# Modules whose C functions compute from their arguments, with the reason. Changes of containers are repeated.
_MODULES: dict[str, str] = {
    "math": "numbers",
    "cmath": "numbers",
    "_operator": "operators as functions; methods of the operands are seen",
    "itertools": "iterators over arguments",
    "_functools": "calls of arguments, which are seen",
    "_collections": "containers",
    "_bisect": "lists, which are guarded by content",
    "_heapq": "lists, which are guarded by content",
    "_struct": "bytes",
    "_json": "text",
    "_sre": "patterns and text",
    "_string": "text",
    "_codecs": "text",
    "unicodedata": "text",
    "binascii": "bytes",
    "zlib": "bytes",
    "_statistics": "numbers",
    "_stat": "numbers",
    "_ast": "syntax trees",
    "_typing": "annotations",
    "_hashlib": "bytes",
    "_contextvars": "context variables are guarded when they are read",
    "optree": "containers; the items are guarded where they are read",
    "numpy": "numbers and arrays; an array of the program's is denied where it is read",
    "numpy.core._multiarray_umath": "numbers and arrays",
    "numpy._core._multiarray_umath": "numbers and arrays",
    "torch._ops": "an operator: the tracer sees its calls",
    "torch._C._nn": "operations: the tracer sees their calls",
    "torch._C._fft": "operations: the tracer sees their calls",
    "torch._C._linalg": "operations: the tracer sees their calls",
    "torch._C._special": "operations: the tracer sees their calls",
    "torch._C._sparse": "operations: the tracer sees their calls",
    "torch._C._nested": "operations: the tracer sees their calls",
    "torch._C._functorch": "levels of torch.func's transforms, which the tracer replaces",
    "torch._C._monitor": "counters of calls, which no result depends on",
    "torch._C._dynamo": "torch.compile's switches, which no operation depends on",
}

_ARGUMENTS_ONLY = "computes from its arguments"
_SEEN = "the methods that it calls are seen"
# Functions of other modules, with the reason.
_FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(
        [f"builtins.{name}" for name in (
            "abs", "all", "any", "ascii", "bin", "callable", "chr", "compile", "delattr", "divmod", "format", "getattr",
            "hasattr", "hash", "hex", "id", "isinstance", "issubclass", "iter", "len", "max", "min", "next", "oct",
            "ord", "pow", "repr", "round", "setattr", "sorted", "sum", "vars", "locals", "aiter", "anext",
            "__build_class__",
        )],
        _SEEN,
    ),
    **dict.fromkeys(["sys._getframe", "sys.exc_info", "sys.intern", "sys.audit", "sys.getsizeof"], _ARGUMENTS_ONLY),
    **dict.fromkeys(["sys.is_finalizing", "sys.getdefaultencoding", "sys.getfilesystemencoding"], "fixed in a process"),
    "torch.cuda._get_device_properties": "fixed in a process",
    "posix.fspath": _ARGUMENTS_ONLY,
    "nt.fspath": _ARGUMENTS_ONLY,
    **dict.fromkeys(["_thread.allocate_lock", "_thread.get_ident"], "a new lock, or the thread that calls"),
    **dict.fromkeys(
        ["_abc._abc_instancecheck", "_abc._abc_subclasscheck", "_abc._abc_init"],
        "registrations are guarded",
    ),
    **dict.fromkeys(["_weakref._remove_dead_weakref", "_weakref.proxy"], "tidies up weak containers"),
    **dict.fromkeys(
        [f"torch._C._distributed_c10d.{name}" for name in (
            "size", "rank", "name", "_get_backend_name", "group_name", "_resolve_process_group", "bound_device_id",
            "group_desc", "_get_backend",
        )],
        "a process group does not change",
    ),
    "torch._C._distributed.__init__": _ARGUMENTS_ONLY,  # a placement of DTensors
    **dict.fromkeys(
        ["_warnings.warn", "_warnings.warn_explicit", "_warnings._filters_mutated"],
        "warns, which no result depends on",
    ),
}  # fmt: skip

# Classes written in C whose methods compute from the object and the arguments, with the reason.
_CLASSES: dict[str, str] = {
    **dict.fromkeys(
        [f"builtins.{name}" for name in (
            "str", "bytes", "int", "float", "complex", "bool", "tuple", "range", "slice", "frozenset", "NoneType",
            "mappingproxy", "types.GenericAlias", "property", "classmethod", "staticmethod", "code", "function",
            "method", "builtin_function_or_method", "memoryview", "super",
        )],
        "immutable",
    ),
    **dict.fromkeys(
        [f"builtins.{name}" for name in ("list", "dict", "set", "bytearray")] + ["collections.deque",
         "collections.OrderedDict", "collections.defaultdict"],
        "guarded by content; changes are undone and repeated",
    ),
    **dict.fromkeys(["builtins.object", "builtins.type", "abc.ABCMeta"], "attributes, which are seen"),
    **dict.fromkeys(
        ["builtins.generator", "builtins.coroutine", "builtins.BaseException", "builtins.Exception",
         "builtins.ExceptionGroup", "builtins.traceback", "builtins.frame", "builtins.BaseExceptionGroup"],
        "made by the program: one from outside is denied where it is read",
    ),
    **dict.fromkeys(["re.Pattern", "re.Match"], "immutable"),
    **dict.fromkeys(
        ["datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.timezone",
         "datetime.tzinfo", "decimal.Decimal", "uuid.UUID"],
        "immutable; clocks are denied by name",
    ),
    **dict.fromkeys(
        ["_contextvars.ContextVar", "_contextvars.Context", "_contextvars.Token", "contextvars.ContextVar",
         "contextvars.Context", "contextvars.Token"],
        "guarded where it is read",
    ),
    **dict.fromkeys(["weakref.ReferenceType", "weakref.ref"], "what it refers to is read"),
    **dict.fromkeys(["functools.partial", "functools._lru_cache_wrapper"], "calls of functions, which are seen"),
    **dict.fromkeys(["_thread.lock", "_thread.RLock"], "entered and left by a with statement"),
    **dict.fromkeys(
        ["_json.Scanner", "_json.Encoder", "_struct.Struct", "_hashlib.HASH", "string.Formatter"],
        _ARGUMENTS_ONLY,
    ),
    **dict.fromkeys(
        ["itertools." + name for name in ("chain", "_grouper", "_tee")],
        "iterators that the program makes",
    ),
    **dict.fromkeys(
        ["_io.StringIO", "_io.BytesIO"],
        "made by the program: one from outside is denied where it is read",
    ),
    **dict.fromkeys(
        ["numpy.ndarray", "numpy.generic", "numpy.dtype", "numpy.ufunc"],
        "an array of the program's is denied where it is read",
    ),
    **dict.fromkeys(["torch.Size", "torch.dtype", "torch.device", "torch.layout", "torch.memory_format",
                     "torch.finfo", "torch.iinfo"], "immutable"),
    **dict.fromkeys(["torch._C.TensorBase", "torch._C._TensorBase", "torch.Tensor"], "the tracer sees its operations"),
    **dict.fromkeys(
        ["torch._C._VariableFunctionsClass", "torch._C._VariableFunctions"],
        "the tracer sees its operations",
    ),
    **dict.fromkeys(["torch._C.StorageBase", "torch._C.DisableTorchFunctionSubclass", "torch._C.DisableTorchFunction",
                     "torch._C._FunctionBase", "torch._C._EngineBase"], "the tracer sees the operations that use it"),
    **dict.fromkeys(["torch.Generator", "torch._C.Generator"], "its state is guarded, unless a method changes it"),
}  # fmt: skip

# Methods of these classes that are denied all the same.
_DENIED_METHODS: dict[str, frozenset[str]] = {
    "builtins.type": frozenset({"__subclasses__", "__dir__"}),
    "builtins.object": frozenset({"__dir__", "__sizeof__"}),
    "datetime.date": frozenset({"today"}),
    "datetime.datetime": frozenset({"now", "today", "utcnow"}),
    "functools._lru_cache_wrapper": frozenset({"cache_clear", "cache_info"}),
    "numpy.ndarray": frozenset({"tofile", "dump"}),
    "_thread.lock": frozenset({"acquire", "release", "locked", "acquire_lock", "release_lock", "locked_lock"}),
    "_thread.RLock": frozenset({"acquire", "release", "locked", "_acquire_restore", "_release_save"}),
    "torch.Generator": frozenset({"initial_seed", "get_state", "set_state", "graphsafe_get_state",
                                  "graphsafe_set_state", "manual_seed", "seed", "clone_state", "get_offset",
                                  "set_offset"}),
}  # fmt: skip
_DENIED_METHODS["torch._C.Generator"] = _DENIED_METHODS["torch.Generator"]

# Functions of modules listed above that read or change something else than their arguments.
_DENIED_FUNCTIONS = frozenset({
    "numpy.fromfile", "numpy.seterrobj", "numpy._core._multiarray_umath._set_numpy_warn_if_no_mem_policy",
})  # fmt: skip

# Functions of `torch._C` by how their names begin, with the reason why a program may call them.
_OF_TORCH: dict[str, str] = {
    **dict.fromkeys(
        ["_has_torch_function", "_is_torch_function",
         "_len_torch", "_push_on_torch", "_pop_torch", "_get_function_stack",
         "_get_dispatch_mode",
         "_unset_dispatch_mode", "_set_dispatch_mode", "_dispatch_", "_only_lift", "_set_only_lift",
         "_functionalization", "_disabled_torch", "_remove_obj_from_tls", "_stash_obj_in_tls", "_is_key_in_tls"],
        "modes and dispatch, which lead to the tracer",
    ),
    "_any_output_is_alias": "compares the memory of its arguments",
    **dict.fromkeys(
        ["is_", "_is_(?!alias_of)", "_get_tracing_state", "_get_default_device", "_get_privateuse1",
         "_should_allow_numbers", "get_default_dtype", "_get_autocast", "get_autocast", "_get_accelerator",
         "_cuda_is", "_cuda_getDevice", "_cuda_getArchFlags", "_cuda_getCompiledVersion", "_cuda_getDriverVersion",
         "_cuda_getCurrent", "_accelerator_"],
        "every prologue guards these modes, or they are fixed in a process",
    ),
    **dict.fromkeys(
        ["_set_grad_enabled", "set_autocast", "clear_autocast", "autocast_", "_set_sdp", "_get_flash_sdp",
         "_get_mem_efficient_sdp", "_get_math_sdp", "_get_cudnn_sdp", "_get_overrideable_sdp", "_get_sdp"],
        "the tracer sees the mode where it acts",
    ),
    **dict.fromkeys(
        ["_log_api_usage", "_record_function", "_jit_get_", "_get_operation_overload", "_get_schema", "_parse_dispatch",
         "parse_", "_ensureCUDA", "_add_docstr", "_set_warn_deprecated", "_get_warnAlways",
         "_group_tensors", "_infer_size", "_vmap", "_set_conj", "_set_neg", "_unsafe", "_get_cpp_backtrace",
         "_current_graph_task", "has$", "__enter__$", "__exit__$"],
        "no result depends on it, or it computes from its arguments",
    ),
}  # fmt: skip
_OF_TORCH_NAMES = re.compile("|".join(_OF_TORCH))
# Functions without arguments that read a setting: a prologue calls them, too.
_SETTINGS = frozenset({
    "sys.getrecursionlimit", "sys.getswitchinterval", "posix.getcwd", "posix.getpid", "nt.getcwd", "nt.getpid",
    "torch.get_num_threads", "torch.get_num_interop_threads", "torch.get_default_dtype",
    "torch._C._are_functorch_transforms_active",
})  # fmt: skip

# Modules of Python's library that may call any C function, with the reason.
_CALLERS: dict[str, str] = {
    "torch.fx.graph_module": "compiles the code of a graph module, which is guarded as a function",
    "linecache": "source lines, for messages",
    "tokenize": "source lines, for messages",
    "traceback": "source lines, for messages",
    "logging": "locks, which it releases; a handler that writes is denied where it writes",
}

# Functions of these modules that may call methods of locks, with the reason.
_USERS_OF_LOCKS: dict[tuple[str, str], str] = {
    ("threading", "_is_owned"): "tries to acquire the lock of a condition, and releases it if it could",
}

_assumed: list[Any] = []
# Results of `_denied`: by name and module for functions, and also by the class for methods.
_verdicts: dict[Any, str | None] = {}
_verdicts_of_methods: ClassCache[dict[Any, str | None]] = ClassCache()


def assume_pure(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Declare that a C function computes its result from its arguments only, and return the function.

    A traced program calls such a function while it is traced, and its compiled program uses the result as a constant.
    The arguments are guarded, as everything that the program reads.
    """
    if not callable(fn):
        raise TypeError(f"thunder.assume_pure takes a function, not {type(fn).__name__}: {fn!r}")
    _assumed.append(fn)
    return fn


def denied(fn: Any, owner: Any, scope: dict[str, Any], caller: str = "") -> str | None:
    """Return why a trace cannot contain a call of a C function, None where it can.

    `owner` is the object or class of a method, or the module of a plain function. `scope` is the globals of the code
    that calls it, and `caller` is the name of this code.
    """
    found = _denied_anywhere(fn, owner)
    if found is None:
        return None
    module = scope.get("__name__")
    return None if module in _CALLERS or (module, caller) in _USERS_OF_LOCKS else found


def never_denied(fn: Any, owner: Any) -> bool:
    """Check whether a trace can contain calls of a C function wherever they are."""
    return _denied_anywhere(fn, owner) is None


def communicates(fn: Any) -> bool:
    """Check whether a C function belongs to torch.distributed: most of them communicate with other processes."""
    return (getattr(fn, "__module__", None) or "").startswith("torch._C._distributed_c10d")


def _denied_anywhere(fn: Any, owner: Any) -> str | None:
    if _assumed and any(fn == known for known in _assumed):
        return None
    cls: Any = type(owner)
    if owner is None or issubclass(cls, types.ModuleType):
        cls = None
    elif issubclass(cls, type):
        cls = owner
    known = _verdicts if cls is None else _verdicts_of_methods.get(cls)
    if known is None:
        known = {}
        _verdicts_of_methods[cls] = known
    key = (fn.__name__, getattr(fn, "__module__", None))  # a method descriptor has no module
    try:
        return known[key]
    except KeyError:
        found = known[key] = _denied(fn, cls)
        return found


def _denied(fn: Any, cls: type | None) -> str | None:
    name = fn.__name__
    if not name and cls is not None and module_of(cls).startswith("pybind11_builtins"):
        return None  # an operator of torch.ops: the tracer sees its calls
    if cls is not None and not module_of(cls).startswith("pybind11_builtins"):
        return _denied_method(name, cls)
    module = getattr(fn, "__module__", None) or ""
    listed = _is_listed(module) and f"{module}.{name}" not in _DENIED_FUNCTIONS
    if listed or f"{module}.{name}" in _FUNCTIONS:
        return None
    if fn.__qualname__.startswith(("_VariableFunctionsClass.", "TensorBase.", "StorageBase.")):
        return None  # an operation: the tracer sees its calls
    if (module == "torch" or module.startswith("torch._C")) and _OF_TORCH_NAMES.match(name):
        return None
    if setting_read_by(fn) is not None:
        return None
    if communicates(fn):
        return f"the program calls `{name}` of torch.distributed, which may communicate with other processes"
    return f"the program calls {module}.{name}, a C function that may read or change what no guard can watch"


def _denied_method(name: str, cls: type) -> str | None:
    # A class written in Python may override the method, and call it.
    owner = next((c for c in cls.__mro__ if name in c.__dict__ and not isinstance(c.__dict__[name], _IN_PYTHON)), cls)
    title = f"{module_of(owner)}.{owner.__qualname__}"
    if name in _DENIED_METHODS.get(title, ()):
        return f"the program calls {owner.__qualname__}.{name}"
    if name in ("__instancecheck__", "__subclasscheck__"):
        return None
    if title in _CLASSES or (issubclass(owner, torch.Tensor) and owner is not torch.Tensor) or _is_listed(title):
        return None
    if owner.__flags__ & _IMMUTABLE and name.startswith("__") and name in object.__dict__:
        return None
    return f"the program calls {title}.{name}, a C function that may read or change what no guard can watch"


_IMMUTABLE = 1 << 8
_IN_PYTHON = (types.FunctionType, property)


def _is_listed(module: str) -> bool:
    if module.startswith("numpy.random"):
        return False
    parts = module.split(".")
    return any(".".join(parts[:n]) in _MODULES for n in range(1, len(parts) + 1))


def setting_read_by(fn: Any) -> Source | None:
    """Return the source of what a function without arguments says about settings, None for other functions."""
    name, module = fn.__name__, getattr(fn, "__module__", None) or ""
    of_torch = module == "torch._C" and name.lstrip("_").startswith("get_") and not _OF_TORCH_NAMES.match(name)
    if not of_torch and f"{module}.{name}" not in _SETTINGS:
        return None
    owner = sys.modules[module]
    found = getattr(owner, name, None)
    is_same = found is fn or getattr(found, "__wrapped__", None) is fn  # a replacement, while a program is traced
    return Root(owner, module).attr(name).call() if is_same else None
