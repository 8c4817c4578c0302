# SPDX-License-Identifier: Apache-2.0
"""Train linear layers in fp8 with NVIDIA's TransformerEngine, as a plugin of thunder."""

__version__ = "0.1.0"
