"""LMCache's connector as vLLM loads it, with its reports in order (`kvstore.transfers`). Imports vLLM and LMCache."""

from lmcache.integration.vllm import lmcache_mp_connector

from kvstore.transfers import to_report


class LMCacheMPConnector(lmcache_mp_connector.LMCacheMPConnector):  # type: ignore[misc]
    """Under the name that vLLM knows."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        adapter = self.worker_adapter
        loading = set(adapter.retrieve_futures) | set(adapter._dropped_retrieves)
        stored, loaded = super().get_finished(finished_req_ids)
        return to_report(stored or set(), loaded or set(), loading)
