# SPDX-License-Identifier: Apache-2.0
"""The kinds of values that a program reads, one class each. `classify` returns the kind of a value."""
