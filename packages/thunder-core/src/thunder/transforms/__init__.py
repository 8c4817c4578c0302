# SPDX-License-Identifier: Apache-2.0
"""Passes, one a file: each takes a trace and returns a new one."""
