# SPDX-License-Identifier: Apache-2.0
"""Higher-order functions while tracing: gradients, vmap, checkpointing, control flow."""
