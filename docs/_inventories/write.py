# SPDX-License-Identifier: Apache-2.0
"""Writes the inventories beside this file: where Python and torch document the names that our pages mention.

They are committed, so that a build needs no network. Add a name below and run `python docs/_inventories/write.py`.
"""

from __future__ import annotations

import zlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

# page -> kind -> names. "$" in a page stands for the name, which is the anchor, too, unless the page has another one.
PYTHON = {
    "library/functions.html": {"class": "int float bool object type slice"},
    "library/stdtypes.html": {"class": "str list tuple dict set frozenset bytes"},
    "library/constants.html": {"data": "None"},
    "library/typing.html": {"data": "typing.Any typing.Literal typing.Optional typing.Union"},
    "library/collections.abc.html": {
        "class": "collections.abc.Callable collections.abc.Hashable collections.abc.Iterable collections.abc.Iterator "
        "collections.abc.Mapping collections.abc.MutableMapping collections.abc.Sequence collections.abc.Generator"
    },
    "library/pathlib.html": {"class": "pathlib.Path"},
    "library/os.html": {"class": "os.PathLike"},
    "library/types.html": {"class": "types.ModuleType types.FunctionType types.CodeType"},
    "library/exceptions.html": {
        "exception": "Exception RuntimeError TypeError ValueError KeyError ImportError NotImplementedError"
    },
}  # fmt: skip
TORCH = {
    "tensors.html": {"class": "torch.Tensor"},
    "tensor_attributes.html": {"class": "torch.dtype torch.device torch.layout torch.memory_format"},
    "fx.html": {"class": "torch.fx.GraphModule torch.fx.Graph torch.fx.Node"},
    "generated/$.html": {
        "class": "torch.nn.Module torch.nn.Linear torch.Generator torch.cuda.CUDAGraph",
        "function": "torch.compile torch.no_grad torch.vmap torch.func.grad torch.cond",
    },
    "generated/torch.nn.parameter.Parameter.html#torch.nn.parameter.Parameter": {"class": "torch.nn.Parameter"},
}


def inventory(project: str, pages: dict[str, dict[str, str]]) -> bytes:
    """Return an inventory in Sphinx's format, version 2."""
    lines = [
        f"{name} py:{kind} 1 {page.replace('$', name)}{'' if '#' in page else '#$'} -\n"
        for page, kinds in pages.items()
        for kind, names in kinds.items()
        for name in names.split()
    ]
    header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    header += "# The remainder of this file is compressed using zlib.\n"
    return header.encode() + zlib.compress("".join(sorted(lines)).encode(), 9)


if __name__ == "__main__":
    (FOLDER / "python.inv").write_bytes(inventory("Python", PYTHON))
    (FOLDER / "torch.inv").write_bytes(inventory("PyTorch", TORCH))
