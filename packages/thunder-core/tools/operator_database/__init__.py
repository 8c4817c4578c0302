# SPDX-License-Identifier: Apache-2.0
"""Run PyTorch's operator database through `thunder.jit` and compare with eager: `nox -s operators`.

`calls.py` makes the calls of an operator from its samples, `check.py` runs one call both ways and compares,
`results.py` stores the results, `pool.py` runs operators in a process with a time limit, and `report.py` prints the
table. `compiled.json` contains the number of operators compiled by symbols, which must not fall.
"""
