# SPDX-License-Identifier: Apache-2.0
"""pytest plugin of thunder: the options and the final table of the conformance suite.

It is a top-level module so that pytest, which imports every entry point at start, does not import thunder itself.
"""
