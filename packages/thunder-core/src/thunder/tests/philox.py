# SPDX-License-Identifier: Apache-2.0
"""Philox in plain Python: the reference for kernels that draw random numbers."""

from __future__ import annotations

__all__ = ["philox"]

_WORD = 0xFFFFFFFF


def philox(seed: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Compute Philox with four 32-bit words and ten rounds. Only the low bits of arguments are used."""
    a, b, c, d = (n & _WORD for n in counter)
    first, second = seed & _WORD, seed >> 32 & _WORD
    for _ in range(10):
        x, y = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = y >> 32 ^ b ^ first, y & _WORD, x >> 32 ^ d ^ second, x & _WORD
        first, second = first + 0x9E3779B9 & _WORD, second + 0xBB67AE85 & _WORD
    return a, b, c, d
