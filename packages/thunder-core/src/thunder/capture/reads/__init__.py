# SPDX-License-Identifier: Apache-2.0
"""What a program reads while it is traced, recorded so that it can be guarded."""
