# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: tests that an executor runs thunder's operations correctly.

    pytest --pyargs thunder.tests --executor NAME [--thunder-device cpu] [--thunder-dtypes float32,bfloat16] [-k …]

It ships with thunder, so that the suite and the semantics of the operations have the same version. `make_tensor` and
`opinfos` provide the inputs, `target` the executors under test, `cases` the test cases for both, `test_ops` the tests;
the options and the summary table are in the top-level module `pytest_thunder`.
"""

__all__ = ["make_tensor", "opinfo", "opinfos"]
