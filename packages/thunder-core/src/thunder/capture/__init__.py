# SPDX-License-Identifier: Apache-2.0
"""Capture: one native run of a program on proxy tensors gives its computation, its guards and its epilogue."""
