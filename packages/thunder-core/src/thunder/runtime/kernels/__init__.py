# SPDX-License-Identifier: Apache-2.0
"""The kernels of the torch executor: functions of tensors, which the text of compiled programs calls `torchex.name`.

They import no language and no executor, so that a program that was loaded from its text runs without them. The files in
`executors/torchex/` of the same names register them as implementations of operations.
"""
