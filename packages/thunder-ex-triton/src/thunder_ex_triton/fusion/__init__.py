# SPDX-License-Identifier: Apache-2.0
"""The fusion executor: regions of a trace as kernels.

`executor` says what can be fused and finds regions. Text is written by `space` (what a kernel goes over), `index`
(where in each tensor a program is), `expressions` (primitives in Triton's language, with `functions` and `philox` that
kernels call), `values` (what computes a result at an index) and `source` (kernels around it); `layout` says how results
lie in memory. `region` compiles and runs kernels, by the rules of `tiles` and with the calls of `warm`; `symbolic` does
so for sizes that only a call tells (`sizes`). `random` makes draws of random numbers arithmetic on seeds, and
`readable` writes a fusion as a program for people.
"""
