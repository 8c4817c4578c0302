# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy: forward reads the logits once, backward reads them once and writes the gradient once."""
