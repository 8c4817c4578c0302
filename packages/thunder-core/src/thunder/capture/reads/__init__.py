# SPDX-License-Identifier: Apache-2.0
"""Recording of the values that a program reads while it is traced, so that guards can check them."""
