# SPDX-License-Identifier: Apache-2.0
"""Registers and shared memory of the kernels of models, compiled for a GPU that need not be there.

    python benchmarks/registers.py [--models GPT-2,ViT] [--gpus 80,86,90,100,120] [--markdown FILE]

The gradients of the models of `packages/thunder-core/benchmarks/base_models.py` are compiled on the CPU as if their
tensors were on a GPU of each compute capability, and not run. A row has the number of kernels, those with values that
do not fit into registers (with the most bytes of stack of a thread), the most shared memory of a program, and the
seconds that all compilations take together. A kernel that does not compile is an error. `--list` prints each kernel.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import thunder
from thunder.examine.program import compile_call
from thunder.plugins import Env
from thunder.toolkit.benchmarking import parser, report, table
from thunder_ex_triton import launch, probe
from thunder_ex_triton.fusion import region, tiles

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "thunder-core" / "benchmarks"))
from base_models import MODELS

KILOBYTES = {80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}  # of shared memory of a multiprocessor
_TYPES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64", torch.bool: "*i1",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8",
}  # fmt: skip
_CUOBJDUMP = Path(nvidia.__file__).parent / "bin" / "cuobjdump"


class Compiled(NamedTuple):
    """What the compiler says of a kernel."""

    title: str
    registers: int
    stack: int  # bytes of a thread
    shared: int
    seconds: float


class Compiler:
    """Compiles kernels for a compute capability, instead of loading them."""

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu
        self.found: dict[Any, Compiled] = {}
        self.lock = threading.Lock()

    def compile_ahead(self, kernel: launch.Kernel, grid: Any, dtypes: Any, numbers: Any, warps: int) -> None:
        """Compile a kernel for tensors of these dtypes at aligned addresses."""
        signature, constants, attributes = {}, {}, {}
        for i, (parameter, value) in enumerate(zip(kernel.jit.params, (*dtypes, *numbers))):
            if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
                signature[parameter.name], constants[(i,)] = "constexpr", value
            elif isinstance(value, torch.dtype):
                signature[parameter.name], attributes[(i,)] = _TYPES[value], [["tt.divisibility", 16]]
            else:
                wide = type(value) is int and abs(value) >= 1 << 31
                signature[parameter.name] = "fp32" if type(value) is float else "i64" if wide else "i32"
                if type(value) is int and value % 16 == 0:
                    attributes[(i,)] = [["tt.divisibility", 16]]
        key = kernel.jit.cache_key, *signature.values(), *constants.values(), str(attributes), warps
        with self.lock:
            if key in self.found:
                return
            title = f"{kernel.__name__}{(*numbers,)}, {warps} warps, {len(dtypes)} tensors"
            self.found[key] = Compiled(title, 0, 0, 0, 0.0)
        start = time.perf_counter()
        made = triton.compile(
            ASTSource(kernel.jit, signature, constants, attributes), target=GPUTarget("cuda", self.gpu, 32),
            options={"num_warps": warps, "enable_fp_fusion": True, **kernel.options},
        )  # fmt: skip
        seconds = time.perf_counter() - start
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            command = [_CUOBJDUMP, "--dump-resource-usage", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used = {name: int(n) for name, _, n in (word.partition(":") for word in text.split()) if n.isdecimal()}
        self.found[key] = Compiled(title, used["REG"], used["STACK"], made.metadata.shared, seconds)


def gradients_of(name: str) -> Any:
    """Return a function that computes the gradients of a model, without layer drop."""
    torch.manual_seed(0)
    model = MODELS[name].build(False).bfloat16().train()
    for module in model.modules():
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.0
    batch = {k: v.bfloat16() if v.is_floating_point() else v for k, v in MODELS[name].batch(False).items()}

    def run() -> None:
        out = model(**batch)
        (out if isinstance(out, torch.Tensor) else out.loss).backward()

    return run


def compiled(name: str, gpu: int) -> list[Compiled]:
    """Compile the kernels of a model's gradients for a compute capability."""
    compiler = Compiler(gpu)
    facts = tiles.Gpu(tiles.Gpu().multiprocessors, KILOBYTES[gpu] * 1024)
    failures: list[Exception] = []

    def compile_ahead(*args: Any) -> None:
        try:
            compiler.compile_ahead(*args)
        except Exception as error:
            failures.append(error)

    with (
        mock.patch.object(launch.Kernel, "compile_ahead", compile_ahead),
        mock.patch.object(torch.cuda, "get_device_capability", lambda device=None: divmod(gpu, 10)),
        mock.patch.object(torch.cuda, "device", lambda device: mock.MagicMock()),
        mock.patch.object(region, "gpu_of", lambda device: facts),
        mock.patch.object(probe, "reject_device", lambda *args: None),
    ):
        compile_call(thunder.jit(gradients_of(name)), (), {})
        region._compilers().shutdown()
        region._compilers.cache_clear()
    if failures:
        raise failures[0]
    return [*compiler.found.values()]


def main() -> None:
    """Print the table."""
    arguments = parser(__doc__, repetitions=None)
    arguments.add_argument("--models", default=",".join(MODELS))
    arguments.add_argument("--gpus", default="90", help="compute capabilities, e.g. 80,90")
    arguments.add_argument("--list", action="store_true", help="also print each kernel")
    options = arguments.parse_args()
    rows = []
    for name in options.models.split(","):
        for gpu in map(int, options.gpus.split(",")):
            found = compiled(name, gpu)
            spilling = [k.stack for k in found if k.stack]
            stack = f"{len(spilling)} ({max(spilling)} bytes)" if spilling else "0"
            shared, seconds = max(k.shared for k in found), sum(k.seconds for k in found)
            rows.append([name, str(gpu), str(len(found)), stack, f"{shared / 1024:.0f} KB", f"{seconds:.0f}"])
            if options.list:
                for k in sorted(found, key=lambda k: -k.seconds):
                    print(f"{k.seconds:5.1f} s, {k.registers} registers, {k.stack} stack, {k.shared} shared: {k.title}")
    head = ["model", "compute capability", "kernels", "with stack", "most shared memory", "seconds of compiling"]
    report(f"{table(head, rows)}\n\nTriton {triton.__version__}, torch {torch.__version__}", options)


if __name__ == "__main__":
    with mock.patch.object(Env, "lacks_gpu", lambda *args, **kwargs: None):
        main()
