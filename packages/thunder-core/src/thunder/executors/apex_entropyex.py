# SPDX-License-Identifier: Apache-2.0
"""An alternative import path of `apex_ex`, the executor for NVIDIA's apex in the plugin thunder-ex-apex."""

from __future__ import annotations

from thunder.executors.of_plugin import attribute_of_plugin

__getattr__, __dir__ = attribute_of_plugin("apex_ex", "apex", "thunder-ex-apex", __name__)
