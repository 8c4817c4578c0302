# SPDX-License-Identifier: Apache-2.0
"""`thunder.load`: programs that `thunder.export` has written to a file, run with torch and the runtime alone.

A file is a safetensors file: its metadata contains the programs as text, and its tensors are the parameters and
constants. Texts are checked like those of the cache before they run.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder.core.errors import ThunderError
from thunder.runtime.autocast import no_autocast
from thunder.runtime.guards import GuardFailed
from thunder.saved.constants import Decoder
from thunder.saved.programs import SavedText
from thunder.saved.references import Stale
from thunder.saved.store import KEY_VARIABLE
from thunder.saved.verify import Refused

__all__ = ["EXPORT_FORMAT", "LoadedProgram", "load", "signature_of", "versions"]

EXPORT_FORMAT = "thunder export 1"
MAX_METADATA_BYTES = 1 << 26
_NOT_FOR_THIS_CALL = (GuardFailed, KeyError, IndexError, AttributeError, TypeError, ValueError, ArithmeticError)


def signature_of(programs: str) -> str:
    """Return the signature of programs with the key in `THUNDER_CACHE_KEY`, or an empty text without a key."""
    key = os.environ.get(KEY_VARIABLE, "").encode()
    return hmac.new(key, programs.encode(), hashlib.sha256).hexdigest() if key else ""


def load(path: str | os.PathLike[str], *, device: str | torch.device | None = None) -> LoadedProgram:
    """Return the callable that `thunder.export` has written to a file.

    It runs with torch alone, without the source of the model. It accepts the arguments for which it was exported, and
    computes without gradients. `device` is where its parameters are loaded; by default, where they were.
    """
    path = os.fspath(path)
    metadata, tensors = _read(path)
    text = metadata.get("programs", "")
    if metadata.get("format") != EXPORT_FORMAT:
        raise ThunderError(f"{path} was not written by thunder.export, or by another version of it")
    signed = bool(signature_of(text)) and hmac.compare_digest(metadata.get("signature", ""), signature_of(text))
    if signature_of(text) and not signed:
        raise ThunderError(f"{path} is not signed with the key in {KEY_VARIABLE}")
    try:
        content = json.loads(text)
        if content["weights"] is not None:
            tensors |= _read(os.path.join(os.path.dirname(path), os.path.basename(content["weights"])))[1]
        return LoadedProgram(content, tensors, signed=signed, device=device)
    except (Refused, Stale) as error:
        raise ThunderError(f"{path} cannot be loaded: {error}{_written_by(content)}") from None
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise ThunderError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def versions() -> dict[str, str]:
    """Return the versions of Python and torch of this process."""
    return {"Python": platform.python_version(), "torch": torch.__version__}


def _written_by(content: Any) -> str:
    """Return the versions that have written a file, as the end of a message, if they are others than this process's."""
    found = content.get("versions") if isinstance(content, dict) else None
    if found == versions() or not isinstance(found, dict):
        return ""
    told = [" and ".join(f"{name} {version}" for name, version in each.items()) for each in (found, versions())]
    return f". It was exported with {told[0]}, and this is {told[1]}: export it anew with these versions"


def _read(path: str) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open  # imported here, because only files need it

    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if size > MAX_METADATA_BYTES:
            raise ThunderError(f"{path} is damaged: its header has {size} bytes")
        with safe_open(path, framework="pt") as found:
            return dict(found.metadata() or {}), {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118  (no dict)
    except SafetensorError as error:
        raise ThunderError(f"{path} is damaged ({error})") from None


class _Exported:
    """One program of a file: its prologue accepts the arguments of a call, or raises."""

    def __init__(self, content: Mapping[str, Any], decode: Decoder, parameters: Mapping[str, torch.Tensor]):
        programs = content["programs"]
        self.prologue = SavedText(programs["prologue"]).function(decode, kind="prologue")
        self.program = SavedText(programs["computation"]).function(decode)
        epilogue = programs.get("epilogue")
        self.epilogue = None if epilogue is None else SavedText(epilogue).function(decode)
        # Of each input: the index among the values of the prologue, or a parameter.
        self.inputs: list[Any] = [parameters[x] if isinstance(x, str) else int(x) for x in content["inputs"]]
        self.description: str = str(content["description"])

    def __call__(self, given: Sequence[Any]) -> Any:
        values = self.program(*[given[x] if type(x) is int else x for x in self.inputs])
        return values if self.epilogue is None else self.epilogue(values, ())


class LoadedProgram:
    """The programs of a file, one for each kind of arguments. It can be called from several threads."""

    def __init__(
        self,
        content: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
        *,
        signed: bool,
        device: str | torch.device | None,
    ):
        self.name: str = str(content["name"])
        self.parameters = {
            name: _placed(tensors[name], place, stride, device)
            for name, (place, stride) in content["parameters"].items()
        }
        decode = Decoder(None, tensors, signed=lambda: signed)
        self._programs = [_Exported(x, decode, self.parameters) for x in content["entries"]]
        self._run: Callable[..., Any] = torch.no_grad()(no_autocast(self._call))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        reasons = []
        for program in self._programs:
            try:
                given = program.prologue(*args, **kwargs)
            except _NOT_FOR_THIS_CALL as failure:
                reasons.append(f"{program.description}: {failure}")
                continue
            return program(given)
        raise ThunderError(
            f"{self.name} was not exported for these arguments. Export it for them, too (`exported.add(…)`), or with "
            "dynamic_shapes. Its programs are\n  " + "\n  ".join(reasons)
        )

    def __repr__(self) -> str:
        return f"<{self.name}, loaded: {', '.join(p.description for p in self._programs)}>"


def _placed(x: torch.Tensor, device: str, stride: Sequence[int], to: Any) -> torch.Tensor:
    """Return a parameter on its device and with its strides."""
    target = torch.device(device if to is None else to)
    if list(x.stride()) == list(stride):
        return x.to(target)
    return torch.empty_strided(x.shape, list(stride), dtype=x.dtype, device=target).copy_(x)
