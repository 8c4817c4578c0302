# SPDX-License-Identifier: Apache-2.0
"""Layer norm and root mean square norm."""
