# SPDX-License-Identifier: Apache-2.0
"""All features, one file a theme."""

from __future__ import annotations

import importlib
import pkgutil

from soak.feature import Feature


def all_features() -> list[Feature]:
    """Return the features of every file in this folder, in a fixed order."""
    found: list[Feature] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found += importlib.import_module(f"{__name__}.{module}").FEATURES
    names = [f.name for f in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two features have one name: {', '.join(sorted(twice))}")
    return found
