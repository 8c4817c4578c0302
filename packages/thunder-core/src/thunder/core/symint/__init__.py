# SPDX-License-Identifier: Apache-2.0
"""Symbolic integers and floats: sizes and numbers that are not constants of a trace."""
