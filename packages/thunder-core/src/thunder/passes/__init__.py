# SPDX-License-Identifier: Apache-2.0
"""Passes: functions from a trace to a new trace."""
