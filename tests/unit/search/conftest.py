"""Makes the fakes beside the tests importable, whatever import mode pytest runs in."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
