# SPDX-License-Identifier: Apache-2.0
"""The judge of soundness: random programs that read and change state, compared with eager after every call.

`nox -s soak -- --minutes 30` runs random programs, `nox -s soak -- --enumerate` each feature with each of its changes,
wrappers and entries.
"""
