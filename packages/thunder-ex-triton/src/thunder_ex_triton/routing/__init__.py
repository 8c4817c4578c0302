# SPDX-License-Identifier: Apache-2.0
"""Routing of tokens to experts."""
