# SPDX-License-Identifier: Apache-2.0
"""All models that need nothing but torch, under `thunder.jit`. `nox -s models` runs this; the test suite runs a few."""

from __future__ import annotations

import pytest
from zoo.checks import check_outputs, check_training
from zoo.entry import Entry
from zoo.own_models import MODELS


@pytest.mark.parametrize("entry", MODELS, ids=str)
def test_outputs(entry: Entry) -> None:
    """Outputs in eval mode are eager's."""
    check_outputs(entry)


@pytest.mark.parametrize("entry", [entry for entry in MODELS if entry.gradients], ids=str)
def test_training(entry: Entry) -> None:
    """Losses, gradients and buffers in train mode are eager's."""
    check_training(entry)
