# SPDX-License-Identifier: Apache-2.0
"""Convolutions that kernels of this package compute: what all families of kernels share."""
