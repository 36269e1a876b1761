"""Switches compilation off: compiling a model takes longer than its tests. Import it before torch.

`test_compiled` and the served tests compile.
"""

import os

os.environ["CXX"] = "no compiler in these tests"
os.environ["TORCH_COMPILE_DISABLE"] = "1"  # for engines in the process of the tests, without `engine_environment`
