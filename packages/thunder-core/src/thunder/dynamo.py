# SPDX-License-Identifier: Apache-2.0
"""thunder as a backend of `torch.compile`: Dynamo captures graphs, and thunder compiles them.

    torch.compile(model, backend="thunder")         # the entry point group torch_dynamo_backends names `backend`
    fast = thunder.dynamo.thunderfx(model)          # the same, with access to the subgraphs
    fast(x); fast.subgraphs[0].traces[-1]

Dynamo splits a program at graph breaks, so it supports programs that `thunder.jit` alone rejects. Each graph is jitted
as captured, at the level of torch's functions, and thunder differentiates it. Parts that thunder cannot trace (e.g.
`torch.func` transforms and control flow operators in a graph) are split off and run in torch. Sizes that are dynamic in
Dynamo are passed as integers. Each combination of sizes is a specialization, until the jitted graph makes the sizes
symbolic.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from thunder.core.trace import Trace

__all__ = ["Subgraph", "ThunderFX", "backend", "thunderfx"]

# Options of `thunderfx` for torch.compile. All other options are for thunder.jit.
_OF_TORCH = ("fullgraph", "dynamic")


class Subgraph:
    """A subgraph that Dynamo captured. thunder runs it, or torch runs it for the given `reason`."""

    def __init__(self, graph: torch.fx.GraphModule, options: Mapping[str, Any], reason: str | None = None):
        # The import is local: torch imports this module to list its backends, which must not load the compiler.
        from thunder.api import jit

        self.graph = graph
        self.reason = reason
        force_recompile = getattr(type(graph), "force_recompile", None)
        if force_recompile is not None:  # otherwise the first call generates the code while it is traced
            force_recompile(graph)
        # torch runs a graph that cannot be compiled, and `__call__` reports it.
        self.jitted = None if reason is not None else jit(graph, **{"sharp_edges": "allow", **options})

    def __call__(self, *args: Any) -> Any:
        if self.jitted is None:
            return self.graph(*args)
        result = self.jitted(*args)
        self.reason = self.jitted._stats.error
        if self.reason is not None:
            self.jitted = None
            warnings.warn(
                f"thunder cannot trace a graph of torch.compile, so torch runs it: {self.reason}", stacklevel=2
            )
        return result

    @property
    def traces(self) -> list[Trace]:
        """The traces of the last call. The list is empty if torch runs the subgraph or if it has not been called."""
        return [] if self.jitted is None or self.jitted._stats.last is None else self.jitted._stats.last_traces

    @property
    def backward_traces(self) -> list[Trace]:
        """The traces of the backward program of the last call."""
        return [] if self.jitted is None or self.jitted._stats.last is None else self.jitted._stats.last_backward_traces

    def __repr__(self) -> str:
        count = sum(node.op.startswith("call") for node in self.graph.graph.nodes)
        return f"<Subgraph of {count} operations, run by {'thunder' if self.reason is None else 'torch'}>"


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    subgraphs: list[Subgraph] | None = None,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo. `torch.compile(…, backend="thunder", options={…})` calls this function.

    `options` are the options of `thunder.jit`. The subgraphs are appended to `subgraphs`.
    """
    if mode not in (None, "default"):
        raise ValueError(
            f"torch.compile(…, backend='thunder', mode={mode!r}): only Inductor has modes; thunder has options, e.g. "
            "options={'executors': ['torch_compile']} or "
            "options={'cuda_graphs': 'always'}"
        )
    found: list[Subgraph] = [] if subgraphs is None else subgraphs
    _write_contexts_plainly(graph)
    cut = _cut(graph)
    if cut is None:
        found.append(Subgraph(graph, options or {}))
        return found[-1]
    whole, parts = cut
    for name, reason in parts.items():
        part = Subgraph(getattr(whole, name), options or {}, reason)
        found.append(part)
        _put(whole, name, part)
    return whole.forward  # type: ignore[no-any-return]


def _put(whole: Any, name: str, part: Subgraph) -> None:
    """Replace a submodule of `whole` by `part`."""
    delattr(whole, name)
    object.__setattr__(whole, name, part)


# -- graphs -----------------------------------------------------------------------------------------------------------
def _enter_autocast(*values: Any) -> Any:
    import torch

    mode = torch.amp.autocast(*values)
    mode.__enter__()
    return mode


def _exit_autocast(mode: Any) -> None:
    mode.__exit__(None, None, None)


def _write_contexts_plainly(graph: torch.fx.GraphModule) -> None:
    """Replace torch's functions that enter and exit autocast, which dispatch to modes, by plain Python."""
    import torch

    plain = {torch.amp._enter_autocast: _enter_autocast, torch.amp._exit_autocast: _exit_autocast}
    changed = False
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in plain:
            node.target = plain[node.target]
            changed = True
    if changed:
        graph.recompile()


def _left_to_torch(node: Any) -> str | None:
    """Return the reason why torch has to run a node, or None."""
    # The import is local: torch imports this module to list its backends, which must not load the compiler.
    from thunder.torch.private import HigherOrderOperator

    if node.op != "call_function":
        return None
    module = getattr(node.target, "__module__", None) or ""
    if module.startswith(("torch._functorch", "torch._C._functorch")):
        return "torch.func transforms inside a graph run in torch"
    if isinstance(node.target, HigherOrderOperator) and node.target.__name__ not in _TRACED_THROUGH:
        return f"thunder does not trace the higher-order operator {node.target.__name__}"
    return None


# Dynamo's higher-order operators that only call their subgraph, which thunder can trace.
_TRACED_THROUGH = ("tag_activation_checkpoint", "autograd_function_apply", "wrap_activation_checkpoint", "wrap")


def _sets_state(node: Any) -> bool:
    """Check whether a node changes global state that later nodes depend on without an edge."""
    import torch

    return node.op == "call_function" and node.target in (
        torch._C._set_grad_enabled,
        _enter_autocast,
        _exit_autocast,
    )


def _cut(graph: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, dict[str, str | None]] | None:
    """Split a graph into subgraphs for thunder and torch. Return None if thunder can compile the whole graph.

    The second result maps the name of each subgraph to the reason why torch runs it, or to None.
    """
    from torch.fx.passes.split_module import split_module

    nodes = list(graph.graph.nodes)
    why = {node: reason for node in nodes if (reason := _left_to_torch(node)) is not None}
    if not why:
        return None
    if any(map(_sets_state, nodes)):  # a context may span a split, so torch runs everything
        why = dict.fromkeys(nodes, next(iter(why.values())))
    functorch = [i for i, node in enumerate(nodes) if node in why and "torch.func" in why[node]]
    if functorch:  # these nodes enter and exit levels, so all nodes from the first to the last are one subgraph
        for node in nodes[functorch[0] : functorch[-1] + 1]:
            why.setdefault(node, why[nodes[functorch[0]]])
    part, last, number, reasons = {}, object(), -1, {}
    for node in nodes:
        reason = why.get(node)
        if reason is not last and node.op not in ("placeholder", "output", "get_attr"):
            number, last = number + 1, reason
            reasons[f"submod_{number}"] = reason
        part[node] = max(number, 0)
    whole = split_module(graph, None, lambda node: part[node], keep_original_order=True)
    return whole, {name: reason for name, reason in reasons.items() if hasattr(whole, name)}


# -- with access to the subgraphs -------------------------------------------------------------------------------------
class ThunderFX:
    """A function or module compiled by `torch.compile` with thunder as the backend.

    `subgraphs` are those captured so far.
    """

    def __init__(self, fn: Callable[..., Any], options: Mapping[str, Any], of_torch: Mapping[str, Any]):
        import torch

        self.subgraphs: list[Subgraph] = []

        def compile_graph(graph: Any, example_inputs: Any) -> Callable[..., Any]:
            return backend(graph, example_inputs, options=options, subgraphs=self.subgraphs)

        self.compiled = torch.compile(fn, backend=compile_graph, **of_torch)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("compiled", "subgraphs"):
            raise AttributeError(name)
        return getattr(self.compiled, name)

    def __repr__(self) -> str:
        return f"thunder.dynamo.thunderfx({getattr(self.compiled, '_orig_mod', self.compiled)!r:.200})"


def thunderfx(fn: Callable[..., Any], **options: Any) -> ThunderFX:
    """Return `torch.compile(fn, backend="thunder")` with access to its `subgraphs` and their traces.

    `fullgraph` and `dynamic` are options of torch.compile. All other options are those of thunder.jit.
    """
    if not callable(fn):
        raise TypeError(f"thunderfx expects a function or a module, not {type(fn).__name__}: {fn!r}")
    of_torch = {name: options.pop(name) for name in _OF_TORCH if name in options}
    # The import is local: torch imports this module to list its backends, which must not load the compiler.
    from thunder.api import jit

    jit(lambda: None, **options)  # reject unknown options now rather than when Dynamo calls the backend
    return ThunderFX(fn, options, of_torch)
