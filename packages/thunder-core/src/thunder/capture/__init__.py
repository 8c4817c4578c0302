# SPDX-License-Identifier: Apache-2.0
"""Capture: run a program once on handles, and return its computation trace, its prologue and its epilogue."""
