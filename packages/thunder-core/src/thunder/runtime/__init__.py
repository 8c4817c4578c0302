# SPDX-License-Identifier: Apache-2.0
"""The run-time support of compiled programs: what prologues, computations and epilogues call."""
