# SPDX-License-Identifier: Apache-2.0
"""A plugin that takes the process down with it when it is imported, as a library built for another torch may."""

import os
import signal

os.kill(os.getpid(), signal.SIGSEGV)
