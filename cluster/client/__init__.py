"""HTTP client of a Banyan endpoint, for programs with and without an event loop.

    with SyncClient("http://127.0.0.1:8000") as client:
        for event in client.stream(Question("What is 6 * 7?", {"strategy": "beam_search", "n": 16})):
            match event:
                case StepScored(): print(event.reward, event.text)
                case Completion(): print(event.search.answer)

The `banyan` command uses it. For request fields that a `Question` does not have, use OpenAI's own client.
"""

from cluster.client.client import Client
from cluster.client.errors import ClientError, Disconnected, ProtocolError, Refused, TooLate, Unreachable
from cluster.client.replies import (
    AnswerText,
    Completion,
    Event,
    Question,
    Restarted,
    SearchBlock,
    StepScored,
    Usage,
)
from cluster.client.retries import Retries
from cluster.client.sync_client import SyncClient

__all__ = [
    "AnswerText",
    "Client",
    "ClientError",
    "Completion",
    "Disconnected",
    "Event",
    "ProtocolError",
    "Question",
    "Refused",
    "Restarted",
    "Retries",
    "SearchBlock",
    "StepScored",
    "SyncClient",
    "TooLate",
    "Unreachable",
    "Usage",
]
