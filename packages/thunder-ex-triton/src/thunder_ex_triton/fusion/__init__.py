# SPDX-License-Identifier: Apache-2.0
"""The fusion executor: regions of a trace as kernels.

`executor` says what can be fused and finds regions; `space` what a kernel goes over; `index` where in each tensor a
program is; `expressions` how each primitive is written in Triton's language; `source` writes kernels; `region` runs
them, `symbolic` for sizes that only a call tells (`sizes`); `random` makes draws of random numbers arithmetic on seeds,
with `philox` in the kernels; `readable` writes a fusion as a program for people.
"""
