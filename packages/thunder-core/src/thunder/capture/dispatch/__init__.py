# SPDX-License-Identifier: Apache-2.0
"""Calls of torch while tracing: what each becomes in the trace."""
