# SPDX-License-Identifier: Apache-2.0
"""A plugin whose kernels are not installed."""

import acme_kernels  # noqa: F401
