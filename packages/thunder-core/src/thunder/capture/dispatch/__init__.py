# SPDX-License-Identifier: Apache-2.0
"""Dispatch: the handlers that turn each call of torch into operations of the trace."""
