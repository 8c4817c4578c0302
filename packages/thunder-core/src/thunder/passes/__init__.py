# SPDX-License-Identifier: Apache-2.0
"""Passes: each makes a new trace of a trace."""
