# SPDX-License-Identifier: Apache-2.0
"""Guards: the prologue checks the values that were read, and the epilogue repeats the assignments."""
