# SPDX-License-Identifier: Apache-2.0
"""`thunder.core.utils` re-exports the names that the outside world expects there."""

from __future__ import annotations

import thunder.core.utils
from thunder.core import errors, promotion
from thunder.core.prims import metas


def test_every_name_is_the_very_thing() -> None:
    """Each from where it lives."""
    homes = (errors, metas, promotion)
    for name in thunder.core.utils.__all__:
        found = getattr(thunder.core.utils, name)
        assert any(getattr(home, name, None) is found for home in homes), name
