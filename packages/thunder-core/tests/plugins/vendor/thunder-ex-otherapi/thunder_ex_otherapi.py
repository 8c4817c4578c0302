# SPDX-License-Identifier: Apache-2.0
"""A plugin for a plugin API that this thunder-core does not have."""

raise AssertionError("a plugin of another API version was imported")
