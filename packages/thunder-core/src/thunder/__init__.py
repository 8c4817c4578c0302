# SPDX-License-Identifier: Apache-2.0
"""thunder: a source-to-source compiler for PyTorch, with executors that anyone can publish.

This module is a facade. It imports a module only when one of its names is accessed. `import thunder` is therefore
quick, and the command line works even if torch does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> the module that defines it
_ATTRIBUTES = {
    "jit": "thunder.api",
    "compile": "thunder.api",
    "trace": "thunder.api",
    "last_traces": "thunder.api",
    "last_prologue_traces": "thunder.api",
    "last_backward_traces": "thunder.api",
    "last_epilogue_traces": "thunder.api",
    "explain": "thunder.api",
    "compile_stats": "thunder.api",
    "cache_hits": "thunder.api",
    "cache_misses": "thunder.api",
    "reset": "thunder.api",
    **dict.fromkeys(
        ("grad", "grad_and_value", "value_and_grad", "vjp", "jvp", "vmap", "jacrev", "jacfwd", "hessian"),
        "thunder.frontend.functional",
    ),
    "FallbackWarning": "thunder.core.errors",
    "assume_pure": "thunder.capture.reads.c_functions",
    "disable": "thunder.frontend.per_module",
    "mark_dynamic": "thunder.capture.numbers.marks",
    "bisect": "thunder.reproduce",
    "repro": "thunder.reproduce",
    "export": "thunder.frontend.exporting",
    "save": "thunder.frontend.exporting",
    "load": "thunder.saved.loading",
    "Transform": "thunder.transforms.base",
    "RewritePass": "thunder.transforms.rewrite",
    "diff_traces": "thunder.core.provenance",
    "provenance": "thunder.core.provenance",
    "pattern": "thunder.transforms.patterns",
    "dtypes": "thunder.core.dtypes",
    "devices": "thunder.core.devices",
}
_MODULES = {
    "clang",
    "core",
    "dynamo",
    "examine",
    "executors",
    "extend",
    "numpy",
    "plugins",
    "prims",
    "torch",
    "transforms",
    "tests",
    "toolkit",
}

__all__ = [
    "FallbackWarning",
    "RewritePass",
    "Transform",
    "__version__",
    "assume_pure",
    "bisect",
    "cache_hits",
    "cache_misses",
    "compile",
    "compile_stats",
    "devices",
    "diff_traces",
    "disable",
    "dtypes",
    "explain",
    "export",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "last_backward_traces",
    "last_epilogue_traces",
    "last_prologue_traces",
    "last_traces",
    "load",
    "mark_dynamic",
    "pattern",
    "provenance",
    "repro",
    "reset",
    "save",
    "trace",
    "value_and_grad",
    "vjp",
    "vmap",
]

# The same names for type checkers, which do not run `__getattr__`. The modules are public too, but not in `__all__`:
# `from thunder import *` must not replace a user's `torch`.
if TYPE_CHECKING:
    from thunder import clang, core, dynamo, executors, extend, numpy, plugins, prims, tests, toolkit, torch, transforms
    from thunder.api import (
        cache_hits,
        cache_misses,
        compile,
        compile_stats,
        explain,
        jit,
        last_backward_traces,
        last_epilogue_traces,
        last_prologue_traces,
        last_traces,
        reset,
        trace,
    )
    from thunder.capture.numbers.marks import mark_dynamic
    from thunder.capture.reads.c_functions import assume_pure
    from thunder.core import devices, dtypes
    from thunder.core.errors import FallbackWarning
    from thunder.core.provenance import diff_traces, provenance
    from thunder.examine import CallableModule
    from thunder.frontend.exporting import export, save
    from thunder.frontend.functional import (
        grad,
        grad_and_value,
        hessian,
        jacfwd,
        jacrev,
        jvp,
        value_and_grad,
        vjp,
        vmap,
    )
    from thunder.frontend.per_module import disable
    from thunder.reproduce import bisect, repro
    from thunder.saved.loading import load
    from thunder.transforms.base import Transform
    from thunder.transforms.patterns import pattern
    from thunder.transforms.rewrite import RewritePass

    examine: CallableModule
else:

    def __getattr__(name: str) -> Any:
        home = _ATTRIBUTES.get(name)
        if home is not None:
            # The import is local: `import thunder` loads only what the program uses, and torch only if it must.
            module = importlib.import_module(home)
            value = getattr(module, name, module)  # `dtypes` and `devices` are themselves modules
        elif name in _MODULES:
            # The import is local, for the same reason.
            value = importlib.import_module(f"thunder.{name}")
        else:
            # The import is local, because programs without errors do not need it.
            from thunder.core.deprecations import old_names

            return old_names(__name__, stacklevel=3)(name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
