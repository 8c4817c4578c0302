# SPDX-License-Identifier: Apache-2.0
"""The fusion executor: regions of a trace as kernels.

`executor` says what can be fused and finds regions. Text is written by `iteration_space` (what a kernel goes over),
`index` (where in each tensor a program is), `op_table` (primitives in Triton's language, with `functions` and `philox`
that kernels call), `codegen` (what computes a result at an index) and `templates` (kernels around it); `layout` says
how results lie in memory. `region` compiles and runs kernels, by the rules of `tiles` (or of `autotune`) and with the
calls of `launcher_codegen`; `symbolic` does so for sizes that only a call tells (`sizes`). `random` makes draws of
random numbers arithmetic on seeds, and `dump` writes a fusion as a program for people.
"""
