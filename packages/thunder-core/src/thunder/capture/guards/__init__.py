# SPDX-License-Identifier: Apache-2.0
"""Guards: the prologue that checks what was read, and the epilogue that replays what was assigned."""
