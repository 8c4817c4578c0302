# SPDX-License-Identifier: Apache-2.0
"""torch's whole operator surface, called through `thunder.jit`: `python -m thunder ops --surface`.

`names.py` lists torch's public names, `reasons.py` says which are no operations on tensors, `samples.py` and
`derived.py` have a call of each that is, `walk.py` compares these with torch, and `page.py` writes down what was found.
"""
