# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: it proves that an executor runs thunder's operations right.

    pytest --pyargs thunder.tests --executor NAME [--thunder-device cpu] [--thunder-dtypes float32,bfloat16] [-k …]

It ships with thunder, so that the suite and the meaning of the operations have one version. `make_tensor` and
`opinfos` hold the inputs, `target` what is under test, `cases` which tests follow from both, `test_ops` the tests; the
options and the final table are in the top-level module `pytest_thunder`.
"""

__all__ = ["make_tensor", "opinfo", "opinfos"]
