# SPDX-License-Identifier: Apache-2.0
"""The models of Transformers under `thunder.jit`. `nox -s models` runs this; the test suite needs no Transformers."""

from __future__ import annotations

import pytest
from zoo.checks import check_branching, check_generate, common_tests
from zoo.entry import Entry
from zoo.transformers_models import BRANCHING, MODELS

GENERATING = [(entry, mode) for entry in MODELS for mode in entry.generate]


def test_there_are_enough() -> None:
    """At least thirty models, of every family, each named once."""
    assert len(MODELS) >= 30
    assert len({entry.name for entry in MODELS}) == len(MODELS)
    assert {entry.family for entry in MODELS} == {
        "encoder", "decoder", "encoder-decoder", "mixture of experts", "state space", "vision", "audio",
        "vision and language",
    }  # fmt: skip


test_outputs, test_training = common_tests(MODELS, trained=[entry for entry in MODELS if entry.gradients])


@pytest.mark.parametrize(("entry", "mode"), GENERATING, ids=[f"{entry}-{mode}" for entry, mode in GENERATING])
def test_generate(entry: Entry, mode: str) -> None:
    """Tokens are eager's."""
    check_generate(entry, mode)


@pytest.mark.filterwarnings("ignore:.*branches on values of tensors")
@pytest.mark.parametrize("entry", BRANCHING, ids=str)
def test_branching(entry: Entry) -> None:
    """A model that branches on values runs paths, and is partly eager if these are rarely repeated."""
    check_branching(entry)
