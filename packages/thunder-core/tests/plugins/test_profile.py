# SPDX-License-Identifier: Apache-2.0
"""The conformance profile: the most specific tolerance wins."""

from __future__ import annotations

from thunder.plugins import ConformanceProfile


def test_tolerances() -> None:
    """By operator and dtype, by dtype, else the suite's own."""
    profile = ConformanceProfile(tolerances={"float16": (1e-2, 1e-2), "exp:float16": (5e-2, 1e-2)})
    assert profile.tolerance("exp", "float16") == (5e-2, 1e-2)
    assert profile.tolerance("add", "float16") == (1e-2, 1e-2)
    assert profile.tolerance("add", "float32") is None


def test_defaults() -> None:
    """Nothing stated: the CPU, every dtype, no known failures."""
    profile = ConformanceProfile()
    assert (profile.devices, profile.dtypes, profile.known_failures, profile.opinfos) == (("cpu",), None, (), None)
