# SPDX-License-Identifier: Apache-2.0
"""Call every public name of torch through `thunder.jit` and compare with torch: `nox -s surface`.

`names.py` lists torch's public names, `reasons.py` says which are no operations on tensors, `samples.py` and
`derived.py` have a call of each that is, `walk.py` compares these with torch, and `page.py` writes down what was found.
"""
