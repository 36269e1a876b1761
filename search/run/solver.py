"""Where what strategies want solved is solved: not on the event loop, which all searches share."""

import asyncio
from typing import Any

from search.strategies.base import Problem


class Solver:
    """Solves in threads."""

    async def solve(self, problem: Problem) -> Any:
        return await asyncio.to_thread(problem.solve, problem.stated)
