# SPDX-License-Identifier: Apache-2.0
"""The states of torch's random number generators."""

from __future__ import annotations

from typing import Any

__all__ = ["set_generator", "state_of_generator"]


def state_of_generator(device: Any, generator: Any) -> Any:
    """Return the state of `generator`, or of torch's default generator for `device`, as a tensor of bytes."""
    import torch

    if generator is not None:
        return generator.get_state()
    return torch.get_rng_state() if device.type == "cpu" else getattr(torch, device.type).get_rng_state(str(device))


def set_generator(state: Any, device: Any, generator: Any) -> None:
    """Set the state of `generator`, or of torch's default generator for `device`."""
    import torch

    if generator is not None:
        generator.set_state(state)
    elif device.type == "cpu":
        torch.set_rng_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state, str(device))
