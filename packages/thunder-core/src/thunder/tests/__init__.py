# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: tests that an executor runs thunder's operations correctly.

    pytest --pyargs thunder.tests --executor NAME [--thunder-device cpu] [--thunder-dtypes float32,bfloat16] [-k …]

The suite ships with thunder, so that it has the same version as the semantics of the operations. `make_tensor` and
`opinfos` provide the inputs, `target` the executors under test, `cases` the test cases for inputs and executors, and
`test_ops` the tests. The top-level module `pytest_thunder` contains the options and the summary table.
"""

__all__ = ["make_tensor", "opinfo", "opinfos"]
