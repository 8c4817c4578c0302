# SPDX-License-Identifier: Apache-2.0
"""An import path of the executor of NVIDIA's apex, `apex_ex`, which the plugin thunder-ex-apex brings."""

from __future__ import annotations

from thunder.executors.of_plugin import attribute_of_plugin

__getattr__, __dir__ = attribute_of_plugin("apex_ex", "apex", "thunder-ex-apex", __name__)
