# SPDX-License-Identifier: Apache-2.0
"""A few seconds of the soak of threads, and a few steps of training and serving."""

from __future__ import annotations

import pytest

from soak.threads import percentiles, serve_beside, steps


def test_threads_for_a_moment() -> None:
    watch = serve_beside(3.0)
    assert not watch.errors
    assert min(watch.calls.values()) > 0
    assert "p99 " in percentiles(watch.latencies)


@pytest.mark.parametrize("training", [True, False])
def test_steps(training: bool) -> None:
    taken = steps(60, training=training)
    assert not taken.errors
    assert len(taken.latencies) == len(taken.programs) == 60
    assert taken.programs[-1] <= 16
    assert len(taken.mebibytes) == 5
