# SPDX-License-Identifier: Apache-2.0
"""A plugin that requires a thunder-core of the future."""

raise AssertionError("a plugin that requires another thunder-core was imported")
