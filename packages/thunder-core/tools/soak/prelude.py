# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401
"""What every random program begins with: imports, and how a value that it read becomes a part of its result."""

import abc
import builtins
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import enum
import functools
import importlib
import inspect
import io
import itertools
import logging
import math
import operator
import os
import pathlib
import pickle
import queue
import random
import sys
import tempfile
import threading
import types
import warnings
import weakref
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def fold(y: Any, r: Any) -> Any:
    """Return the tensor y changed by the value r."""
    if isinstance(r, bool):
        return y * 2.0 if r else y - 1.0
    if isinstance(r, (int, float)):
        return y + r
    if isinstance(r, str):
        return y + sum((i + 1) * ord(c) for i, c in enumerate(r[:20]))
    if isinstance(r, torch.Tensor):
        return y + r.sum().to(y.dtype)
    if r is None:
        return y * 3.0
    return y + len(r)


class Holder:
    """Holds attributes."""


X = [
    torch.tensor([0.5, -1.0, 2.0]),
    torch.tensor([0.25, 1.0, -2.0, 3.0, 0.125]),
    torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64),
    torch.tensor([0.5, -1.0, 2.0], requires_grad=True),
]


def summary(value: Any) -> Any:
    """Return what is compared of a value of any class: numbers, text and tensors as they are, else length or class."""
    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor)):
        return value
    try:
        return f"{type(value).__name__} {len(value)}"
    except TypeError:
        return type(value).__name__
