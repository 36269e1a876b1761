"""Imports of large libraries."""

import gc
from importlib import import_module
from types import ModuleType


def quick_import(name: str) -> ModuleType:
    """Imports a module without garbage collections, which take a fifth of the time of importing vLLM and free nothing.

    The garbage of all threads waits until it returns. Raises ImportError as the import does.
    """
    if not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.enable()
