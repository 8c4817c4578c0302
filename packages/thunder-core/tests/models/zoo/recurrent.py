# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks: torch's modules of every kind, packed sequences, cells in loops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.entry import Entry, Inputs

__all__ = ["MODELS"]


class Sequence(nn.Module):
    """One of torch's recurrent modules between two linear layers; its final states are outputs too."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any):
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.core = kind(4, 5, **options)
        self.first = options.get("batch_first", False)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x)
        return self.core(x if self.first else x.transpose(0, 1))


class Packed(nn.Module):
    """Sequences of several lengths, which are known outside."""

    def __init__(self, enforce_sorted: bool):
        super().__init__()
        self.core = nn.GRU(3, 4, batch_first=True, bidirectional=True)
        self.enforce_sorted = enforce_sorted

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.enforce_sorted)
        out, last = self.core(packed)
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        return padded, last


class Cells(nn.Module):
    """An LSTM cell, a GRU cell and a plain one, stepped by a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.plain = nn.LSTMCell(3, 4), nn.GRUCell(4, 4), nn.RNNCell(4, 4, nonlinearity="relu")
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        h = c = g = p = x.new_zeros(batch, 4)
        out = []
        for step in x.unbind(1):
            h, c = self.lstm(step, (h, c))
            g = self.gru(self.drop(h), g)
            p = self.plain(g, p)
            out.append(p)
        return torch.stack(out, 1)


class Attentive(nn.Module):
    """A translator: an LSTM reads, another writes what it attends to, with its own words or those it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 4, padding_idx=0)
        self.read = nn.LSTM(4, 5, batch_first=True)
        self.write = nn.LSTMCell(4 + 5, 5)
        self.score = nn.Linear(10, 1)
        self.out = nn.Linear(5, 11)

    def forward(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        states, (h, c) = self.read(self.words(source))
        h, c = h[0], c[0]
        blank = source.eq(0)
        logits = []
        for t in range(target.shape[1]):
            pair = torch.cat([states, h[:, None].expand_as(states)], -1)
            weights = self.score(pair).squeeze(-1).masked_fill(blank, float("-inf")).softmax(-1)
            context = torch.bmm(weights[:, None], states)[:, 0]
            h, c = self.write(torch.cat([self.words(target[:, t]), context], -1), (h, c))
            logits.append(self.out(h))
        stacked = torch.stack(logits, 1)
        loss = nn.functional.cross_entropy(stacked[:, :-1].flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        return {"loss": loss, "logits": stacked}


def sequences(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """Random sequences."""
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn((3, 6, 3) if other else (2, 5, 3), generator=generator, dtype=dtype)}


def of_lengths(*lengths: int) -> Any:
    """Sequences of these lengths, and others of other lengths."""

    def inputs(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(len(lengths), max(lengths), 3, generator=generator, dtype=dtype)
        return {"x": x, "lengths": torch.tensor([max(1, n - other * i) for i, n in enumerate(lengths)])}

    return inputs


def phrases(dtype: torch.dtype, seed: int, other: bool) -> Inputs:
    """A sentence to read, padded, and one to write."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(1, 11, (2, 7 if other else 6), generator=generator)
    source[0, 4:] = 0
    return {"source": source, "target": torch.randint(1, 11, (2, 4), generator=generator)}


MODELS: list[Entry] = [
    Entry("RNN", "RNN", lambda: Sequence(nn.RNN, nonlinearity="relu"), sequences),
    Entry("LSTM, two layers, dropout", "RNN", lambda: Sequence(nn.LSTM, num_layers=2, dropout=0.3), sequences),
    Entry("LSTM, bidirectional", "RNN", lambda: Sequence(nn.LSTM, bidirectional=True, batch_first=True), sequences),
    Entry("LSTM, projected", "RNN", lambda: Sequence(nn.LSTM, proj_size=3), sequences),
    Entry(
        "GRU, two layers, bidirectional", "RNN",
        lambda: Sequence(nn.GRU, num_layers=2, bidirectional=True, batch_first=True), sequences,
    ),
    Entry("cells in a loop", "RNN", Cells, sequences),
    Entry("LSTM translator with attention", "RNN", Attentive, phrases),
    Entry("GRU, packed", "RNN", lambda: Packed(True), of_lengths(5, 3, 2), retraces=False),
    Entry("GRU, packed and unsorted", "RNN", lambda: Packed(False), of_lengths(2, 5, 3), retraces=False),
]  # fmt: skip
