# SPDX-License-Identifier: Apache-2.0
"""The foundation of all of capture: sources, snapshots, modes and fallbacks."""
