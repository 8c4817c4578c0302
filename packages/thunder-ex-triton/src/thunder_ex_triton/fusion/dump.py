# SPDX-License-Identifier: Apache-2.0
"""Print a region's kernels as a readable program, with the trace's names, the replaced operations and an example call.

Compiled kernels use positional names, so that equal regions share one kernel. The printed program uses the names of the
trace, and contains the function that launches the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from thunder.extend import BoundSymbol, TensorProxy, bytes_of, dtypes, in_bytes, to_torch_device, to_torch_dtype
from thunder_ex_triton.fusion.templates import HELPERS, KernelSource, module_text

__all__ = ["program"]

_PLACES = {"b": "entry", "x": "rows", "xm": "in_rows", "r": "columns", "rm": "in_columns"}
_PLACES_OF_ELEMENTS = {"x": "element", "xm": "in_tensor"}
_OWN = (
    "zero row across down tile first before vector lane whole rest start end p programs XB RB tl triton torch libdevice"
)
_TAKEN = frozenset({*_OWN.split(), *HELPERS})
_NUMBER = re.compile(r"\b[vc]\d+\b")


def program(
    name: str,
    size: str,
    operations: Sequence[BoundSymbol],
    inputs: Sequence[TensorProxy],
    outputs: Sequence[tuple[TensorProxy, Sequence[int]]],
    launches: Sequence[Any],
    partial: tuple[int, int],
) -> str:
    """Return the program.

    `launches` are kernels with grid, numbers and warps. `partial` is the shape of the columns' partial sums.
    """
    moved = in_bytes(sum(bytes_of(p) for p in (*inputs, *(p for p, _ in outputs))))
    templates = ", ".join(k.source.template for k in launches)
    lines = [f"# {name}: {size}, {moved} moved, template {templates}. It computes", "#"]
    lines += [f"#   {str(op).splitlines()[0]}" for op in operations]
    lines += ["", "import torch", module_text([_kernel(k.source) for k in launches])]
    lines += ["", *_function(name, inputs, outputs, launches, partial), "", ""]
    return "\n".join([*lines, *_example(name, inputs), ""])


def _kernel(source: KernelSource) -> str:
    """Return the source of a kernel with the names of the trace."""
    names = dict(_PLACES_OF_ELEMENTS if source.template == "elements" else _PLACES)
    taken = {*_TAKEN, *names.values()}

    def unique(wanted: str) -> str:
        found, n = wanted, 0
        while found in taken:
            n += 1
            found = f"{wanted}_{n}"
        taken.add(found)
        return found

    parameters = (*source.reads, *source.writes)
    parts = [n for n in parameters if n.endswith("_part")]
    names.update((f"p{i}", unique(f"{n}_ptr")) for i, n in enumerate(parameters))
    names.update((f"sum{i}", unique(f"{n.removesuffix('_part')}_sum")) for i, n in enumerate(parts))
    for v in dict.fromkeys(_NUMBER.findall(source.text)):
        names[v] = unique(source.titles.get(v, v))
    return re.sub(r"(?<![\w.])[a-z]+\d*\b", lambda m: names.get(m[0], m[0]), source.text)


def _function(
    name: str,
    inputs: Sequence[TensorProxy],
    outputs: Sequence[tuple[TensorProxy, Sequence[int]]],
    launches: Sequence[Any],
    partial: tuple[int, int],
) -> list[str]:
    """Return the function that allocates the results and launches the kernels."""
    given = {p.name for p in (*inputs, *(p for p, _ in outputs))}
    body = [f"{p.name} = {_empty(tuple(p.shape), tuple(strides), p)}" for p, strides in outputs]
    device = repr(str(to_torch_device(outputs[0][0].device)))
    scratch = dict.fromkeys(n for k in launches for n in k.source.writes if n not in given)
    body += [f"{n} = torch.empty({partial}, dtype=torch.float32, device={device})" for n in scratch]
    for k in launches:
        arguments = ", ".join([*k.source.reads, *k.source.writes, *map(repr, k.numbers)])
        options = "".join(f", {name}={value}" for name, value in k.kernel.options.items())
        body.append(f"{k.source.name}[{k.grid}]({arguments}, num_warps={k.warps}{options})")
    made = ", ".join(p.name for p, _ in outputs)
    head = f"def {name}({', '.join(p.name for p in inputs)}):"
    return [head, *(f"    {line}" for line in body), f"    return {made}{',' if len(outputs) == 1 else ''}"]


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], p: TensorProxy) -> str:
    where = f"dtype={to_torch_dtype(p.dtype)}, device={str(to_torch_device(p.device))!r}"
    return f"torch.empty_strided({shape}, {strides}, {where})"


def _example(name: str, inputs: Sequence[TensorProxy]) -> list[str]:
    """Return an example call with tensors of the sizes in the trace."""
    lines = ['if __name__ == "__main__":']
    for p in inputs:
        make = "randn" if dtypes.is_float_dtype(p.dtype) else "ones"
        where = f"dtype={to_torch_dtype(p.dtype)}, device={str(to_torch_device(p.device))!r}"
        lines.append(f"    {p.name} = torch.{make}({tuple(p.shape)}, {where})")
    lines += [f"    for result in {name}({', '.join(p.name for p in inputs)}):", "        print(result)"]
    return lines
