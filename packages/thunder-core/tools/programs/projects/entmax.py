# SPDX-License-Identifier: Apache-2.0
"""entmax: the README's functions and losses."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("entmax", rank=10939, requires=["entmax==1.3"])


def _function(name: str, **options: Any) -> None:
    def build() -> Any:
        import entmax

        found = getattr(entmax, name)
        return (lambda x: found(x, dim=-1, **options)), lambda: (torch.randn(3, 6, requires_grad=True),)

    PROJECT.add(name, f"README, {name}", build)


_function("sparsemax")
_function("entmax15")
_function("sparsemax_bisect")
_function("entmax_bisect", alpha=1.3)


@PROJECT.program("Entmax15Loss", "README, losses", trains=True)
def _loss() -> Any:
    import entmax

    return entmax.Entmax15Loss(), lambda: (torch.randn(4, 6, requires_grad=True), torch.randint(6, (4,)))
