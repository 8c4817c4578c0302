# SPDX-License-Identifier: Apache-2.0
"""Saved programs: compiled programs as text on disk, read back by other processes. Nothing in them is pickled.

Only `thunder.runtime` and the leaf types of `thunder.core` are needed to run a saved program.
"""
