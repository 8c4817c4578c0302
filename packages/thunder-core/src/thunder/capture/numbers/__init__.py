# SPDX-License-Identifier: Apache-2.0
"""Symbolic numbers of a program: which inputs are symbolic, and how symbols replace them while tracing."""
