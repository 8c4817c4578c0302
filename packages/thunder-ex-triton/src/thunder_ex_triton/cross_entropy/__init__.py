# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy. Forward reads the logits once. Backward reads the logits once and writes the gradient once."""
