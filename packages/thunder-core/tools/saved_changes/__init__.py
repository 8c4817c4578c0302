# SPDX-License-Identifier: Apache-2.0
"""Changes of what saved programs depend on: `python -m saved_changes [-k NAME]`.

Each change is a small program in two versions. One process saves the program of the first version, a second one runs
the same version again, and a third one the other version. No process may compute anything else than eager mode, and
the second must find the saved program, unless the change says that it is not saved.
"""
