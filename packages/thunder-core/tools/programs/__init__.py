# SPDX-License-Identifier: Apache-2.0
"""`nox -s programs`: programs of other projects under `thunder.jit`, compared with eager PyTorch.

`projects` contains the programs, a file for each project, and the rule by which they were selected. `examine` runs one
program and finds its verdict. `pool` runs programs in separate processes, and `report` writes the page.
"""
