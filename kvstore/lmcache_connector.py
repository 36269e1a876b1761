"""LMCache's connector as vLLM loads it, with its reports sifted (`kvstore.transfers`). Imports vLLM and LMCache."""

from typing import Any

from lmcache.integration.vllm import lmcache_mp_connector

from kvstore.transfers import Transfers


class LMCacheMPConnector(lmcache_mp_connector.LMCacheMPConnector):  # type: ignore[misc]
    """Under the name that vLLM knows. What is overridden is the scheduler's side."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._transfers = Transfers()

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens > 0:
            self._transfers.load_begins(request.request_id)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        # Also what request_finished_all_groups comes to.
        self._transfers.request_ends(request.request_id)
        finished: tuple[bool, dict[str, Any] | None] = super().request_finished(request, block_ids)
        return finished

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        stored, loaded = connector_output.finished_sending or set(), connector_output.finished_recving or set()
        connector_output.finished_sending = self._transfers.to_tell(stored, loaded)
