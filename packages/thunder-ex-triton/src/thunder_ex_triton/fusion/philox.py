# SPDX-License-Identifier: Apache-2.0
"""Random numbers inside kernels: Philox, a function of a seed and of an element's place.

The number of an element does not hang on the kernel that makes it: forward and backward programs, with other tiles,
draw the same. Four neighbouring elements share one evaluation, which gives four numbers: they are in one thread, whose
compiler finds that it needs it once (measured on an H200: four times the speed of one number an evaluation). Kernels
have these functions in their own text (`templates.module_text`).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["philox_words", "uniform"]


@triton.jit
def philox_words(state, four):
    """Four words for each of these numbers of fours. `state` points to a seed and an offset."""
    seed, offset = tl.load(state), tl.load(state + 1)
    low, high = offset.to(tl.uint32), (offset >> 32).to(tl.uint32)
    return tl.philox(seed, four.to(tl.uint32), low, high, 0)


@triton.jit
def uniform(state, place):
    """Return numbers from [0, 1) for elements at these places of a tensor."""
    a, b, c, d = philox_words(state, place // 4)
    which = place % 4
    word = tl.where(which < 2, tl.where(which == 0, a, b), tl.where(which == 2, c, d))
    return tl.uint_to_uniform_float(word)
