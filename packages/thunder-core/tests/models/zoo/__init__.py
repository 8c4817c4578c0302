# SPDX-License-Identifier: Apache-2.0
"""Models that thunder must run as eager does: tables of them (one entry a model), and what is checked of each."""
