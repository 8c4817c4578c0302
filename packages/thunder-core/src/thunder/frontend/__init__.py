# SPDX-License-Identifier: Apache-2.0
"""Acquisition: a Python function or module, run natively once on handles, becomes traces and their guards."""
