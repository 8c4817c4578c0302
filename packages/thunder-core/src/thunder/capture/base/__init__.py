# SPDX-License-Identifier: Apache-2.0
"""What all of capture stands on: sources, snapshots, modes, fallbacks."""
