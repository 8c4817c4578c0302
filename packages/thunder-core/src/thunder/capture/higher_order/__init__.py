# SPDX-License-Identifier: Apache-2.0
"""Functions of functions while tracing: gradients, vmap, checkpointing, control flow."""
