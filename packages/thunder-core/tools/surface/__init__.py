# SPDX-License-Identifier: Apache-2.0
"""Call every public name of torch through `thunder.jit` and compare with torch: `nox -s surface`.

`names.py` lists torch's public names, `reasons.py` excludes those that are not tensor operations, `samples.py` and
`derived.py` provide sample calls, `walk.py` compares them with torch, and `page.py` writes the results.
"""
