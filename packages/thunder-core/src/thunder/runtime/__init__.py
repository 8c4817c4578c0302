# SPDX-License-Identifier: Apache-2.0
"""What a compiled program calls while it runs."""
