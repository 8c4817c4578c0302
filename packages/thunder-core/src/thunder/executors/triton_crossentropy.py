# SPDX-License-Identifier: Apache-2.0
"""An alternative import path of `triton_ex`, Triton's cross-entropy executor in the plugin thunder-ex-triton."""

from __future__ import annotations

from thunder.executors.of_plugin import attribute_of_plugin

__getattr__, __dir__ = attribute_of_plugin("triton_ex", "triton_crossentropy", "thunder-ex-triton", __name__)
