# SPDX-License-Identifier: Apache-2.0
"""Matrix multiplications in half precision: of single rows, and of rows that do not begin at multiples of 16 bytes."""
