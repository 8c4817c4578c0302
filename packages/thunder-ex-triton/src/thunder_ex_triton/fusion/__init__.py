# SPDX-License-Identifier: Apache-2.0
"""The fusion executor, which compiles regions of a trace to Triton kernels.

`executor` decides which operations can be fused, and finds regions. These modules generate the source of kernels:
`iteration_space` (the elements that a kernel loops over), `index` (index expressions of tensors), `op_table`
(primitives in Triton's language, with the helpers in `functions` and `philox`), `codegen` (the computation of a result
at an index) and `templates` (the code around that computation). `layout` computes the strides of results, and `memory`
decides which results a kernel may write to memory that exists. `region` compiles the kernels of a region,
`kernel_modules` imports them from their source, and `program` runs them. `tiles` (or `autotune`) selects their tiling,
and `launcher_codegen` generates the functions that launch them. `symbolic` and `sizes` do the same for symbolic sizes.
`updates` groups equal updates of many tensors, e.g. an optimizer's, and `multi_tensor` computes each group with one
kernel. `random` lowers random numbers to arithmetic on seeds. `dump` prints a fusion as a readable program.
"""
