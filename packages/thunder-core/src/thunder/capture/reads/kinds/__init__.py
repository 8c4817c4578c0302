# SPDX-License-Identifier: Apache-2.0
"""The kinds of values that a program reads, a class for each: `classify` says of which kind a value is."""
