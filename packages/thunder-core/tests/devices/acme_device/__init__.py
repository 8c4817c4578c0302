# SPDX-License-Identifier: Apache-2.0
"""A device that is neither CPU nor CUDA, for tests: `acme`, torch's PrivateUse1 with the kernels of `acme.cpp`.

The package is as a vendor would ship it: torch calls `autoload` when it is imported, by an entry point of the group
`torch.backends`. `compile_library` is what the vendor's wheel would have done, and takes a minute.
"""

from __future__ import annotations

import os
import subprocess
import types
from pathlib import Path

import torch

__all__ = ["autoload", "compile_library"]

#: The variable with the path of the compiled library.
LIBRARY = "ACME_DEVICE_LIBRARY"


def compile_library(target: Path) -> None:
    """Compile the kernels to a shared library."""
    root = Path(torch.__file__).parent
    target.parent.mkdir(parents=True, exist_ok=True)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = [f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O0", "-w", "-fPIC", "-shared", abi]
    source = Path(__file__).with_name("acme.cpp")
    subprocess.run([*command, f"-I{root / 'include'}", str(source), "-o", str(target), *libraries], check=True)


class _Device(types.ModuleType):
    """The module `torch.acme`, with the functions that torch and its users call."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return int(torch.ops.acme_device.current_device())

    def set_device(self, device: int) -> None:
        torch.ops.acme_device.set_device(device)

    def synchronize(self, device: object = None) -> None:
        """Return at once: every operation has ended when it returns."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_device_properties(self, device: object = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(name="Acme One", total_memory=1 << 30)

    def manual_seed_all(self, seed: int) -> None:
        for index in range(self.device_count()):
            torch.ops.acme_device.manual_seed(seed, index)

    def get_rng_state(self, device: object = "acme") -> torch.Tensor:
        return torch.ops.acme_device.get_rng_state(self._index(device))  # type: ignore[no-any-return]

    def set_rng_state(self, state: torch.Tensor, device: object = "acme") -> None:
        torch.ops.acme_device.set_rng_state(state, self._index(device))

    def _index(self, device: object) -> int:
        found = device if isinstance(device, int) else torch.device(device).index  # type: ignore[arg-type]
        return self.current_device() if found is None else found


def autoload() -> None:
    """Make the device known to torch."""
    torch.utils.rename_privateuse1_backend("acme")
    torch._register_device_module("acme", _Device("torch.acme"))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    torch.ops.load_library(os.environ[LIBRARY])
