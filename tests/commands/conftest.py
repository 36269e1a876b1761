"""One shell for all tests of commands."""

from collections.abc import Iterator

import pytest

from tests.commands.shell import Shell, end


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("home"))
    shell("python -m cluster.launch.token")  # what `make setup` does
    yield shell
    end(shell)
