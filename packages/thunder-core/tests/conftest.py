# SPDX-License-Identifier: Apache-2.0
"""What all tests share: every trace is verified between passes, and random inputs are the same in every run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("THUNDER_VERIFY", "1")
# The tensors of tests are small: threads would only wait for each other, and sums come out in one order.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Deadlines would measure the machine; derandomized, a failure is everybody's failure.
settings.register_profile(
    "thunder", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("thunder")
