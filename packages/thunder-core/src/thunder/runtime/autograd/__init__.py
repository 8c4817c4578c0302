# SPDX-License-Identifier: Apache-2.0
"""Compiled programs as nodes of torch's autograd graph."""
