# SPDX-License-Identifier: Apache-2.0
"""The user's entry points: jitted functions and modules, their caches, and the compilation of captured traces."""
