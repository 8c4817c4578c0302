# SPDX-License-Identifier: Apache-2.0
"""All models that need nothing but torch, under `thunder.jit`. `nox -s models` runs this; the test suite runs a few."""

from __future__ import annotations

from zoo.checks import common_tests
from zoo.own_models import MODELS

test_outputs, test_training = common_tests(MODELS, trained=[entry for entry in MODELS if entry.gradients])
