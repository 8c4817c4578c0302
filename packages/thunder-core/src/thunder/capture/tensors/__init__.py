# SPDX-License-Identifier: Apache-2.0
"""Traced tensors: handles, their storage and aliases, their layout, and leaf tensors."""
