# SPDX-License-Identifier: Apache-2.0
"""How losses are reduced: today's word, and the two switches of old."""

from __future__ import annotations

import pytest

from thunder.torch.loss_arguments import reduction_of


@pytest.mark.parametrize(
    ("size_average", "reduce", "expected"),
    [(None, False, "none"), (True, None, "mean"), (False, None, "sum"), (False, True, "sum"), (True, False, "none")],
)
def test_the_old_switches(size_average: bool | None, reduce: bool | None, expected: str) -> None:
    """They win over the word, with torch's warning."""
    with pytest.warns(UserWarning, match=f"please use reduction='{expected}' instead"):
        assert reduction_of("mean", size_average, reduce) == expected


def test_the_word() -> None:
    """One of three."""
    for word in ("none", "mean", "sum"):
        assert reduction_of(word) == word
    with pytest.raises(ValueError, match="batchmean is not a valid value for reduction"):
        reduction_of("batchmean")
