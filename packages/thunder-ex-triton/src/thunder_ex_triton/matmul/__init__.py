# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplications of half-precision operands whose rows do not begin at multiples of 16 bytes."""
