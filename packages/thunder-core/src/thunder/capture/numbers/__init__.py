# SPDX-License-Identifier: Apache-2.0
"""Symbolic numbers of a program: which inputs are symbolic, and what is substituted for them while tracing."""
