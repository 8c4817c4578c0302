# SPDX-License-Identifier: Apache-2.0
"""One model of each sort that needs nothing but torch; `nox -s models` runs all of them, Transformers and LitGPT."""

from __future__ import annotations

from zoo import own_models
from zoo.checks import common_tests

CHOSEN = (
    "ResNet",
    "ConvNeXt",
    "U-Net",
    "LSTM, two layers, dropout",
    "cells in a loop",
    "TransformerEncoder",
    "MultiheadAttention, biased",
    "mixture of experts, slots",
    "diffusion U-Net",
    "vector quantizer",
    "DLRM",
    "graph network",
)
BY_NAME = {entry.name: entry for entry in own_models.MODELS}
MODELS = [BY_NAME[name] for name in CHOSEN]


def test_every_model_is_named_once() -> None:
    """The table of models has no two of one name, and a model of each family is among those of the test suite."""
    assert len(BY_NAME) == len(own_models.MODELS)
    assert {entry.family for entry in MODELS} == {entry.family for entry in own_models.MODELS}


test_outputs, test_training = common_tests(MODELS)
