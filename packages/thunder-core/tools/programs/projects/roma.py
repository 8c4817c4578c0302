# SPDX-License-Identifier: Apache-2.0
"""RoMa: the README's examples of rotations."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("roma", rank=8721, requires=["roma==1.8.*"])


@PROJECT.program("supported rotations", "documentation, examples")
def _rotations() -> Any:
    import roma

    def convert(rotvec: Any) -> Any:
        q = roma.rotvec_to_unitquat(rotvec)
        r = roma.unitquat_to_rotmat(q)
        return q, r, roma.rotmat_to_unitquat(r), roma.rotmat_to_rotvec(r)

    return convert, lambda: (torch.randn(4, 3, requires_grad=True),)


@PROJECT.program("special_procrustes", "documentation, special Procrustes orthonormalization")
def _procrustes() -> Any:
    import roma

    return roma.special_procrustes, lambda: (torch.randn(4, 3, 3, requires_grad=True),)


@PROJECT.program("registration", "documentation, rigid registration")
def _registration() -> Any:
    import roma

    return roma.rigid_points_registration, lambda: (torch.randn(5, 3), torch.randn(5, 3))


@PROJECT.program("slerp", "documentation, spherical interpolation")
def _slerp() -> Any:
    import roma

    steps = torch.linspace(0, 1, 5)

    def inputs() -> Any:
        return tuple(torch.nn.functional.normalize(torch.randn(4), dim=0) for _ in range(2))

    return (lambda a, b: roma.unitquat_slerp(a, b, steps)), inputs
