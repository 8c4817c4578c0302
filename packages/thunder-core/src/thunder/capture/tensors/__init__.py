# SPDX-License-Identifier: Apache-2.0
"""Traced tensors: handles, their storage and aliases, layout, leaf tensors."""
